//! Which classes workflows need, and which of them can run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod declared;

use declared::literal;

const SUBGRAPHS: &str = include_str!("data/subgraphs.workflow.json");
const GROUP: &str = include_str!("data/group_node.workflow.json");

fn count(json: &str) -> Vec<(String, usize)> {
    let mut classes = workflow::classes(&literal(json));
    classes.sort();
    classes
}

fn pairs(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|(class, count)| ((*class).to_owned(), *count)).collect()
}

#[test]
fn classes_are_counted_in_every_format() {
    let expected = [
        ("CLIPTextEncode", 1),
        ("CheckpointLoaderSimple", 1),
        ("EmptyLatentImage", 1),
        ("KSampler", 1),
        ("PrimitiveInt", 1),
        ("SaveImage", 1),
        ("VAEDecode", 1),
    ];
    assert_eq!(count(SUBGRAPHS), pairs(&expected));
    let expected = [
        ("CLIPTextEncode", 1),
        ("CheckpointLoaderSimple", 1),
        ("EmptyLatentImage", 1),
        ("KSampler", 1),
        ("RandomNoise", 1),
        ("SaveImage", 1),
        ("VAEDecode", 1),
    ];
    assert_eq!(count(GROUP), pairs(&expected));
    let prompt = r#"{"prompt": {"1": {"class_type": "A"}, "2": {"class_type": "B"}, "3": {"class_type": "A"}, "4": 5}}"#;
    assert_eq!(count(prompt), pairs(&[("A", 2), ("B", 1)]));
    assert!(count("[1, 2]").is_empty());
}

#[test]
fn families_are_summed() {
    let catalogue = declared::catalogue(r#"{"A": [], "B": []}"#);
    let file = |classes: &[&str]| {
        let nodes: Vec<String> =
            classes.iter().map(|class| format!(r#"{{"id": 1, "type": "{class}"}}"#)).collect();
        Ok(literal(&format!(r#"{{"nodes": [{}]}}"#, nodes.join(","))))
    };
    let files = [
        ("flux/two.json", file(&["A", "C", "C", "D"])),
        ("flux/one.json", file(&["A", "B", "Note"])),
        ("flux/deep/three.json", file(&["D"])),
        ("flux/broken.json", Err("not JSON".to_owned())),
        ("flux/settings.json", Ok(literal(r#"{"theme": "dark"}"#))),
        ("alone.json", file(&["B"])),
    ];
    let report = workflow::coverage(files.map(|(path, file)| (path.to_owned(), file)), &catalogue);
    assert_eq!((report.covered(), report.total()), (2, 5));
    let [alone, flux] = report.families.as_slice() else { panic!("{report:?}") };
    assert_eq!((alone.family.as_str(), alone.covered, alone.total), ("", 1, 1));
    assert_eq!((flux.family.as_str(), flux.covered, flux.total), ("flux", 1, 4));
    assert_eq!(flux.missing, pairs(&[("D", 2), ("C", 1)]));
    let paths: Vec<&str> = flux.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["flux/broken.json", "flux/deep/three.json", "flux/one.json", "flux/two.json"]);
    assert_eq!(flux.files[0].problem.as_deref(), Some("not JSON"));
    assert_eq!(flux.files[3].missing, pairs(&[("C", 2), ("D", 1)]));
}
