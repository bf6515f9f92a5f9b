//! Marks of quantised layers: where they stand, which rules, and that no text in them makes opening panic.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

use checkpoint::{Checkpoint, Error, MAX_HEADER_MARKS_BYTES, MAX_MARK_BYTES, ProductMark};
use meta::{DType, Encoding, Rotation, Scheme, Shape};
use proptest::prelude::*;
use testkit::SafetensorsWriter;

/// A layer in int8 with one scale for each row, and marks for it.
fn opened(header: Option<&str>, tensor: Option<&[u8]>) -> Result<Checkpoint, Error> {
    let scales = 0.5f32.to_le_bytes().repeat(4);
    let mut writer = SafetensorsWriter::new()
        .tensor("l.weight", DType::I8, Shape::from([4, 64]), vec![1; 256])
        .tensor("l.weight_scale", DType::F32, Shape::from([4, 1]), scales);
    if let Some(text) = header {
        writer = writer.metadata("_quantization_metadata", text);
    }
    if let Some(text) = tensor {
        writer = writer.tensor("l.comfy_quant", DType::U8, Shape::from([text.len()]), text.to_vec());
    }
    Checkpoint::from_memory(("marks.safetensors", writer.finish().unwrap().into()), Vec::new())
}

fn encoding(header: Option<&str>, tensor: Option<&str>) -> Encoding {
    let file = opened(header, tensor.map(str::as_bytes)).unwrap();
    file.entry("l.weight").unwrap().encoding()
}

fn int8(group: Option<usize>) -> Encoding {
    Scheme::Int8 { rotation: group.map(|group| Rotation::new(group).unwrap()) }.into()
}

