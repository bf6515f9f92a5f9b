//! Masks: made, cut, combined, grown.

use nodes::value::Mask;

use crate::workbench::{Workbench, failure, image, inputs, mask, value};

fn numbers(height: usize, width: usize, values: &[f32]) -> Mask {
    mask([1, height, width], |at| values[at])
}

#[test]
fn masks_are_made_inverted_and_cut() {
    let bench = Workbench::new();
    let solid = bench.mask("SolidMask", inputs().with("value", 0.25).with("width", 3).with("height", 2));
    assert_eq!((solid.height, solid.width, solid.values.as_ref()), (2, 3, &[0.25; 6][..]));
    assert_eq!(bench.mask("InvertMask", inputs().with("mask", value(&*solid))).values, [0.75; 6]);
    let limit = inputs().with("mask", value(&numbers(1, 3, &[0.4, 0.5, 0.6]))).with("value", 0.5);
    assert_eq!(bench.mask("ThresholdMask", limit).values, [0.0, 0.0, 1.0]);
    let part =
        inputs().with("mask", value(&numbers(2, 2, &[1.0, 2.0, 3.0, 4.0]))).with("x", 1).with("width", 5);
    let part = bench.mask("CropMask", part.with("height", 5));
    assert_eq!((part.height, part.width, part.values.as_ref()), (2, 1, &[2.0, 4.0][..]));
}

#[test]
fn masks_are_combined() {
    let bench = Workbench::new();
    let combine = |operation: &str, x: i64| {
        let given = inputs().with("destination", value(&numbers(1, 4, &[0.0, 0.2, 0.6, 1.0])));
        let given = given.with("source", value(&numbers(1, 4, &[0.6, 0.6, 0.6, 0.4])));
        bench.mask("MaskComposite", given.with("operation", operation).with("x", x)).values.clone()
    };
    let cases: [(&str, [f32; 4]); 6] = [
        ("multiply", [0.0, 0.12, 0.36, 0.4]),
        ("add", [0.6, 0.8, 1.0, 1.0]),
        ("subtract", [0.0, 0.0, 0.0, 0.6]),
        ("and", [0.0, 0.0, 1.0, 0.0]),
        ("or", [1.0, 1.0, 1.0, 1.0]),
        ("xor", [1.0, 1.0, 0.0, 1.0]),
    ];
    for (operation, expected) in cases {
        let got = combine(operation, 0);
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{operation}: {got:?}");
    }
    assert_eq!(combine("add", 3), [0.0, 0.2, 0.6, 1.0]);
    assert_eq!(combine("add", 2)[2], 1.0);
    assert_eq!(combine("add", 500), [0.0, 0.2, 0.6, 1.0]);
    let uneven = inputs().with("destination", value(&mask([3, 1, 1], |_| 0.0)));
    assert!(
        failure(bench.run("MaskComposite", uneven.with("source", value(&mask([2, 1, 1], |_| 0.0)))))
            .contains('2')
    );
}

#[test]
fn masks_grow_and_shrink() {
    let bench = Workbench::new();
    let dot = mask([1, 5, 5], |at| if at == 12 { 1.0 } else { 0.0 });
    let count = |expand: i64, tapered: bool, from: &Mask| {
        let given =
            inputs().with("mask", value(from)).with("expand", expand).with("tapered_corners", tapered);
        bench.mask("GrowMask", given).values.iter().filter(|value| **value == 1.0).count()
    };
    assert_eq!(count(1, true, &dot), 5);
    assert_eq!(count(1, false, &dot), 9);
    assert_eq!(count(2, true, &dot), 13);
    assert_eq!(count(16_384, true, &dot), 25);
    assert_eq!(count(0, true, &dot), 1);
    let full = mask([1, 5, 5], |at| if at == 0 { 0.0 } else { 1.0 });
    assert_eq!(count(-1, true, &full), 22);
    assert_eq!(count(-1, false, &full), 21);
}

#[test]
fn pictures_become_masks_and_masks_pictures() {
    let bench = Workbench::new();
    let colours = image([1, 1, 2, 3], |at| [1.0, 0.5, 0.0, 0.2, 0.4, 0.6][at]);
    let channel =
        |name: &str| bench.run("ImageToMask", inputs().with("image", value(&colours)).with("channel", name));
    assert_eq!(crate::workbench::object::<Mask>(&channel("green").unwrap(), 0).values, [0.5, 0.4]);
    assert!(failure(channel("alpha")).contains("alpha"));
    let marked = inputs().with("image", value(&colours)).with("color", 0x33_66_99);
    assert_eq!(bench.mask("ImageColorToMask", marked).values, [0.0, 1.0]);
    let shown = bench.image("MaskToImage", inputs().with("mask", value(&numbers(1, 2, &[0.5, 1.0]))));
    assert_eq!(shown.values, [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]);
    let joined = inputs().with("masks.mask0", value(&numbers(1, 1, &[0.5])));
    let joined = bench.mask("BatchMasksNode", joined.with("masks.mask1", value(&mask([2, 2, 2], |_| 0.25))));
    assert_eq!(joined.values, [0.5, 0.25, 0.25]);
}
