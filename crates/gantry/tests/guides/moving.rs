//! The tables of the guide for people who come from ComfyUI-MultiGPU, against the classes that the server has.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::demo_files;
use crate::markdown::{Document, spans};
use crate::world::World;

/// A row: is the class here, and which inputs does the row name?
struct Row {
    line: usize,
    here: bool,
    inputs: Vec<String>,
}

/// The rows of tables whose second cell is `yes` or `no`, by class.
fn rows() -> BTreeMap<String, Row> {
    let path = "docs/guides/moving-from-comfyui-multigpu.md";
    let text = std::fs::read_to_string(demo_files::root().join(path)).unwrap();
    let mut rows = BTreeMap::new();
    for (line, cells) in Document::parse(path, &text).rows {
        let [class, here, inputs, ..] = cells.as_slice() else { continue };
        let (Some(class), true) = (spans(class).first().copied(), ["yes", "no"].contains(&here.as_str()))
        else {
            continue;
        };
        let inputs = spans(inputs).into_iter().map(str::to_owned).collect();
        let row = Row { line, here: here == "yes", inputs };
        assert!(rows.insert(class.to_owned(), row).is_none(), "{path}:{line}: {class} comes twice");
    }
    rows
}

/// The names of a class's inputs.
fn inputs(class: &Value) -> impl Iterator<Item = String> {
    let groups = ["required", "optional"].into_iter().filter_map(|group| class["input"][group].as_object());
    groups.flat_map(|group| group.keys().cloned())
}

#[test]
fn every_class_and_input_of_the_table_is_as_it_says() {
    let world = World::make();
    let classes: serde_json::Map<String, Value> = serde_json::from_str(&world.get("/object_info")).unwrap();
    let rows = rows();
    let mut faults = Vec::new();
    for (name, row) in &rows {
        match classes.get(name) {
            Some(_) if !row.here => faults.push(format!("line {}: {name} is here after all", row.line)),
            None if row.here => faults.push(format!("line {}: {name} is not here", row.line)),
            Some(class) => {
                let missing = row.inputs.iter().filter(|input| !inputs(class).any(|name| name == **input));
                faults.extend(missing.map(|input| format!("line {}: {name} has no {input}", row.line)));
                let unnamed = inputs(class).filter(|input| !row.inputs.contains(input));
                faults.extend(unnamed.map(|input| format!("line {}: {name} has {input}, too", row.line)));
            }
            None => {}
        }
    }
    for name in classes.keys().filter(|name| name.ends_with("MultiGPU")) {
        if !rows.contains_key(name) {
            faults.push(format!("{name} is not in the table"));
        }
    }
    assert!(rows.len() > 70, "{} classes", rows.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
