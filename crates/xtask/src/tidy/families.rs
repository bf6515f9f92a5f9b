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
/// What a family is in that file.
const CONSTANT: &str = "FAMILY";
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
    ("crates/gantry/src/bench/served/shared.rs", "the name of a file of sizes"),
    (
        "crates/gantry/src/bench/served/video.rs",
        "the families whose videos are measured, and encoders with known words",
    ),
    ("crates/gantry/src/bench/step/decoding.rs", "the name of a file of sizes"),
    ("crates/gantry/src/cli.rs", "published files in the examples of its help"),
    ("crates/gantry/src/demo_model.rs", "the names of the demo model's files"),
    ("crates/gantry/src/templates.rs", "templates of models that people download, by what gets their files"),
    (
        "crates/models/src/diffusion/flux/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/models/src/detect/named.rs", "what converters write into files, and what the field calls it"),
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
    ("crates/models/src/diffusion/chroma/downloads.rs", "a file that is shared is named after another"),
    ("crates/models/src/diffusion/chroma_radiance/", "the same network over pixels"),
    ("crates/models/src/diffusion/cosmos/downloads.rs", "a file that is shared is named after another"),
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
    ("crates/models/src/diffusion/kandinsky5/downloads.rs", "files that are shared are named after others"),
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
    (
        "crates/models/src/diffusion/unet/kind.rs",
        "latents that families share, by the name that they have in the field",
    ),
    ("crates/models/src/diffusion/z_image.rs", "the name of latents that it shares"),
    (
        "crates/models/src/diffusion/z_image/family.rs",
        "ComfyUI's class for latents of 16 channels is named after another",
    ),
    ("crates/models/src/diffusion/z_image/model_patch.rs", "the name of latents that it shares"),
    ("crates/models/src/latent_upscale.rs", "upscalers of latents are named after the family that has these"),
    ("crates/models/src/latent_upscale/", "upscalers of latents are named after the family that has these"),
    ("crates/models/src/vae/video_kl.rs", "autoencoders that are named after the models they came with"),
    ("crates/nodes/src/families/flux2.rs", "ComfyUI's module and title of a later generation"),
    (
        "crates/nodes/src/families/hunyuan_video.rs",
        "the nodes of the generation after it, which are like its own",
    ),
    (
        "crates/nodes/src/families/hunyuan_video/",
        "the nodes of the generation after it, which are like its own",
    ),
    ("crates/nodes/src/loaders/text_encoders.rs", "ComfyUI's own list of types, in its order"),
    ("crates/nodes/src/loaders/vision.rs", "the names of published models"),
    ("crates/nodes/src/sampling_nodes/model_options.rs", "ComfyUI's own list of samplings"),
    ("crates/nodes/src/sampling_nodes/schedules.rs", "ComfyUI's own list of model types"),
    ("crates/nodes/src/text/lotus.rs", "the text encoder that it needs, by the model that it came with"),
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

/// A family, by what it is called.
#[derive(Debug)]
struct Family {
    /// Its folder.
    folder: String,
    /// The letters and digits of that and of its name in the field, in small letters.
    names: Vec<String>,
}

/// The families, by their folders.
fn families(workspace: &Workspace) -> Vec<Family> {
    let family = |(file, scan): (&SourceFile, &Scan)| {
        let folder = file.path.strip_prefix(FOLDER)?.strip_suffix(FILE)?.to_owned();
        let names = [Some(folder.clone()), field_name(scan)].into_iter().flatten();
        let compact = |name: String| parts(&name).into_iter().map(|part| part.text).collect::<String>();
        Some(Family { names: names.map(compact).collect(), folder })
    };
    workspace.rust_files().filter_map(family).collect()
}

/// What the constant of a family says that the field calls it.
fn field_name(scan: &Scan) -> Option<String> {
    let words = scan.words();
    let constant = words.iter().position(|word| word.text == CONSTANT)?;
    let name = words[constant..].iter().find(|word| word.text == "name")?;
    scan.literals().into_iter().find(|(at, _)| *at > name.end).map(|(_, text)| text)
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
fn named(scan: &Scan, families: &[Family]) -> BTreeSet<(usize, String)> {
    let words = scan.words().into_iter().map(|word| (word.start, word.text));
    let mut found = BTreeSet::new();
    for (start, text) in words.chain(scan.literals()) {
        for (at, family) in named_in(&text, families) {
            let line = scan.line_at(start + at);
            if !scan.is_test_line(line) {
                found.insert((line, family.folder.clone()));
            }
        }
    }
    found
}

/// The families that a text names, and where it does. Of names that begin in one place the longest counts: what is called
/// `acme2` is that family, and no `acme` with a number behind it.
fn named_in<'a>(text: &str, families: &'a [Family]) -> Vec<(usize, &'a Family)> {
    let parts = parts(text);
    let longest = |first: usize| {
        let here = |family: &&Family| {
            family.names.iter().filter(|name| begin(&parts[first..], name)).map(String::len).max()
        };
        families.iter().max_by_key(here).filter(|family| here(family).is_some())
    };
    (0..parts.len()).filter_map(|first| Some((parts[first].at, longest(first)?))).collect()
}

