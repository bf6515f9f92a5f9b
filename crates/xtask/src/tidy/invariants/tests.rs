//! What every rule accepts and refuses, and a violation of each, planted in a copy of the workspace.

use super::*;

fn findings(path: &str, text: &str) -> Vec<Finding> {
    check(&Workspace::of_files(&[(path, text)]))
}

/// Each of these lines is a finding of its own; all of them together with their file's name.
#[track_caller]
fn refused(path: &str, lines: &[&str]) {
    for line in lines {
        let found = findings(path, &format!("//! A file.\n{line}\n"));
        assert_eq!(found.len(), 1, "{path}: {line}: {found:?}");
        assert_eq!((found[0].path.as_str(), found[0].line), (path, 2), "{line}");
    }
}

#[track_caller]
fn accepted(path: &str, lines: &[&str]) {
    for line in lines {
        let found = findings(path, &format!("//! A file.\n{line}\n"));
        assert!(found.is_empty(), "{path}: {line}: {found:?}");
    }
}

#[test]
fn memory_comes_through_the_ledger() {
    refused(
        "crates/device-cuda/src/ops/product.rs",
        &[
            "let memory = Pool::allocate(&runtime.pool, bytes)?;",
            "let memory = Pool :: allocate(pool, bytes)?;",
            "let parts = sizes.map(|bytes| Pool::allocate(pool, bytes));",
            "let memory = context.driver().allocate(bytes)?;",
            "let memory = PinnedMemory::allocate(context, bytes)?;",
            "call!(self.cuMemAlloc_v2(&mut address, bytes))?;",
        ],
    );
    refused("crates/residency/src/ring.rs", &["let memory = self.backend.allocate_pinned(bytes)?;"]);
    refused("crates/gantry/src/machine.rs", &["let memory = backend.allocate(bytes)?;"]);
    refused("crates/device-cpu/src/ops/gemm.rs", &["use std::alloc::alloc;"]);
    accepted(
        "crates/residency/src/ring.rs",
        &[
            "let buffer = device.allocate(bytes)?;",
            "let buffer = self.allocate(&device, bytes)?;",
            "// Pool::allocate would go past the ledger.",
            "let text = \"Pool::allocate\";",
            "#[cfg(test)]\nmod tests {\n    fn f() { Pool::allocate(pool, 1); }\n}",
        ],
    );
    accepted("crates/device/src/device.rs", &["let memory = self.shared.backend.allocate(bytes)?;"]);
    accepted("crates/device-cuda/tests/on_card.rs", &["let memory = Pool::allocate(pool, bytes);"]);
}

#[test]
fn weights_travel_one_way() {
    refused(
        "crates/residency/src/session.rs",
        &[
            "lane.stream().read(&span, &mut bytes)?;",
            "stream.read(&span, &mut bytes)?;",
            "let values = merged.to_vec()?;",
        ],
    );
    refused("crates/patch/src/arithmetic.rs", &["let values = weight.tensor().to_vec()?;"]);
    accepted(
        "crates/residency/src/session.rs",
        &[
            "let specs = specs.to_vec();",
            "lane.stream().write(&span, &bytes)?;",
            "let guard = self.lock.read();",
            "let file = PatchFile::read(checkpoint)?;",
        ],
    );
    // Results of models are read: they are no weights.
    accepted("crates/models/src/vae/kl.rs", &["let picture = picture.to_vec()?;"]);
}

#[test]
fn one_crate_knows_file_formats() {
    refused(
        "crates/nodes/src/latent/files.rs",
        &[
            "map.insert(\"data_offsets\".to_owned(), offsets);",
            "let texts = header.get(\"__metadata__\");",
            "let model = metadata.str(\"tokenizer.ggml.model\");",
            "if bytes.starts_with(b\"GGUF\") {}",
        ],
    );
    accepted(
        "crates/nodes/src/latent/files.rs",
        &[
            "let name = \"UnetLoaderGGUF\";",
            "let is_legacy = class.contains(\"GGUF\");",
            "let name = \"flux1-dev.safetensors\";",
            "// As safetensors has it: data_offsets.",
        ],
    );
    accepted("crates/checkpoint/src/safetensors.rs", &["let offsets = \"data_offsets\";"]);
    accepted("crates/testkit/src/head.rs", &["let offsets = \"data_offsets\";"]);
}

#[test]
fn models_do_not_know_how_weights_are_stored() {
    refused(
        "crates/models/src/vae/kl.rs",
        &[
            "use meta::Encoding;",
            "let layout = Layout::Ggml;",
            "match device.id().kind { DeviceKind::Cpu => {} }",
            "let text = \"a .gguf of it\";",
        ],
    );
    accepted(
        "crates/models/src/vae/kl.rs",
        &[
            "use meta::{DType, Shape};",
            "/// As GGUF converters write it.\nfn names() {}",
            "let layout = Layout::Native;",
        ],
    );
    accepted("crates/tensor/src/weight.rs", &["use meta::Encoding;"]);
}

