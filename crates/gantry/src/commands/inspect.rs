//! `gantry inspect`: what a model file is, whether it runs here and what is in it, from its header alone.

mod account;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use checkpoint::{Checkpoint, Entry};
use meta::ByteSize;
use residency::BlockNames;
use serde::Serialize;

use super::{print, print_json};
use crate::cli::InspectArgs;
use crate::table::Table;
use account::Account;

#[derive(Serialize)]
struct Inspection {
    file: String,
    format: String,
    /// Set where the file is one part of several and was opened alone.
    part: Option<String>,
    #[serde(flatten)]
    account: Account,
    files: usize,
    tensors: usize,
    parameters: u64,
    bytes: u64,
    encodings: Vec<EncodingShare>,
    blocks: Vec<BlockGroup>,
    metadata_keys: Vec<String>,
    /// What is strange about the file though it can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<EntryRow>>,
}

#[derive(Serialize)]
struct EncodingShare {
    encoding: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

/// Blocks whose names differ only in their number: `double_blocks.*`.
#[derive(Serialize)]
struct BlockGroup {
    name: String,
    blocks: usize,
    tensors: usize,
    bytes: u64,
    largest_block_bytes: u64,
}

#[derive(Serialize)]
struct EntryRow {
    name: String,
    encoding: &'static str,
    shape: Vec<usize>,
    bytes: u64,
    offset: u64,
}

pub(super) fn run(args: &InspectArgs) -> Result<ExitCode> {
    let checkpoint = Arc::new(Checkpoint::open(&args.file)?);
    let inspection = inspect(&checkpoint, args.entries);
    if args.output.json {
        print_json(&inspection)?;
    } else {
        print(&inspection.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(checkpoint: &Arc<Checkpoint>, with_entries: bool) -> Inspection {
    let entries = checkpoint.entries();
    let row = |entry: &Entry| EntryRow {
        name: entry.name().to_owned(),
        encoding: entry.encoding().name(),
        shape: entry.shape().dims().to_vec(),
        bytes: entry.len(),
        offset: entry.offset(),
    };
    Inspection {
        file: checkpoint.path().display().to_string(),
        format: checkpoint.format().to_string(),
        part: checkpoint.shard().map(|shard| format!("part {} of {}", shard.number, shard.count)),
        account: Account::of(checkpoint),
        files: checkpoint.files().len(),
        tensors: entries.len(),
        parameters: entries.iter().map(parameters).sum(),
        bytes: checkpoint.tensor_bytes(),
        encodings: encodings(entries),
        blocks: blocks(entries),
        metadata_keys: checkpoint.metadata().keys().map(str::to_owned).collect(),
        warnings: checkpoint.warnings().to_vec(),
        entries: with_entries.then(|| entries.iter().map(row).collect()),
    }
}

fn parameters(entry: &Entry) -> u64 {
    entry.shape().checked_count().unwrap_or(0)
}

/// Shares of the file by encoding, the largest first.
fn encodings(entries: &[Entry]) -> Vec<EncodingShare> {
    let mut shares: BTreeMap<&'static str, EncodingShare> = BTreeMap::new();
    for entry in entries {
        let encoding = entry.encoding().name();
        let share =
            shares.entry(encoding).or_insert(EncodingShare { encoding, tensors: 0, parameters: 0, bytes: 0 });
        share.tensors += 1;
        share.parameters += parameters(entry);
        share.bytes += entry.len();
    }
    let mut shares: Vec<EncodingShare> = shares.into_values().collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

/// Tensors and bytes of each block of a group.
type BlockSizes<'a> = BTreeMap<&'a str, (usize, u64)>;

/// Groups of blocks in the order in which they first appear, and last what belongs to none.
fn blocks(entries: &[Entry]) -> Vec<BlockGroup> {
    let names = BlockNames::new(entries.iter().map(Entry::name));
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups: Vec<(&str, BlockSizes<'_>)> = Vec::new();
    let mut rest = (0, 0);
    for entry in entries {
        let sizes = match names.block_of(entry.name()) {
            None => &mut rest,
            Some((group, block)) => {
                let place = *places.entry(group).or_insert_with(|| {
                    groups.push((group, BTreeMap::new()));
                    groups.len() - 1
                });
                groups[place].1.entry(block).or_default()
            }
        };
        sizes.0 += 1;
        sizes.1 += entry.len();
    }
    let rest = (rest.0 > 0).then(|| BlockGroup {
        name: "(outside blocks)".into(),
        blocks: 0,
        tensors: rest.0,
        bytes: rest.1,
        largest_block_bytes: 0,
    });
    let group = |(name, sizes): (&str, BlockSizes<'_>)| BlockGroup {
        name: format!("{name}.*"),
        blocks: sizes.len(),
        tensors: sizes.values().map(|(tensors, _)| tensors).sum(),
        bytes: sizes.values().map(|(_, bytes)| bytes).sum(),
        largest_block_bytes: sizes.values().map(|(_, bytes)| *bytes).max().unwrap_or(0),
    };
    groups.into_iter().map(group).chain(rest).collect()
}

/// A large number in words.
fn counted(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", number as f64 / 1e6),
        _ => format!("{:.2} billion", number as f64 / 1e9),
    }
}

impl Inspection {
    fn to_text(&self) -> String {
        let part = self.part.as_ref().map_or(String::new(), |part| format!(", {part}"));
        let files = if self.files == 1 { String::new() } else { format!(" in {} files", self.files) };
        let mut text = format!(
            "{}: {}{part}{files}\n{}{} tensors, {} parameters, {}\n\n",
            self.file,
            self.format,
            self.account.to_text(),
            self.tensors,
            counted(self.parameters),
            ByteSize(self.bytes),
        );
        let mut table = Table::new(&["encoding", "tensors", "parameters", "size"]);
        for share in &self.encodings {
            let (tensors, size) = (share.tensors.to_string(), ByteSize(share.bytes).to_string());
            table.row(&[share.encoding, &tensors, &share.parameters.to_string(), &size]);
        }
        text += &format!("{table}\n");
        let mut table = Table::new(&["blocks", "count", "tensors", "size", "largest block"]);
        for group in &self.blocks {
            let (size, largest) = (ByteSize(group.bytes), ByteSize(group.largest_block_bytes));
            let cells =
                [group.blocks.to_string(), group.tensors.to_string(), size.to_string(), largest.to_string()];
            table.row(&[&group.name, &cells[0], &cells[1], &cells[2], &cells[3]]);
        }
        text += &table.to_string();
        for warning in &self.warnings {
            text += &format!("\nnote: {warning}\n");
        }
        if let Some(entries) = &self.entries {
            let mut table = Table::new(&["tensor", "encoding", "shape", "bytes", "offset"]);
            for entry in entries {
                let shape = format!("{:?}", entry.shape);
                table.row(&[
                    &entry.name,
                    entry.encoding,
                    &shape,
                    &entry.bytes.to_string(),
                    &entry.offset.to_string(),
                ]);
            }
            text += &format!("\n{table}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_file_is_told_in_shares_and_groups() {
        let dir = testkit::ScratchDir::new().unwrap();
        let path = testkit::Manifest::bundled("flux_dev_micro-Q8_0").unwrap().write_to(dir.path()).unwrap();
        let inspection = inspect(&Arc::new(Checkpoint::open(path).unwrap()), false);
        assert_eq!(inspection.parameters, inspection.encodings.iter().map(|e| e.parameters).sum::<u64>());
        assert_eq!(inspection.bytes, inspection.blocks.iter().map(|b| b.bytes).sum::<u64>());
        assert!(inspection.encodings.iter().any(|e| e.encoding == "Q8_0" && e.tensors > 20));
        let names: Vec<&str> = inspection.blocks.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["double_blocks.*", "single_blocks.*", "(outside blocks)"]);
    }
}
