//! What the guides and the README say is true: their commands run, their flags, files, routes, node classes and
//! error messages exist, and the pictures are what the program draws.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configuration;
#[path = "../demo_files/mod.rs"]
mod demo_files;
mod flags;
mod markdown;
mod messages;
mod moving;
mod pictures;
mod shell;
mod world;

use std::path::Path;
use std::process::Command;

use flags::Flags;
use markdown::{Block, Document};
use shell::Line;
use world::World;

/// Commands that take minutes, need a GPU or the network: their flags are checked, and they are not run.
const NOT_RUN: [&str; 3] = ["selftest", "bench", "pull"];
/// Programs that guides may name besides ours.
const OTHER_PROGRAMS: [&str; 6] = ["bash", "cargo", "docker", "pip", "python3", "sh"];

/// README, guides and the examples' page.
fn documents() -> Vec<Document> {
    let root = demo_files::root();
    let mut paths = vec!["README.md".to_owned(), "examples/README.md".to_owned()];
    for entry in std::fs::read_dir(root.join("docs/guides")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.ends_with(".md"), "docs/guides/{name} is no guide");
        paths.push(format!("docs/guides/{name}"));
    }
    paths.sort();
    assert!(paths.len() >= 10, "{paths:?}");
    let read = |path: &String| Document::parse(path, &std::fs::read_to_string(root.join(path)).unwrap());
    paths.iter().map(read).collect()
}

/// What follows `gantry`, or `cargo run --release --`, in a command.
fn ours(words: &[String]) -> Option<&[String]> {
    let cargo = ["cargo", "run", "--release", "--"];
    match words {
        [first, rest @ ..] if first == "gantry" => Some(rest),
        [a, b, c, d, rest @ ..] if [a, b, c, d].iter().zip(cargo).all(|(word, want)| *word == want) => {
            Some(rest)
        }
        _ => None,
    }
}

fn is_shell(block: &Block) -> bool {
    block.info.split(' ').next() == Some("sh")
}

#[test]
fn every_command_runs_and_prints_what_is_shown() {
    let (world, flags) = (World::make(), Flags::of_program());
    let (mut faults, mut ran) = (Vec::new(), 0);
    for document in documents() {
        for (index, block) in document.blocks.iter().enumerate() {
            let place = format!("{}:{}", document.path, block.line);
            let outcome = match block.info.split(' ').next() {
                Some("sh") if block.text.contains("curl ") => script(&world, "sh", "-c", block),
                Some("python") => script(&world, "python3", "-c", block),
                Some("js") => script(&world, "node", "--experimental-websocket", block),
                Some("sh") => commands(&world, &flags, block),
                _ => continue,
            };
            ran += 1;
            let shown = document.blocks.get(index + 1).filter(|next| next.info == "text");
            match (outcome, block.info.ends_with("fails")) {
                (Ok(_), true) => faults.push(format!("{place}: should fail and does not")),
                (Err(told), false) => faults.push(format!("{place}: {told}")),
                (Ok(told) | Err(told), _) => {
                    faults.extend(shown.and_then(|shown| missing(&shown.text, &told)).map(|line| {
                        format!("{place}: shows '{line}', which is not in what it prints:\n{told}")
                    }));
                }
            }
        }
    }
    assert!(ran > 30, "only {ran} blocks were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Runs the commands of a block; what they print, or the first fault.
fn commands(world: &World, flags: &Flags, block: &Block) -> Result<String, String> {
    let mut told = String::new();
    for line in shell::lines(&block.text)? {
        let Some(words) = ours(&line.words) else {
            let program = line.words.first().map_or("", String::as_str);
            if !OTHER_PROGRAMS.contains(&program) {
                return Err(format!("{program} is no program that guides may name"));
            }
            let missing =
                line.words.iter().find(|word| is_path(word) && !demo_files::root().join(word).exists());
            if let Some(path) = missing {
                return Err(format!("{path} does not exist"));
            }
            continue;
        };
        told += &command(world, flags, &line, words)?;
    }
    Ok(told)
}

fn command(world: &World, flags: &Flags, line: &Line, words: &[String]) -> Result<String, String> {
    let borrowed: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(fault) = flags.fault(&borrowed) {
        return Err(fault);
    }
    let needs_a_card = borrowed.contains(&"--logical-gpus");
    if needs_a_card || NOT_RUN.iter().any(|name| borrowed.contains(name)) {
        return Ok(String::new());
    }
    world.gantry(line, words).map_err(|told| format!("gantry {}: {told}", borrowed.join(" ")))
}

/// Runs a block as a script, where there is the program for it; a machine may lack it.
fn script(world: &World, program: &str, flag: &str, block: &Block) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg(flag);
    if program == "node" {
        command.arg("-e");
    }
    command.arg(world.here(&block.text)).current_dir(world.path());
    let Ok(output) = command.output() else {
        println!("not run, for want of {program}: line {}", block.line);
        return Ok(String::new());
    };
    let told = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    let lacks_it =
        ["curl: not found", "bad option", "WebSocket is not defined", "No module named 'comfy_sdk'"];
    if lacks_it.iter().any(|text| told.contains(text)) {
        println!("not run, for want of a program: line {}", block.line);
        return Ok(told);
    }
    if output.status.success() { Ok(told) } else { Err(told) }
}

/// The first line that is shown and was not printed. A mark of omission stands for anything.
fn missing<'a>(shown: &'a str, printed: &str) -> Option<&'a str> {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let printed: Vec<String> = printed.lines().map(squeezed).collect();
    let is_there = |line: &str| {
        let line = squeezed(line);
        printed.iter().any(|printed| {
            let mut rest = printed.as_str();
            line.split('…').all(|part| {
                let found = rest.find(part.trim());
                found.inspect(|at| rest = &rest[at + part.trim().len()..]).is_some()
            })
        })
    };
    shown.lines().filter(|line| !line.trim().is_empty()).find(|line| !is_there(line))
}