#[test]
fn one_crate_knows_the_wire() {
    refused(
        "crates/engine/src/record.rs",
        &[
            "data.insert(\"exception_message\".to_owned(), text);",
            "let name = \"execution_start\";",
            "let line = format!(\"{{\\\"number\\\":{number}}}\");",
            "let line = r#\"{\"number\": 7}\"#;",
        ],
    );
    refused("crates/gantry/src/commands/run.rs", &["let errors = &answer[\"node_errors\"];"]);
    refused(
        "crates/residency/src/snapshot.rs",
        &[
            "#[derive(serde::Serialize)]\nstruct Snapshot;",
            "#[derive(Clone, Serialize)]\nstruct Snapshot;",
            "impl Serialize for Snapshot {}",
        ],
    );
    // What is kept in a file is read again.
    accepted(
        "crates/placement/src/profile.rs",
        &["use serde::{Deserialize, Serialize};", "#[derive(Serialize, Deserialize)]\nstruct Profile;"],
    );
    accepted(
        "crates/engine/src/record.rs",
        &[
            "let node_errors = collect(prompt);",
            "let text = format!(\"{{{name}}}\");",
            "let text = \"a {word} in \\\"quotes\\\"\";",
            "let text = \"write {\\\"a\\\" and so on\";",
        ],
    );
    accepted("crates/server/src/wire/job.rs", &["let errors = json!({ \"node_errors\": errors });"]);
    accepted("crates/gantry/src/bench/served/client.rs", &["let told = &entry[\"exception_message\"];"]);
    accepted("crates/engine/src/store/encoding.rs", &["impl Serialize for PromptText<'_> {}"]);
}

#[test]
fn a_planted_violation_of_each_invariant_fails_tidy() {
    let tree = [
        ("crates/device-cuda/src/ops/norm.rs", "//! Norms.\nfn f() { launch.scratch(1); }\n"),
        ("crates/residency/src/ring.rs", "//! A ring.\nfn f() { stream.copy(&to, &from)?; }\n"),
        ("crates/nodes/src/lora.rs", "//! LoRA.\nfn f() { Checkpoint::open(path)?; }\n"),
        ("crates/models/src/claims.rs", "//! Claims.\nuse meta::Shape;\n"),
        ("crates/engine/src/job.rs", "//! Jobs.\nfn f() { JobEvent::Ended { last: None } }\n"),
    ];
    let errors = |files: &[(&str, &str)]| {
        let mut found = crate::tidy::check_all(&Workspace::of_files(files));
        found.retain(|finding| finding.text.contains("breaks the invariant"));
        found
    };
    assert!(errors(&tree).is_empty(), "the tree keeps the invariants");
    let planted = [
        (LEDGER, "fn g() { Pool::allocate(pool, 1); }"),
        (ONE_WAY, "fn g() { lane.stream().read(&span, &mut bytes)?; }"),
        (FORMATS, "fn g() { header.insert(\"data_offsets\", place); }"),
        (MODELS, "use meta::Encoding;"),
        (WIRE, "fn g() { map.insert(\"exception_message\", text); }"),
    ];
    for (place, (invariant, line)) in planted.into_iter().enumerate() {
        let text = format!("{}{line}\n", tree[place].1);
        let mut broken = tree;
        broken[place].1 = &text;
        let found = errors(&broken);
        assert_eq!(found.len(), 1, "{invariant}: {found:?}");
        assert_eq!((found[0].path.as_str(), found[0].line), (tree[place].0, 3));
        assert_eq!(found[0].severity, crate::findings::Severity::Error);
        assert!(found[0].text.contains(invariant), "{found:?}");
    }
}

/// The invariants in the words of docs/ARCHITECTURE.md.
const LEDGER: &str = "No bytes reach a device before its ledger has them";
const ONE_WAY: &str = "Weight bytes travel only toward the computing device and are never copied back";
const FORMATS: &str = "Only `checkpoint` knows a file format";
const MODELS: &str = "`models` names no device kind, storage encoding or file format";
const WIRE: &str = "Only `server` knows wire JSON";

#[test]
fn the_page_says_that_tidy_holds_them() {
    let page = include_str!("../../../../../docs/ARCHITECTURE.md");
    for rule in RULES {
        let row = page.lines().find(|line| line.contains(&format!("| {} |", rule.invariant)));
        assert!(row.is_some_and(|row| row.contains("tidy")), "{}: {row:?}", rule.invariant);
    }
}

#[test]
fn every_place_has_a_reason_and_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for place in RULES.iter().flat_map(|rule| rule.places) {
        assert!(!place.why.is_empty(), "{}", place.path);
        // Files of one name wherever they are: an idle one is found by the check itself.
        let exists = place.path.starts_with('*') || root.join(place.path).exists();
        assert!(exists, "{} is excused and does not exist", place.path);
    }
}

#[test]
fn a_place_that_needs_no_excuse_is_found() {
    let count = RULES.iter().map(|rule| rule.places.len()).sum::<usize>();
    let table = (TABLE, "//! The table.\n");
    let needs = ("crates/device/src/device.rs", "//! A device.\nfn f() { backend.allocate(bytes)?; }\n");
    assert_eq!(check(&Workspace::of_files(&[table])).len(), count);
    let found = check(&Workspace::of_files(&[table, needs]));
    assert_eq!(found.len(), count - 1);
    assert!(found.iter().all(|finding| !finding.text.contains("crates/device/src/device.rs")), "{found:?}");
}
