//! Documents that must be true: the code map lists exactly the crates there are, the README's test
//! command is the one that continuous integration runs, and what a document points at exists.

use super::edges::ORDER;
use crate::findings::Finding;
use crate::workspace::{SourceFile, Workspace};

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
const CODE_MAP: &str = "## Code map";
const PLANNED: &str = "### Planned";
const README: &str = "README.md";
const CI: &str = ".ci/run";
const TEST_COMMAND: &str = "cargo test --workspace";

/// Finds statements of the documents that the tree contradicts.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = code_map(workspace);
    findings.extend(test_command(workspace));
    for file in workspace.files.iter().filter(|file| file.path.ends_with(".md")) {
        findings.extend(dead_references(workspace, file));
    }
    findings
}

/// Compares the code map with the crates of the workspace and with the order of crates.
fn code_map(workspace: &Workspace) -> Vec<Finding> {
    let Some(file) = workspace.file(ARCHITECTURE) else {
        return vec![Finding::error(ARCHITECTURE, 1, "the file is missing; it holds the code map")];
    };
    let map = CodeMap::read(&file.text);
    let exists = |name: &str| workspace.crates.iter().any(|here| here.name == name);
    let mut findings = Vec::new();
    let mut complain = |line: usize, text: String| findings.push(Finding::error(ARCHITECTURE, line, text));
    for (line, name) in map.existing.iter().filter(|(_, name)| !exists(name)) {
        complain(
            *line,
            format!("the code map lists `{name}`, which does not exist; remove it or list it as planned"),
        );
    }
    for (line, name) in map.planned.iter().filter(|(_, name)| exists(name)) {
        complain(*line, format!("`{name}` is listed as planned but exists; move it to the code map"));
    }
    for here in
        workspace.crates.iter().filter(|here| !map.existing.iter().any(|(_, name)| name == &here.name))
    {
        complain(map.line, format!("the code map does not list `{}`; add a row for it", here.name));
    }
    for name in ORDER.iter().copied().flatten().filter(|name| !exists(name)) {
        if !map.planned.iter().any(|(_, planned)| planned == name) {
            complain(
                map.line,
                format!("`{name}` is in the order of crates but neither exists nor is listed as planned"),
            );
        }
    }
    findings
}

/// The crates that the document names, with their lines (counted from 1).
#[derive(Default)]
struct CodeMap {
    line: usize,
    existing: Vec<(usize, String)>,
    planned: Vec<(usize, String)>,
}

impl CodeMap {
    fn read(text: &str) -> CodeMap {
        let mut map = CodeMap { line: 1, ..CodeMap::default() };
        let (mut inside, mut planned) = (false, false);
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if line.starts_with("## ") {
                inside = line.trim() == CODE_MAP;
                planned = false;
                if inside {
                    map.line = number;
                }
            } else if line.starts_with("### ") {
                planned = line.starts_with(PLANNED);
            } else if inside && planned {
                map.planned.extend(listed_crates(line).into_iter().map(|name| (number, name)));
            } else if inside && line.starts_with('|') {
                let cell = line.trim_start_matches('|').split('|').next().unwrap_or_default();
                map.existing.extend(quoted(cell).into_iter().map(|name| (number, name.to_owned())));
            }
        }
        map
    }
}

/// The crates at the start of a list item: "1. `patch`, `sampling`: …" names two.
fn listed_crates(line: &str) -> Vec<String> {
    let item = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let Some(item) = item.strip_prefix(". ").or_else(|| item.strip_prefix("- ")) else { return Vec::new() };
    let head = item.split(':').next().unwrap_or(item);
    quoted(head).into_iter().map(str::to_owned).collect()
}

/// The README's test command stands in the README and is the first step of continuous integration.
fn test_command(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    let readme = workspace.file(README).map_or("", |file| file.text.as_str());
    if !readme.lines().any(|line| line.trim() == TEST_COMMAND) {
        findings.push(Finding::error(
            README,
            1,
            format!("the test command `{TEST_COMMAND}` is missing; write it on a line of its own"),
        ));
    }
    let ci = workspace.file(CI).map_or("", |file| file.text.as_str());
    let mut steps = ci.lines().enumerate().filter(|(_, line)| line.starts_with("step "));
    match steps.next() {
        Some((_, line)) if line.ends_with(&format!(" {TEST_COMMAND}")) => {}
        Some((index, _)) => {
            findings.push(Finding::error(
                CI,
                index + 1,
                format!("the first step is not the README's `{TEST_COMMAND}`; put that first"),
            ));
        }
        None => findings.push(Finding::error(
            CI,
            1,
            format!("there is no step; the first must run `{TEST_COMMAND}`"),
        )),
    }
    findings
}

/// Links and quoted paths that lead nowhere.
fn dead_references(workspace: &Workspace, file: &SourceFile) -> Vec<Finding> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let exists = |path: &str| workspace.paths.iter().any(|known| known == path.trim_end_matches('/'));
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in links(line).into_iter().filter(|target| is_local(target)) {
            let path = target.split('#').next().unwrap_or(target);
            if !exists(&join(folder, path)) {
                findings.push(Finding::error(
                    &file.path,
                    index + 1,
                    format!("the link to `{target}` leads nowhere; mend it"),
                ));
            }
        }
        for path in quoted(line).into_iter().filter(|quote| is_repository_path(quote)) {
            if !exists(path) {
                findings.push(Finding::error(
                    &file.path,
                    index + 1,
                    format!("`{path}` does not exist; mend the path"),
                ));
            }
        }
    }
    findings
}

