//! Every weight of the test models has a name in diffusers' style, and the slices of a fused one cover it exactly.

use std::collections::BTreeMap;

use meta::Shape;
use testkit::Manifest;

use super::{KeyMap, Rows, Target};

/// The tensors of a bundled manifest below a prefix.
fn weights(manifest: &str, prefix: &str) -> Vec<(String, Shape)> {
    let manifest = Manifest::bundled(manifest).unwrap();
    let below =
        manifest.tensors.iter().filter_map(|t| Some((t.name.strip_prefix(prefix)?.to_owned(), t.shape)));
    below.collect()
}

fn names(weights: &[(String, Shape)]) -> impl Iterator<Item = (&str, &Shape)> {
    weights.iter().map(|(name, shape)| (name.as_str(), shape))
}

/// Checks that names with these beginnings reach every row of every `.weight`, once.
fn check(map: &KeyMap, starts: &[&str]) -> usize {
    let mut reached: BTreeMap<&str, Vec<Rows>> = BTreeMap::new();
    for (stem, Target { weight, rows, .. }) in &map.dotted {
        // Processors and aliases of SD2's class embedding are second names.
        let second = stem.contains(".processor.") || stem.starts_with("class_embedding");
        if !second && starts.iter().any(|start| stem.starts_with(start)) {
            let whole = Rows { start: 0, len: map.shapes[weight].dims()[0] };
            reached.entry(weight).or_default().push(rows.unwrap_or(whole));
        }
    }
    for (weight, shape) in map.shapes.iter().filter(|(name, _)| name.ends_with(".weight")) {
        let mut rows =
            reached.remove(weight.as_str()).unwrap_or_else(|| panic!("{weight} has no other name"));
        rows.sort_by_key(|rows| rows.start);
        let mut next = 0;
        for Rows { start, len } in rows {
            assert_eq!(start, next, "{weight}");
            next += len;
        }
        assert_eq!(next, shape.dims()[0], "{weight}");
    }
    map.shapes.len()
}

#[test]
fn unets() {
    let starts = [
        "down_blocks.",
        "mid_block.",
        "up_blocks.",
        "conv_in",
        "conv_norm_out",
        "conv_out",
        "time_embedding.",
        "add_embedding.",
    ];
    for manifest in ["sd15_tiny", "sdxl_tiny"] {
        let weights = weights(manifest, "model.diffusion_model.");
        assert!(check(&KeyMap::for_unet(names(&weights)), &starts) > 100, "{manifest}");
    }
}
