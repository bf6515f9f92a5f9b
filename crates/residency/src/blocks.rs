//! Blocks found by name: in a file whose family is not known, tensors whose names share a number that
//! counts up are one block.

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::{Checkpoint, Entry};

use crate::{Companions, Manifest, Result, WeightSpec};

/// Which names are of which block.
#[derive(Debug)]
pub struct BlockNames<'a> {
    repeated: BTreeSet<&'a str>,
}

impl<'a> BlockNames<'a> {
    /// Looks through all names of a file. A number that occurs alone is the place of a layer in a
    /// sequence, not a block.
    pub fn new(names: impl Iterator<Item = &'a str>) -> BlockNames<'a> {
        let mut numbers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (group, block) in names.filter_map(split) {
            numbers.entry(group).or_default().insert(block);
        }
        let repeated =
            numbers.into_iter().filter(|(_, blocks)| blocks.len() > 1).map(|(group, _)| group).collect();
        BlockNames { repeated }
    }

    /// The group and the block that a tensor is in: `double_blocks.3.img_attn.qkv.weight` is in block
    /// `double_blocks.3` of group `double_blocks`.
    pub fn block_of<'n>(&self, name: &'n str) -> Option<(&'n str, &'n str)> {
        split(name).filter(|(group, _)| self.repeated.contains(group))
    }
}

/// A name before its first number, and with it.
fn split(name: &str) -> Option<(&str, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if start > 0 && end < name.len() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some((&name[..start - 1], &name[..end]));
        }
        start = end + 1;
    }
    None
}

impl Manifest {
    /// The manifest of a file whose family is not known: blocks by their numbers, groups in the order in
    /// which the file has them, everything else in a fixed block in front.
    pub fn by_names(checkpoint: &Checkpoint, name: &str) -> Result<Manifest> {
        let names = BlockNames::new(checkpoint.entries().iter().map(Entry::name));
        let mut ends = Vec::new();
        let mut groups: Vec<(&str, BTreeMap<u64, Vec<&Entry>>)> = Vec::new();
        let weights = checkpoint.entries().iter().filter(|entry| !checkpoint.is_companion(entry));
        for entry in weights {
            let place = names.block_of(entry.name());
            let number = place.and_then(|(group, block)| block[group.len() + 1..].parse::<u64>().ok());
            match place.zip(number) {
                None => ends.push(entry),
                Some(((group, _), number)) => {
                    let known = groups.iter().position(|(name, _)| *name == group);
                    let index = known.unwrap_or_else(|| {
                        groups.push((group, BTreeMap::new()));
                        groups.len() - 1
                    });
                    groups[index].1.entry(number).or_default().push(entry);
                }
            }
        }
        let mut builder = Manifest::builder(name, "unknown");
        if !ends.is_empty() {
            builder = builder.block("ends", true, specs(checkpoint, &ends));
        }
        for (group, blocks) in groups {
            for (number, entries) in blocks {
                let name = format!("{group}.{number}");
                builder = builder.block(name, false, specs(checkpoint, &entries));
            }
        }
        builder.finish()
    }
}

/// What stands beside a weight, unless it is nothing that this weight can have.
fn companions(checkpoint: &Checkpoint, entry: &Entry) -> Companions {
    let companions = Companions::of(checkpoint, entry);
    let one = companions.scale.as_ref().is_some_and(|scale| scale.bytes.len() == 4);
    if entry.encoding().scheme().is_some() || one { companions } else { Companions::default() }
}

fn specs(checkpoint: &Checkpoint, entries: &[&Entry]) -> Vec<WeightSpec> {
    let spec = |entry: &&Entry| WeightSpec {
        name: entry.name().to_owned(),
        encoding: entry.encoding(),
        kept_as: entry.encoding(),
        shape: *entry.stored_shape(),
        padded: None,
        bytes: checkpoint.entry_bytes(entry),
        companions: companions(checkpoint, entry),
        rounds_patches: false,
        fp8_product: false,
    };
    entries.iter().map(spec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_the_first_number_that_counts_up() {
        let names = [
            "d.0.a.weight",
            "d.1.a.weight",
            "final.1.weight",
            "a.b.12.c.4.weight",
            "a.b.3.x",
            "3.w",
            "layer.3",
        ];
        let blocks = BlockNames::new(names.into_iter());
        assert_eq!(blocks.block_of("d.1.a.weight"), Some(("d", "d.1")));
        assert_eq!(blocks.block_of("a.b.12.c.4.weight"), Some(("a.b", "a.b.12")));
        for name in ["final.1.weight", "3.w", "layer.3", "img_in.weight"] {
            assert_eq!(blocks.block_of(name), None, "{name}");
        }
    }

    #[test]
    fn every_weight_of_a_real_file_is_in_one_block() {
        for name in ["flux_dev_micro", "flux_dev_micro-Q8_0", "flux_dev_micro_fp8_scaled"] {
            let dir = testkit::ScratchDir::new().unwrap();
            let path = testkit::Manifest::bundled(name).unwrap().write_to(dir.path()).unwrap();
            let checkpoint = Checkpoint::open(path).unwrap();
            let manifest = Manifest::by_names(&checkpoint, name).unwrap();
            let companions =
                checkpoint.entries().iter().filter(|entry| checkpoint.is_companion(entry)).count();
            assert_eq!(manifest.weights().len() + companions, checkpoint.entries().len());
            assert!(manifest.blocks()[0].fixed && manifest.blocks()[1].name == "double_blocks.0", "{name}");
            assert_eq!(manifest.weights().iter().any(|w| !w.companions.is_empty()), companions > 0);
        }
    }
}