#[test]
fn a_layer_is_what_its_first_mark_says() {
    let plain = r#"{"format": "int8_tensorwise"}"#;
    let rotated = r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16}"#;
    let header = format!(r#"{{"format_version": "1.0", "layers": {{"l": {rotated}}}}}"#);
    assert_eq!(encoding(None, None), DType::I8.into());
    assert_eq!(encoding(None, Some(plain)), int8(None));
    assert_eq!(encoding(None, Some(rotated)), int8(Some(16)));
    assert_eq!(encoding(Some(&header), None), int8(Some(16)));
    assert_eq!(encoding(Some(&header), Some(plain)), int8(Some(16)), "the header rules");
    assert_eq!(encoding(Some(r#"{"layers": {}}"#), Some(plain)), int8(None));
}

#[test]
fn parameters_may_stand_one_level_deeper_and_the_upper_level_rules() {
    let deeper = r#"{"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 64}}"#;
    assert_eq!(encoding(None, Some(deeper)), int8(Some(64)));
    let both = r#"{"format": "int8_tensorwise", "convrot_groupsize": 4, "params": {"convrot": true, "convrot_groupsize": 64}}"#;
    assert_eq!(encoding(None, Some(both)), int8(Some(4)));
    let no_object = r#"{"format": "int8_tensorwise", "params": [1, 2]}"#;
    assert_eq!(encoding(None, Some(no_object)), int8(None));
}

#[test]
fn a_file_says_what_its_companions_are() {
    let file = opened(None, Some(br#"{"format": "int8_tensorwise"}"#)).unwrap();
    let weight = file.entry("l.weight").unwrap();
    assert_eq!(file.scale_of(weight).unwrap().name(), "l.weight_scale");
    assert_eq!(file.entries().iter().filter(|entry| file.is_companion(entry)).count(), 2);
    assert_eq!(file.precision([weight].into_iter()).to_string(), "int8");
}

#[test]
fn what_is_too_long_is_refused() {
    let long = vec![b' '; MAX_MARK_BYTES + 1];
    let error = opened(None, Some(&long)).unwrap_err().to_string();
    assert!(error.contains("\"l\"") && error.contains("comfy_quant") && error.contains("limit"), "{error}");
    let error = opened(Some(&" ".repeat(MAX_HEADER_MARKS_BYTES + 1)), None).unwrap_err().to_string();
    assert!(error.contains("_quantization_metadata") && error.contains("limit"), "{error}");
}

/// Texts that are nearly marks.
fn nearly_marks() -> impl Strategy<Value = String> {
    let values = prop_oneof![
        Just("\"int8_tensorwise\"".to_owned()),
        Just("\"nvfp4\"".to_owned()),
        Just("true".to_owned()),
        Just("null".to_owned()),
        Just("{\"convrot\": true}".to_owned()),
        Just("[[[[1]]]]".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
    ];
    let keys = prop::sample::select(vec![
        "format",
        "convrot",
        "convrot_groupsize",
        "num_experts",
        "params",
        "other",
    ]);
    prop::collection::vec((keys, values), 0..6).prop_map(|pairs| {
        let pairs: Vec<String> =
            pairs.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{{}}}", pairs.join(", "))
    })
}

proptest! {
    #[test]
    fn no_mark_makes_opening_panic_and_every_error_names_the_layer(
        text in prop_oneof![nearly_marks().prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..80)],
    ) {
        if let Err(error) = opened(None, Some(&text)) {
            prop_assert!(error.to_string().contains("\"l\""), "{error}");
        }
    }

    #[test]
    fn no_header_makes_opening_panic_and_every_error_names_it(
        text in prop_oneof![
            nearly_marks().prop_map(|mark| format!("{{\"layers\": {{\"l\": {mark}, \"gone\": {mark}}}}}")),
            ".{0,80}",
        ],
    ) {
        match opened(Some(&text), None) {
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.contains("_quantization_metadata") || said.contains("\"l\"") || said.contains("\"gone\""), "{said}");
            }
            Ok(file) => prop_assert!(!text.contains("gone") || file.warnings().iter().any(|warning| warning.contains("gone"))),
        }
    }
}

/// What a file with one fp8 layer says of its products, with this mark of the new kind, or with a marker of the old kind of
/// so many values.
fn product(mark: Option<&str>, marker: Option<(&str, usize)>) -> ProductMark {
    let scale = if marker.is_some() { "d.l.scale_weight" } else { "d.l.weight_scale" };
    let mut writer = SafetensorsWriter::new()
        .tensor("d.l.weight", DType::F8E4M3, Shape::from([16, 16]), vec![0x38; 256])
        .tensor(scale, DType::F32, Shape::scalar(), 0.5f32.to_le_bytes().to_vec());
    if let Some(text) = mark {
        writer =
            writer.tensor("d.l.comfy_quant", DType::U8, Shape::from([text.len()]), text.as_bytes().to_vec());
    }
    if let Some((name, values)) = marker {
        writer = writer.tensor(name, DType::F8E4M3, Shape::from([values]), vec![0; values]);
    }
    let file =
        Checkpoint::from_memory(("marks.safetensors", writer.finish().unwrap().into()), Vec::new()).unwrap();
    file.entry("d.l.weight").unwrap().product()
}

#[test]
fn a_mark_says_whether_products_may_be_of_8_bits() {
    assert_eq!(product(None, None), ProductMark::Unsaid);
    assert_eq!(product(Some(r#"{"format": "float8_e4m3fn"}"#), None), ProductMark::EightBits);
    let full = r#"{"format": "float8_e4m3fn", "full_precision_matrix_mult": true}"#;
    assert_eq!(product(Some(full), None), ProductMark::FullPrecision);
    let deeper = r#"{"format": "float8_e4m3fn", "params": {"full_precision_matrix_mult": true}}"#;
    assert_eq!(product(Some(deeper), None), ProductMark::FullPrecision);
    assert_eq!(product(None, Some(("scaled_fp8", 0))), ProductMark::EightBits);
    assert_eq!(product(None, Some(("d.scaled_fp8", 1))), ProductMark::EightBits);
    assert_eq!(product(None, Some(("scaled_fp8", 2))), ProductMark::FullPrecision);
    assert_eq!(product(None, Some(("d.scaled_fp8", 2))), ProductMark::FullPrecision);
    // A marker of another part of the file says nothing of this one's precision.
    assert_eq!(product(None, Some(("e.scaled_fp8", 2))), ProductMark::EightBits);
}
