//! The pictures in docs/pictures, against what the program draws by the commands that the guides show.
//! `WRITE_PICTURES=1 cargo test -p gantry --test guides pictures` writes them.

use std::collections::BTreeSet;

use crate::flags::Flags;
use crate::world::World;
use crate::{command, demo_files, documents, is_shell, ours, shell};

/// The commands of all guides that draw a picture, and which.
fn drawing() -> Vec<(shell::Line, String)> {
    let mut drawing = Vec::new();
    for document in documents() {
        for block in
            document.blocks.iter().filter(|block| is_shell(block) && block.text.contains("--picture"))
        {
            for line in shell::lines(&block.text).unwrap() {
                let at = line.words.iter().position(|word| word == "--picture");
                let picture = at.and_then(|at| line.words.get(at + 1)).cloned();
                drawing.extend(picture.map(|picture| (line, picture)));
            }
        }
    }
    drawing
}

#[test]
fn pictures_are_what_the_guides_commands_draw() {
    let (world, flags) = (World::make(), Flags::of_program());
    let root = demo_files::root();
    let writing = std::env::var_os("WRITE_PICTURES").is_some();
    let mut drawn = BTreeSet::new();
    for (line, path) in drawing() {
        let Some(name) = path.strip_prefix("docs/pictures/") else { continue };
        command(&world, &flags, &line, ours(&line.words).unwrap()).unwrap();
        let picture = std::fs::read_to_string(world.path().join(&path)).unwrap();
        if writing {
            std::fs::create_dir_all(root.join("docs/pictures")).unwrap();
            std::fs::write(root.join(&path), &picture).unwrap();
        }
        let committed = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        assert!(committed == picture, "{path}: the program draws another picture");
        command(&world, &flags, &line, ours(&line.words).unwrap()).unwrap();
        let again = std::fs::read_to_string(world.path().join(&path)).unwrap();
        assert!(again == picture, "{path}: the same plan was drawn in two ways");
        drawn.insert(name.to_owned());
    }
    let files = std::fs::read_dir(root.join("docs/pictures")).unwrap();
    let files: BTreeSet<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg") && !name.starts_with("bench-"))
        .collect();
    assert!(drawn.len() >= 6 && files == drawn, "in the folder {files:?}, by the guides' commands {drawn:?}");
}
