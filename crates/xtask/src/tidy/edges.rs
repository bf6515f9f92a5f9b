//! The order of the crates: each may depend only on those above it. The order is written down here
//! once, crates that are still to come included.

use super::{BINARY_CRATE, TOOL_CRATES, manifest};
use crate::findings::Finding;
use crate::workspace::{Crate, Dependency, DependencyKind, Workspace};

/// The crates from the ground up. A crate may use those of earlier rows; crates in one row do not
/// use each other.
pub(crate) const ORDER: &[&[&str]] = &[
    &["meta", "disk"],
    &["graph", "hub", "codec"],
    &["workflow"],
    &["checkpoint"],
    &["device"],
    &["device-cpu", "device-cuda"],
    &["tensor"],
    &["placement"],
    &["patch", "sampling"],
    &["residency"],
    &["models"],
    &["runtime"],
    &["media"],
    &["nodes"],
    &["nodes-testing", "engine"],
    &["cluster"],
    &["server"],
    &["gantry"],
    &["testkit"],
    &["golden", "conformance"],
    &["xtask"],
];

/// The crates that implement devices. Only the binary and the tools name them; all others speak to
/// a device through the `device` crate.
const BACKENDS: &[&str] = &["device-cpu", "device-cuda"];

/// Edges that the order would allow and that are forbidden all the same: from, to, and why.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("placement", "checkpoint", "`placement` plans from numbers and reads no files"),
    ("placement", "device", "`placement` plans from numbers and asks no device"),
    ("placement", "tensor", "`placement` plans from numbers and computes no tensors"),
    ("golden", "nodes", "`golden` reads reference values; whoever runs the workflows hands it what came out"),
    (
        "golden",
        "runtime",
        "`golden` reads reference values; whoever runs the workflows hands it what came out",
    ),
    ("golden", "engine", "`golden` reads reference values and runs nothing"),
    ("golden", "server", "`golden` reads reference values and serves nothing"),
    ("conformance", "models", "`conformance` is about single operations; models have their reference cases"),
    (
        "server",
        "nodes-testing",
        "the test nodes are for the binary, which adds them when asked, and for tests",
    ),
];

/// Crates of fixtures, reference values and cases, which tests of every crate may use.
const FIXTURES: &[&str] = &["testkit", "golden", "conformance"];

/// Edges that go against the order and are allowed all the same: from, to. The binary's self-test and
/// measurements take their cases and inputs from these; nothing that runs a model may.
const ALLOWED: &[(&str, &str)] =
    &[(BINARY_CRATE, "testkit"), (BINARY_CRATE, "golden"), (BINARY_CRATE, "conformance")];

/// Edges that only tests have: from, to. Patch files are for the layers of families, whose names are theirs.
const TESTS_ONLY: &[(&str, &str)] = &[("patch", "models")];

/// Finds crates that the order does not know, and dependencies that go against it.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for user in &workspace.crates {
        if row(&user.name).is_none() {
            let text = format!(
                "`{}` has no place in the order of crates; add it to ORDER in crates/xtask/src/tidy/edges.rs",
                user.name
            );
            findings.push(Finding::error(&user.manifest, 1, text));
            continue;
        }
        for used in user.dependencies.iter().filter(|used| used.ours) {
            if let Some(reason) = refusal(user, used) {
                let manifest_text = workspace.file(&user.manifest).map_or("", |file| file.text.as_str());
                let line = manifest::line_of(manifest_text, used);
                let text = format!("`{}` must not depend on `{}`: {reason}", user.name, used.name);
                findings.push(Finding::error(&user.manifest, line, text));
            }
        }
    }
    findings
}

/// Why `user` may not depend on `used`, if it may not. Unknown crates are reported on their own.
fn refusal(user: &Crate, used: &Dependency) -> Option<String> {
    let dev = used.kind == DependencyKind::Dev;
    if (dev && FIXTURES.contains(&used.name.as_str()))
        || ALLOWED.contains(&(user.name.as_str(), used.name.as_str()))
        || (dev && TESTS_ONLY.contains(&(user.name.as_str(), used.name.as_str())))
    {
        return None;
    }
    let (user_row, used_row) = (row(&user.name)?, row(&used.name)?);
    // A test may compare a crate with its neighbour, as device-cuda does with device-cpu.
    let below = used_row < user_row || (dev && used_row == user_row);
    if !below {
        return Some("it is not above it in the order of docs/ARCHITECTURE.md; turn the edge around, or move what is shared up".to_owned());
    }
    if dev {
        return None;
    }
    let names_backends = user.name == BINARY_CRATE || TOOL_CRATES.contains(&user.name.as_str());
    if BACKENDS.contains(&used.name.as_str()) && !names_backends {
        return Some("only the binary names concrete backends; go through `device`".to_owned());
    }
    FORBIDDEN
        .iter()
        .find(|(from, to, _)| *from == user.name && *to == used.name)
        .map(|(_, _, why)| (*why).to_owned())
}

