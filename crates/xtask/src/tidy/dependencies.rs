//! Others' crates: each is named in one of ours, at the version of the workspace, and `anyhow`
//! stays in the binary.

use super::{BINARY_CRATE, TOOL_CRATES, manifest};
use crate::findings::Finding;
use crate::workspace::{Dependency, DependencyKind, Workspace};

/// A dependency that more than one crate may name.
struct Shared {
    name: &'static str,
    /// The crates that may name it; empty for all.
    users: &'static [&'static str],
    /// Why one crate cannot wrap it for the others.
    why: &'static str,
}

const SHARED: &[Shared] = &[
    Shared { name: "thiserror", users: &[], why: "every crate has its own error enum" },
    Shared { name: "serde", users: &[], why: "values derive their own serialisation" },
    Shared {
        name: "serde_json",
        users: &["checkpoint", "models", "runtime", "nodes", "engine", "cluster", "server", BINARY_CRATE],
        why: "safetensors headers, tokenizer files, what was measured of a machine, the text of saved pictures, the records of the queue, the states of a shared one, the wire \
              protocol and `--json` are subjects of their own; no other crate knows JSON",
    },
    Shared { name: "tokio", users: &["cluster", "server"], why: "both speak to networks by it" },
    Shared { name: "futures-util", users: &["cluster", "server"], why: "both read streams of messages" },
    Shared {
        name: "indexmap",
        users: &["graph", "workflow", "runtime", "nodes", "nodes-testing", "engine", "server"],
        why: "the order of inputs and nodes is part of what a workflow says, and `graph` speaks in such maps",
    },
    Shared {
        name: "rayon",
        users: &["device-cpu", "nodes"],
        why: "kernels share their work out in one, filters of pictures in the other; both use its one pool of threads",
    },
    Shared {
        name: "blake3",
        users: &["cluster", "server"],
        why: "files that machines share are named by their sums in one, assets have theirs in the other",
    },
    Shared {
        name: "sha2",
        users: &["hub", "device-cuda"],
        why: "files from the internet are checked in one, kernels are kept under the sums of their sources in the other",
    },
    Shared {
        name: "libc",
        users: &["checkpoint", "device-cpu"],
        why: "one handles the signal of mapped files that lose their pages, the other takes memory for tensors from the system and gives it back",
    },
    Shared {
        name: "memmap2",
        users: &["checkpoint", "device-cuda"],
        why: "files are mapped in one, the host memory that a GPU copies from in the other",
    },
    Shared {
        name: "half",
        users: &[],
        why: "f16 and bf16 are element types wherever values are read or computed",
    },
    Shared {
        name: "tracing",
        users: &[],
        why: "every crate may log; the binary alone decides where it goes",
    },
];

/// Finds dependencies that are in the wrong crate, in too many crates, or at a version of their own.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for user in &workspace.crates {
        let manifest_text = workspace.file(&user.manifest).map_or("", |file| file.text.as_str());
        for entry in manifest::entries(manifest_text) {
            if !entry.value.contains("workspace") {
                let text = format!(
                    "`{}` has a version or path of its own; name it in the root Cargo.toml and write `{}.workspace = true` here",
                    entry.key, entry.key
                );
                findings.push(Finding::error(&user.manifest, entry.line, text));
            }
        }
        for used in user.dependencies.iter().filter(|used| counts(&user.name, used)) {
            if let Some(text) = refusal(workspace, &user.name, used) {
                findings.push(Finding::error(&user.manifest, manifest::line_of(manifest_text, used), text));
            }
        }
    }
    findings
}

/// Whether the dependency is one of the product's: not ours, not for tests, not a tool's.
fn counts(user: &str, used: &Dependency) -> bool {
    !used.ours && used.kind != DependencyKind::Dev && !TOOL_CRATES.contains(&user)
}

