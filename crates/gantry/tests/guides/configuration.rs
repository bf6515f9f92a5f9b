//! The guide to settings: its table is what the program prints, and its file is one that the program takes.
//! `WRITE_TABLE=1 cargo test -p gantry --test guides configuration` writes the table.

use std::process::Command;

use testkit::ScratchDir;

use crate::demo_files;
use crate::markdown::Document;

const GUIDE: &str = "docs/guides/configuration.md";
/// The table is the last thing of the guide, behind this heading.
const HEADING: &str = "## Every flag\n";

fn config(words: &[&str], file: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.arg("config").args(words).env("GANTRY_CONFIG", file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_table_is_what_the_program_prints() {
    let path = demo_files::root().join(GUIDE);
    let guide = std::fs::read_to_string(&path).unwrap();
    let (before, after) = guide.split_once(HEADING).unwrap();
    let at = after.find('|').unwrap_or(after.len());
    let written = format!("{before}{HEADING}{}{}", &after[..at], config(&["--markdown"], ""));
    if std::env::var_os("WRITE_TABLE").is_some() {
        std::fs::write(&path, &written).unwrap();
    } else {
        assert!(guide == written, "{GUIDE}: the program prints another table; see the top of this test");
    }
}

#[test]
fn the_file_is_taken() {
    let text = std::fs::read_to_string(demo_files::root().join(GUIDE)).unwrap();
    let document = Document::parse(GUIDE, &text);
    let block = document.blocks.iter().find(|block| block.info == "toml").unwrap();
    let dir = ScratchDir::new().unwrap();
    let file = dir.join("config.toml");
    std::fs::write(&file, &block.text).unwrap();
    let told = config(&[], file.to_str().unwrap());
    for key in block.text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key) {
        // Another name of a flag is shown as the flag itself.
        let flag = if key == "offline" { "disable-api-nodes" } else { key };
        assert!(told.contains(&format!("--{flag}")), "{key}: {told}");
    }
}
