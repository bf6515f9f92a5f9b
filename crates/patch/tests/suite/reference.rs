//! Every form of patch against PyTorch (see `tests/data/make_adapters.py`).

use std::collections::BTreeSet;

use meta::Shape;
use testkit::{Golden, Report};

use crate::fixture::{Stored, applied, patches};

fn check(golden: &Golden, case: &str) -> usize {
    let (shape, weight) = golden.tensor(&format!("{case}/weight")).unwrap();
    let start = format!("{case}/");
    let mut tensors = Vec::new();
    let mut expected = Vec::new();
    for name in golden.names().filter(|name| name.starts_with(&start)) {
        let (shape, values) = golden.tensor(name).unwrap();
        match name[start.len()..].split_once('@') {
            Some((_, strength)) => expected.push((strength.parse::<f64>().unwrap(), values)),
            None if name.ends_with("/weight") => {}
            None => tensors.push(Stored { name: name[start.len()..].to_owned(), shape, values }),
        }
    }
    for (strength, want) in &expected {
        let patches = patches(&tensors, shape.dims(), *strength);
        Report::new(format!("{case} at {strength}"), &applied(shape, &weight, &patches), want).assert(1e-6);
        assert!(!Report::new(case, &weight, want).passes(1e-2), "{case} changes nothing");
    }
    expected.len()
}

#[test]
fn every_form_equals_pytorch() {
    let golden =
        Golden::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/adapters.safetensors")).unwrap();
    let cases: BTreeSet<&str> = golden.names().map(|name| name.split_once('/').unwrap().0).collect();
    assert_eq!(cases.len(), 14);
    let checked: usize = cases.iter().map(|case| check(&golden, case)).sum();
    assert_eq!(checked, 28);
}

#[test]
fn lengths_in_one_dimension_are_per_output() {
    let (shape, weight) = (Shape::from([2, 2]), [3.0, 4.0, 0.0, 2.0]);
    let zero =
        |name: &str, dims: [usize; 2]| Stored { name: name.into(), shape: dims.into(), values: vec![0.0; 2] };
    let scale = Stored { name: "layer.dora_scale".into(), shape: Shape::from([2]), values: vec![10.0, 1.0] };
    let tensors = [zero("layer.lora_up.weight", [2, 1]), zero("layer.lora_down.weight", [1, 2]), scale];
    let got = applied(shape, &weight, &patches(&tensors, &[2, 2], 1.0));
    Report::new("lengths", &got, &[6.0, 8.0, 0.0, 1.0]).assert(1e-6);
}