fn refusal(workspace: &Workspace, user: &str, used: &Dependency) -> Option<String> {
    if used.name == "anyhow" && user != BINARY_CRATE {
        return Some(
            "`anyhow` is for the binary and xtask; give the crate's error enum a variant instead".to_owned(),
        );
    }
    if let Some(shared) = SHARED.iter().find(|shared| shared.name == used.name) {
        let allowed = shared.users.is_empty() || shared.users.contains(&user);
        return (!allowed).then(|| {
            format!(
                "`{}` is for {} only ({}); move the code that needs it there",
                used.name,
                listing(shared.users),
                shared.why
            )
        });
    }
    let users: Vec<&str> = workspace
        .crates
        .iter()
        .filter(|other| {
            other.dependencies.iter().any(|theirs| theirs.name == used.name && counts(&other.name, theirs))
        })
        .map(|other| other.name.as_str())
        .collect();
    (users.len() > 1).then(|| {
        format!(
            "`{}` is named in {}; let one crate wrap it, or add it with a reason to SHARED in crates/xtask/src/tidy/dependencies.rs",
            used.name,
            listing(&users)
        )
    })
}

fn listing(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::fixtures::{ours, theirs};

    const NORMAL: DependencyKind = DependencyKind::Normal;

    #[test]
    fn a_dependency_has_one_home() {
        let once = Workspace::of_files(&[]).with_crate("checkpoint", &[theirs("sysinfo", NORMAL)]);
        assert!(check(&once).is_empty());
        let findings = check(&once.with_crate("device-cpu", &[theirs("sysinfo", NORMAL)]));
        assert_eq!(findings.len(), 2, "both places are named: {findings:?}");
        assert!(findings[0].text.contains("`checkpoint`, `device-cpu`"), "{findings:?}");
    }

    #[test]
    fn tests_and_tools_do_not_count() {
        let workspace = Workspace::of_files(&[])
            .with_crate("meta", &[theirs("proptest", DependencyKind::Dev)])
            .with_crate("device", &[theirs("proptest", DependencyKind::Dev)])
            .with_crate("device-cuda", &[theirs("sha2", NORMAL)])
            .with_crate("testkit", &[theirs("sha2", NORMAL), theirs("anyhow", NORMAL)]);
        assert!(check(&workspace).is_empty());
    }

    #[test]
    fn shared_dependencies_may_be_in_several_crates() {
        let workspace = Workspace::of_files(&[])
            .with_crate("meta", &[theirs("thiserror", NORMAL)])
            .with_crate("device", &[theirs("thiserror", NORMAL), ours("meta", NORMAL)]);
        assert!(check(&workspace).is_empty());
    }

    #[test]
    fn json_stays_where_it_belongs() {
        let allowed = Workspace::of_files(&[])
            .with_crate("checkpoint", &[theirs("serde_json", NORMAL)])
            .with_crate("gantry", &[theirs("serde_json", NORMAL)]);
        assert!(check(&allowed).is_empty());
        let findings = check(&allowed.with_crate("placement", &[theirs("serde_json", NORMAL)]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "crates/placement/Cargo.toml");
    }

    #[test]
    fn anyhow_is_for_binaries() {
        let binary = Workspace::of_files(&[]).with_crate("gantry", &[theirs("anyhow", NORMAL)]);
        assert!(check(&binary).is_empty());
        let library = Workspace::of_files(&[]).with_crate("device", &[theirs("anyhow", NORMAL)]);
        assert_eq!(check(&library).len(), 1);
    }

    #[test]
    fn versions_come_from_the_workspace() {
        let manifest = "[dependencies]\nhalf.workspace = true\nmeta = { workspace = true }\nlibc = \"1\"\n";
        let workspace = Workspace::of_files(&[("crates/meta/Cargo.toml", manifest)]).with_crate("meta", &[]);
        let findings = check(&workspace);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].line, 4);
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(SHARED.iter().all(|shared| !shared.why.is_empty()));
    }
}