/// Whether parts of a text are a name, however it is written: `acme_video`, `AcmeVideo`, `Acme-Video`. Of a number at its
/// end the first digits count (`sd35` is of `sd3`).
fn begin(parts: &[Part], name: &str) -> bool {
    let mut rest = name;
    for (i, part) in parts.iter().enumerate() {
        if i > 0 && !part.follows {
            return false;
        }
        match rest.strip_prefix(part.text.as_str()) {
            Some("") => return true,
            Some(more) => rest = more,
            None => {
                let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
                return is_number && part.text.starts_with(rest);
            }
        }
    }
    false
}

/// A word of a compound, or a number.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The place of its first character.
    at: usize,
    /// In small letters; a number without its point.
    text: String,
    /// Whether no more than a hyphen or the like is between it and the part before it.
    follows: bool,
}

/// The words that a text consists of. A capital begins one, unless all are capitals.
fn parts(text: &str) -> Vec<Part> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts: Vec<Part> = Vec::new();
    let (mut at, mut end) = (0, 0);
    while at < chars.len() {
        let next = part_end(&chars, at);
        if next == at {
            at += 1;
            continue;
        }
        let own: String = chars[at..next].iter().collect::<String>().to_ascii_lowercase();
        let gap: String = chars[end..at].iter().collect();
        let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
        match parts.last_mut() {
            Some(last) if gap == "." && is_number(&last.text) && is_number(&own) => last.text += &own,
            _ => parts.push(Part {
                at,
                text: own,
                follows: matches!(gap.as_str(), "" | "_" | "-" | " " | "."),
            }),
        }
        (at, end) = (next, next);
    }
    parts
}

/// Where the word or number that begins at a place ends; that place itself if none does.
fn part_end(chars: &[char], at: usize) -> usize {
    let run = |from: usize, is: fn(&char) -> bool| from + chars[from..].iter().take_while(|c| is(c)).count();
    let digits = run(at, char::is_ascii_digit);
    let capitals = run(at, char::is_ascii_uppercase);
    if digits > at {
        return digits;
    }
    let small = run(capitals, char::is_ascii_lowercase);
    // The last of several capitals begins the next word.
    if capitals > at + 1 && small > capitals { capitals - 1 } else { small }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: (&str, &str) =
        ("crates/models/src/diffusion/acme/family.rs", "//! Acme.\npub const NAME: u8 = 0;\n");

    const GENERATION: (&str, &str) =
        ("crates/models/src/diffusion/acme2/family.rs", "//! Acme 2.\npub const NAME: u8 = 0;\n");
    const COMPOUND: (&str, &str) = (
        "crates/models/src/diffusion/video_saw/family.rs",
        "//! Saws.\npub const FAMILY: Family = Family { name: \"Bandsaw 4.5\" };\n",
    );

    fn complaints(path: &str, text: &str) -> usize {
        check(&Workspace::of_files(&[FAMILY, GENERATION, COMPOUND, (path, text)])).len()
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
        let test = "//! Code.\n#[cfg(test)]\nmod tests {\n    fn acme() {}\n}\n";
        assert_eq!(complaints("crates/nodes/src/vae.rs", test), 0);
    }

    #[test]
    fn numbers_behind_a_name_do_not_hide_it() {
        for text in ["acme1-dev", "acme15", "ACME.1", "Acme 2.1", "EmptyAcme15Latent"] {
            let code = format!("//! Code.\nconst FILE: &str = \"{text}\";\n");
            assert_eq!(complaints("crates/nodes/src/vae.rs", &code), 1, "{text}");
        }
        // A later generation is a family of its own, which is to be found in its own place.
        let later = "//! Code.\nconst FILE: &str = \"acme2 and Acme 2.5\";\n";
        assert_eq!(complaints("crates/nodes/src/families/acme2.rs", later), 0);
        assert_eq!(complaints("crates/nodes/src/families/acme.rs", later), 1);
    }

    #[test]
    fn a_name_of_two_words_is_found_however_it_is_written() {
        for word in ["video_saw", "VideoSaw", "EmptyVideoSaw15Latent", "VIDEO_SAW"] {
            let code = format!("//! Code.\nfn f() {{ let {word} = 1; }}\n");
            assert_eq!(complaints("crates/nodes/src/vae.rs", &code), 1, "{word}");
        }
        for (text, found) in [
            ("Video-Saw", 1),
            ("a video saw", 1),
            ("Bandsaw 4.5", 1),
            ("bandsaw45", 1),
            ("Bandsaw 4", 0),
            ("a video, saw", 0),
            ("a video of a saw", 0),
        ] {
            let code = format!("//! Code.\nconst SAID: &str = \"{text}\";\n");
            assert_eq!(complaints("crates/nodes/src/vae.rs", &code), found, "{text}");
        }
    }

    #[test]
    fn words_of_compounds() {
        let texts = |text: &str| parts(text).into_iter().map(|part| part.text).collect::<Vec<_>>();
        assert_eq!(texts("EmptyLTXVLatentVideo"), ["empty", "ltxv", "latent", "video"]);
        assert_eq!(texts("ZImage v1.5-16b"), ["z", "image", "v", "15", "16", "b"]);
        assert_eq!(texts("¿s3?"), ["s", "3"]);
    }

    #[test]
    fn a_name_in_a_long_text_is_found_in_its_own_line() {
        let code = "//! Code.\nconst SAID: &str = \"one\n two\n acme\";\n";
        let findings = check(&Workspace::of_files(&[FAMILY, ("crates/nodes/src/vae.rs", code)]));
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4]);
    }
}