/// The texts between pairs of backticks.
fn quoted(line: &str) -> Vec<&str> {
    let parts: Vec<&str> = line.split('`').collect();
    let pairs = parts.len().saturating_sub(1) / 2;
    parts.into_iter().skip(1).step_by(2).take(pairs).collect()
}

/// The targets of `[text](target)`.
fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

fn is_local(target: &str) -> bool {
    !target.is_empty()
        && !target.contains("://")
        && !target.starts_with(['#', '<'])
        && !target.starts_with("mailto:")
}

/// A quote that can only be meant as a place in this repository.
fn is_repository_path(quote: &str) -> bool {
    ["crates/", "docs/", ".ci/"].iter().any(|start| quote.starts_with(start))
        && !quote.contains(|c: char| c.is_whitespace() || "*<>{}…".contains(c))
}

/// The path that a link in `folder` leads to.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "# A\n\n## Code map\n\n| crate | place |\n|---|---|\n| `meta` | uses `nothing` |\n\
        | `device-cpu`, `device-cuda` | x |\n\n### Planned, in this order\n\n1. `placement`: uses `meta`\n\n## Next\n\n| `other` | x |\n";

    fn crates(names: &[&str], map: &str) -> Vec<Finding> {
        let workspace = Workspace::of_files(&[(ARCHITECTURE, map)]);
        code_map(&names.iter().fold(workspace, |workspace, name| workspace.with_crate(name, &[])))
    }

    fn texts(findings: &[Finding], part: &str) -> usize {
        findings.iter().filter(|finding| finding.text.contains(part)).count()
    }

    #[test]
    fn the_code_map_is_read() {
        let map = CodeMap::read(MAP);
        let names = |list: &[(usize, String)]| list.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&map.existing), ["meta", "device-cpu", "device-cuda"]);
        assert_eq!(names(&map.planned), ["placement"]);
        assert_eq!((map.line, map.existing[0].0), (3, 7));
    }

    #[test]
    fn crates_and_map_must_agree() {
        let agreeing = crates(&["meta", "device-cpu", "device-cuda"], MAP);
        assert_eq!(texts(&agreeing, "the code map"), 0, "{agreeing:?}");
        assert_eq!(
            texts(&crates(&["meta", "device-cpu", "device-cuda", "tensor"], MAP), "does not list `tensor`"),
            1
        );
        assert_eq!(
            texts(&crates(&["meta", "device-cpu"], MAP), "lists `device-cuda`, which does not exist"),
            1
        );
        assert_eq!(
            texts(&crates(&["meta", "placement"], MAP), "`placement` is listed as planned but exists"),
            1
        );
    }

    #[test]
    fn crates_to_come_are_listed_as_planned() {
        let findings = crates(&["meta"], MAP);
        assert_eq!(texts(&findings, "`server` is in the order of crates"), 1);
        assert_eq!(texts(&findings, "`placement` is in the order of crates"), 0);
    }

    #[test]
    fn a_missing_map_is_an_error() {
        assert_eq!(code_map(&Workspace::of_files(&[])).len(), 1);
    }

    #[test]
    fn integration_runs_the_readme_command_first() {
        let check_both =
            |readme: &str, ci: &str| test_command(&Workspace::of_files(&[(README, readme), (CI, ci)])).len();
        let readme = "```sh\ncargo test --workspace\n```\n";
        let step = "step \"tests\" cargo test --workspace\n";
        assert_eq!(check_both(readme, &format!("#!/bin/bash\n{step}step \"fmt\" cargo fmt\n")), 0);
        assert_eq!(check_both(readme, &format!("step \"fmt\" cargo fmt\n{step}")), 1);
        assert_eq!(check_both(readme, "step \"tests\" cargo test --workspace --release\n"), 1);
        assert_eq!(check_both("none", step), 1);
        assert_eq!(check_both(readme, "cargo fmt\n"), 1);
    }

    #[test]
    fn references_must_lead_somewhere() {
        let check_text = |text: &str| {
            let workspace = Workspace::of_files(&[
                ("docs/A.md", text),
                ("crates/meta/src/lib.rs", ""),
                ("README.md", ""),
            ]);
            dead_references(&workspace, workspace.file("docs/A.md").unwrap()).len()
        };
        assert_eq!(check_text("[a](../README.md#use) [b](A.md) [c](https://x.org/y) [d](#here)\n"), 0);
        assert_eq!(check_text("`crates/meta/src/lib.rs` `crates/meta/` `crates/*` `cargo test`\n"), 0);
        assert_eq!(check_text("[a](B.md)\n[b](../LICENSE)\n"), 2);
        assert_eq!(check_text("`crates/meta/src/gone.rs`\n"), 1);
        assert_eq!(check_text("```\n[a](B.md) `crates/gone`\n```\n"), 0);
    }
}
