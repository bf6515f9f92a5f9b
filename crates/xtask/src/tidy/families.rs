//! A family is one folder and one line: its name stands in its folder, in that of its own autoencoder, in the lists, in
//! its nodes file, in tests and docs, and nowhere else.

use std::collections::BTreeSet;

use crate::findings::Finding;
use crate::scan::Scan;
use crate::workspace::{SourceFile, Workspace};

use super::TOOL_CRATES;

/// Where families have their folders; a family is a folder with this file in it.
const FOLDER: &str = "crates/models/src/diffusion/";
const FILE: &str = "/family.rs";
/// Where autoencoders have theirs, some of which are named after the family that came with them.
const AUTOENCODERS: &str = "crates/models/src/vae/";
/// Files that list all families.
const LISTS: [&str; 5] = [
    "crates/models/src/control.rs",
    "crates/models/src/diffusion.rs",
    "crates/models/src/diffusion/model_patches.rs",
    "crates/models/src/vae.rs",
    "crates/nodes/src/families.rs",
];
/// Where families have their nodes.
const NODES: &str = "crates/nodes/src/families/";
/// Where this table stands.
const TABLE: &str = "crates/xtask/src/tidy/families.rs";

/// Places that have a family's name for a reason: a file, or a folder when it ends in a slash.
const PLACES: &[(&str, &str)] = &[
    ("crates/gantry/src/bench/cpu.rs", "PyTorch's side of the comparison is written for one model"),
    ("crates/gantry/src/bench/cpu/", "PyTorch's side of the comparison is written for one model"),
    ("crates/gantry/src/bench/ops.rs", "rows are named after the models whose shapes they have"),
    ("crates/gantry/src/bench/parts.rs", "the name of a file of sizes"),
    ("crates/gantry/src/bench/parts/video.rs", "the name of a file of sizes"),
    (
        "crates/gantry/src/bench/served/video.rs",
        "the families whose videos are measured, and encoders with known words",
    ),
    ("crates/gantry/src/bench/step/decoding.rs", "the name of a file of sizes"),
    ("crates/gantry/src/demo_model.rs", "the names of the demo model's files"),
    ("crates/gantry/src/templates.rs", "templates of models that people download, by what gets their files"),
    (
        "crates/models/src/diffusion/flux/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/nodes/src/merging/blocks.rs", "ComfyUI's classes of merging, which are named after models"),
    (
        "crates/models/src/diffusion/wan/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/models/src/diffusion/chroma.rs", "the name of latents that it shares"),
    (
        "crates/models/src/diffusion/chroma/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/models/src/diffusion/chroma_radiance/", "the same network over pixels"),
    (
        "crates/models/src/diffusion/cosmos/family.rs",
        "an autoencoder and ComfyUI's class for latents of 16 channels, which are named after others",
    ),
    (
        "crates/models/src/diffusion/flux2/family.rs",
        "ComfyUI's class for a distilled guidance is named after another",
    ),
    ("crates/models/src/diffusion/flux3.rs", "the latents that it shares with the generation before it"),
    (
        "crates/models/src/diffusion/flux3/family.rs",
        "ComfyUI's class for latents and the autoencoder's file are named after the generation before it",
    ),
    ("crates/models/src/diffusion/hidream.rs", "the name of latents that it shares"),
    (
        "crates/models/src/diffusion/hidream/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    (
        "crates/models/src/diffusion/hunyuan_video/",
        "ComfyUI's class for a distilled guidance and a file that is shared are named after another",
    ),
    ("crates/models/src/diffusion/hunyuan_video_15/", "a later generation, with the network of the first"),
    ("crates/models/src/diffusion/kandinsky5/family.rs", "the name of an autoencoder that it shares"),
    ("crates/models/src/diffusion/kandinsky5/run.rs", "the name of latents that it shares"),
    (
        "crates/models/src/diffusion/krea2/",
        "the autoencoder's file is named after the model that it was published with",
    ),
    (
        "crates/models/src/diffusion/latents.rs",
        "latents that families share, by the names of the models that they were published with",
    ),
    ("crates/models/src/diffusion/ltxv/downloads.rs", "a file that is shared is named after another"),
    (
        "crates/models/src/diffusion/qwen_image/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    (
        "crates/models/src/diffusion/qwen_image21/",
        "its files and ComfyUI's type of its texts are named after the generation before it",
    ),
    ("crates/models/src/diffusion/z_image.rs", "the name of latents that it shares"),
    (
        "crates/models/src/diffusion/z_image/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/models/src/diffusion/z_image/model_patch.rs", "the name of latents that it shares"),
    ("crates/models/src/latent_upscale.rs", "upscalers of latents are named after the family that has these"),
    ("crates/models/src/latent_upscale/", "upscalers of latents are named after the family that has these"),
    ("crates/nodes/src/families/chroma_radiance.rs", "ComfyUI's names of its classes"),
    ("crates/nodes/src/families/flux2.rs", "ComfyUI's module and title of a later generation"),
    ("crates/nodes/src/loaders/text_encoders.rs", "ComfyUI's own list of types, in its order"),
    ("crates/nodes/src/loaders/vision.rs", "the names of published models"),
    ("crates/nodes/src/sampling_nodes/model_options.rs", "ComfyUI's own list of samplings"),
    ("crates/nodes/src/sampling_nodes/schedules.rs", "ComfyUI's own list of model types"),
    (
        "crates/sampling/src/schedule/nodes.rs",
        "published tables of levels, by the names they were published under",
    ),
    ("crates/server/src/replacements.rs", "ComfyUI's class whose name was misspelt once"),
];