#[test]
fn what_is_shown_is_compared() {
    let printed = "sim:0   4.00 GB  of 8.00 GB\npredicted 3 ms\n";
    assert_eq!(missing("sim:0 4.00 GB of 8.00 GB\n\npredicted … ms\n", printed), None);
    assert_eq!(missing("sim:0 5.00 GB\n", printed), Some("sim:0 5.00 GB"));
}

#[test]
fn a_wrong_command_in_a_guide_is_found() {
    let (world, flags) = (World::make(), Flags::of_program());
    let block = |text: &str| Block { info: "sh".to_owned(), text: text.to_owned(), line: 1 };
    assert!(commands(&world, &flags, &block("gantry inspect flux1-dev.safetensors\n")).is_ok());
    let fault =
        commands(&world, &flags, &block("gantry inspect flux1-dev.safetensors --deep\n")).unwrap_err();
    assert_eq!(fault, "gantry inspect has no flag --deep");
    // A slow command's flags are checked although it is not run.
    assert!(commands(&world, &flags, &block("gantry bench ops --devices cuda:0\n")).is_err());
    assert!(commands(&world, &flags, &block("gantry inspect missing.safetensors\n")).is_err());
    assert!(commands(&world, &flags, &block("rm -rf x\n")).is_err());
    assert!(commands(&world, &flags, &block("python3 examples/missing.py\n")).is_err());
    assert_eq!((world.status("GET", "/nonsense"), world.status("POST", "/nonsense")), (404, 404));
}

#[test]
fn flags_files_and_routes_that_are_named_exist() {
    let (world, flags, root) = (World::make(), Flags::of_program(), demo_files::root());
    let mut faults = Vec::new();
    for document in documents() {
        let folder = root.join(Path::new(&document.path).parent().unwrap());
        for link in &document.links {
            let target = link.text.split('#').next().unwrap();
            if !target.is_empty() && !target.starts_with("http") && !folder.join(target).exists() {
                faults.push(format!("{}:{}: {target} does not exist", document.path, link.line));
            }
        }
        for span in &document.spans {
            if let Some(fault) = span_fault(&span.text, &world, &flags, &root) {
                faults.push(format!("{}:{}: {fault}", document.path, span.line));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is wrong with a code span: a flag, a route or a file that does not exist.
fn span_fault(span: &str, world: &World, flags: &Flags, root: &Path) -> Option<String> {
    // A message quotes what may be anything.
    if span.contains('…') && !span.starts_with("gantry ") {
        return None;
    }
    let words: Vec<&str> = span.split_whitespace().collect();
    match *words.first()? {
        "gantry" => {
            let words: Vec<&str> = words[1..].iter().copied().filter(|word| *word != "…").collect();
            (!words.is_empty()).then(|| flags.fault(&words)).flatten()
        }
        flag if flag.starts_with("--") => {
            let flag = flag.split('=').next()?;
            let known = flags.known(flag) || is_comfys(flag, root);
            (!known).then(|| format!("no command has the flag {flag}"))
        }
        path if path.starts_with('/') && words.len() == 1 => {
            let path = path.split('?').next()?.replace(['{', '}'], "");
            let unknown = world.status("GET", &path) == 404 && world.status("POST", &path) == 404;
            unknown.then(|| format!("the server has no route {path}"))
        }
        path if words.len() == 1 && is_path(path) => {
            (!root.join(path).exists()).then(|| format!("{path} does not exist"))
        }
        _ => None,
    }
}

/// ComfyUI's flags that are taken and do nothing.
fn is_comfys(flag: &str, root: &Path) -> bool {
    let list = std::fs::read_to_string(root.join("crates/gantry/src/cli/comfy_flags.rs")).unwrap();
    list.contains(&format!("\"{flag}\""))
}

/// Whether a word is a path in the checkout, by its first folder.
fn is_path(word: &str) -> bool {
    let first = word.split('/').next().unwrap_or_default();
    word.contains('/') && ["docs", "examples", "crates", "tools", "assets"].contains(&first)
}

#[test]
fn a_wrong_flag_file_or_route_in_a_text_is_found() {
    let (world, flags, root) = (World::make(), Flags::of_program(), demo_files::root());
    let fault = |span: &str| span_fault(span, &world, &flags, &root);
    for fine in
        ["--sim-device 8gb@12gbps", "gantry plan", "/free", "/view", "docs/guides/README.md", "--lowvram"]
    {
        assert_eq!(fault(fine), None, "{fine}");
    }
    for wrong in ["--sim-devices 8gb", "gantry plans", "gantry plan FILE --pic", "/freed", "docs/guides/x.md"]
    {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn every_shell_block_says_so() {
    for document in documents() {
        for block in &document.blocks {
            let known = ["sh", "text", "python", "js", "json", "toml"];
            let language = block.info.split(' ').next().unwrap_or_default();
            assert!(
                known.contains(&language),
                "{}:{}: a block of '{}'",
                document.path,
                block.line,
                block.info
            );
            let has_ours = block.text.lines().any(|line| line.starts_with("gantry "));
            assert!(!has_ours || is_shell(block), "{}:{}: not marked as sh", document.path, block.line);
        }
    }
}