fn row(name: &str) -> Option<usize> {
    ORDER.iter().position(|names| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::fixtures::{ours, theirs};

    fn check_edge(user: &str, used: &str, kind: DependencyKind) -> Vec<Finding> {
        check(&Workspace::of_files(&[]).with_crate(user, &[ours(used, kind)]))
    }

    #[test]
    fn edges_go_upward_only() {
        assert!(check_edge("tensor", "device", DependencyKind::Normal).is_empty());
        assert!(check_edge("gantry", "device-cuda", DependencyKind::Normal).is_empty());
        assert_eq!(check_edge("device", "tensor", DependencyKind::Normal).len(), 1);
        assert_eq!(check_edge("meta", "checkpoint", DependencyKind::Build).len(), 1);
    }

    #[test]
    fn neighbours_do_not_use_each_other_except_in_tests() {
        assert_eq!(check_edge("device-cuda", "device-cpu", DependencyKind::Normal).len(), 1);
        assert!(check_edge("device-cuda", "device-cpu", DependencyKind::Dev).is_empty());
    }

    #[test]
    fn tests_of_any_crate_may_use_fixtures() {
        for fixtures in FIXTURES {
            assert!(check_edge("meta", fixtures, DependencyKind::Dev).is_empty());
            assert_eq!(check_edge("meta", fixtures, DependencyKind::Normal).len(), 1);
        }
    }

    #[test]
    fn the_binary_may_use_fixtures_for_its_self_test() {
        for fixtures in FIXTURES {
            assert!(check_edge("gantry", fixtures, DependencyKind::Normal).is_empty());
            assert_eq!(check_edge("server", fixtures, DependencyKind::Normal).len(), 1);
        }
        assert!(check_edge("golden", "testkit", DependencyKind::Normal).is_empty());
        let findings = check_edge("golden", "nodes", DependencyKind::Normal);
        assert!(findings[0].text.contains("hands it what came out"), "{findings:?}");
        assert_eq!(check_edge("testkit", "xtask", DependencyKind::Normal).len(), 1);
    }

    #[test]
    fn only_the_binary_and_the_tools_name_backends() {
        assert_eq!(check_edge("tensor", "device-cpu", DependencyKind::Normal).len(), 1);
        assert!(check_edge("tensor", "device-cpu", DependencyKind::Dev).is_empty());
        assert!(check_edge("testkit", "device-cpu", DependencyKind::Normal).is_empty());
        assert_eq!(check_edge("conformance", "device-cpu", DependencyKind::Normal).len(), 1);
        assert!(check_edge("conformance", "device-cpu", DependencyKind::Dev).is_empty());
    }

    #[test]
    fn placement_asks_no_device() {
        let findings = check_edge("placement", "device", DependencyKind::Normal);
        assert!(findings[0].text.contains("asks no device"), "{findings:?}");
        assert!(check_edge("placement", "meta", DependencyKind::Normal).is_empty());
    }

    #[test]
    fn an_unknown_crate_is_reported() {
        let findings = check(&Workspace::of_files(&[]).with_crate("novel", &[]));
        assert!(findings[0].text.contains("no place in the order"), "{findings:?}");
    }

    #[test]
    fn others_crates_are_no_edges_here() {
        let workspace =
            Workspace::of_files(&[]).with_crate("meta", &[theirs("server", DependencyKind::Normal)]);
        assert!(check(&workspace).is_empty());
    }

    #[test]
    fn the_finding_points_at_the_line() {
        let manifest =
            ("crates/device/Cargo.toml", "[dependencies]\nmeta.workspace = true\ntensor.workspace = true\n");
        let workspace =
            Workspace::of_files(&[manifest]).with_crate("device", &[ours("tensor", DependencyKind::Normal)]);
        let findings = check(&workspace);
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("crates/device/Cargo.toml", 3));
    }
}