/// Finds names of families where they do not belong, and places that are excused without need.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let families = families(workspace);
    let mut findings = Vec::new();
    let mut needed = vec![false; PLACES.len()];
    for (file, scan) in workspace.rust_files().filter(|(file, _)| is_product(file)) {
        for (line, family) in named(scan, &families) {
            if belongs(&file.path, &family) {
                continue;
            }
            match PLACES.iter().position(|(place, _)| covers(place, &file.path)) {
                Some(place) => needed[place] = true,
                None => findings.push(Finding::error(
                    &file.path,
                    line + 1,
                    format!(
                        "`{family}` is a family: its name stands in {FOLDER}{family}, in {NODES}{family}.rs, in tests and \
                         docs; ask its constant in `FAMILIES` instead"
                    ),
                )),
            }
        }
    }
    // A workspace that is made of snippets has none of the places.
    if workspace.file(TABLE).is_some() {
        let idle = PLACES.iter().zip(needed).filter(|(_, needed)| !needed);
        findings.extend(idle.map(|((place, why), _)| {
            Finding::warning(
                TABLE,
                1,
                format!("{place} names no family any more ({why}): take it out of the table"),
            )
        }));
    }
    findings
}

/// The families, by their folders.
fn families(workspace: &Workspace) -> BTreeSet<String> {
    let folder = |(file, _): (&SourceFile, &Scan)| {
        Some(file.path.strip_prefix(FOLDER)?.strip_suffix(FILE)?.to_owned())
    };
    workspace.rust_files().filter_map(folder).collect()
}

/// Code that ships and is no test.
fn is_product(file: &SourceFile) -> bool {
    let owner = file.crate_name().unwrap_or_default();
    !owner.is_empty() && !TOOL_CRATES.contains(&owner) && !file.is_test_file()
}

fn belongs(path: &str, family: &str) -> bool {
    let is_own = |folder: &str| {
        let rest = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix(family));
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    is_own(FOLDER) || is_own(AUTOENCODERS) || is_own(NODES) || LISTS.contains(&path)
}

fn covers(place: &str, path: &str) -> bool {
    if place.ends_with('/') { path.starts_with(place) } else { place == path }
}

/// The lines (counted from 0) outside tests whose names or texts have a family's name, and whose.
fn named(scan: &Scan, families: &BTreeSet<String>) -> BTreeSet<(usize, String)> {
    let words = scan.words().into_iter().map(|word| (word.start, word.text));
    let all: Vec<(usize, String)> = words.chain(scan.literals()).collect();
    let mut found = BTreeSet::new();
    for (at, text) in all {
        let line = scan.line_at(at);
        if scan.is_test_line(line) {
            continue;
        }
        found
            .extend(families.iter().filter(|family| has(&text, family)).map(|family| (line, family.clone())));
    }
    found
}

/// Whether a text has a family's name, as a word of its own or of a compound. A number behind it makes it a file's name or
/// another generation's.
fn has(text: &str, family: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.match_indices(family).any(|(at, _)| {
        let (found, rest) = text[at..].split_at(family.len());
        let upper = |next: Option<char>| next.is_some_and(|next| next.is_ascii_uppercase());
        let letter = |next: Option<char>| next.is_some_and(|next| next.is_ascii_alphabetic());
        let (before, behind) = (text[..at].chars().next_back(), rest.chars().next());
        // A capital begins a word of a compound, unless all are capitals.
        let begins = !letter(before)
            || (upper(found.chars().next()) && !upper(found.chars().nth(1)))
            || (upper(found.chars().next()) && !upper(before));
        let ends = !letter(behind) || (upper(behind) && !upper(found.chars().next_back()));
        begins && ends && !rest.trim_start_matches('.').starts_with(|next: char| next.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: (&str, &str) =
        ("crates/models/src/diffusion/acme/family.rs", "//! Acme.\npub const NAME: u8 = 0;\n");

    fn complaints(path: &str, text: &str) -> usize {
        check(&Workspace::of_files(&[FAMILY, (path, text)])).len()
    }

    #[test]
    fn a_name_outside_its_folder_is_found() {
        let code = "//! Code.\nfn f() { let acme = 1; }\n";
        assert_eq!(complaints("crates/nodes/src/vae.rs", code), 1);
        assert_eq!(
            complaints("crates/gantry/src/drawing.rs", "//! Code.\nconst NAME: &str = \"Acme files\";\n"),
            1
        );
        assert_eq!(complaints("crates/runtime/src/work.rs", "//! Code.\nenum Network { AcmeModel }\n"), 1);
        // Its own places, comments, tests, and names with numbers behind them.
        for path in [
            "crates/models/src/diffusion/acme/blocks.rs",
            "crates/models/src/vae/acme.rs",
            "crates/nodes/src/families/acme.rs",
        ] {
            assert_eq!(complaints(path, code), 0, "{path}");
        }
        // Other words that begin or end with the same letters.
        for other in ["acmes", "pacme", "Acmeist", "ACMEIST"] {
            let code = format!("//! Code.\nfn f() {{ let {other} = 1; }}\n");
            assert_eq!(complaints("crates/nodes/src/vae.rs", &code), 0, "{other}");
        }
        assert_eq!(complaints("crates/models/src/diffusion.rs", code), 0);
        assert_eq!(complaints("crates/models/tests/acme.rs", code), 0);
        assert_eq!(complaints("crates/nodes/src/vae.rs", "//! Acme is a family.\nfn f() {}\n"), 0);
        assert_eq!(
            complaints("crates/nodes/src/vae.rs", "//! Code.\nconst FILE: &str = \"acme1-dev\";\n"),
            0
        );
        let test = "//! Code.\n#[cfg(test)]\nmod tests {\n    fn acme() {}\n}\n";
        assert_eq!(complaints("crates/nodes/src/vae.rs", test), 0);
    }
}
