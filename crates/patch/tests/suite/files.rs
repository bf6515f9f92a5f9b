//! What is read from a file, what is reported, and what is refused.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::{Error, KeyMap, Naming, PatchFile, PatchSet};
use testkit::SafetensorsWriter;

use crate::fixture::{Stored, file, file_error, number, one_layer, random};

fn pair(key: &str, rows: usize, rank: usize, columns: usize) -> [Stored; 2] {
    [
        random(&format!("{key}.lora_up.weight"), &[rows, rank]),
        random(&format!("{key}.lora_down.weight"), &[rank, columns]),
    ]
}

#[test]
fn groups_are_recognised() {
    let [up, down] = pair("lora_unet_a_b", 4, 2, 4);
    let file = file(&[
        up,
        down,
        number("lora_unet_a_b.alpha", 2.0),
        random("transformer.a.lora_A.weight", &[2, 4]),
        random("transformer.a.lora_B.weight", &[4, 2]),
        random("unet.a.to_q_lora.down.weight", &[2, 4]),
        random("unet.a.to_q_lora.up.weight", &[4, 2]),
        random("diffusion_model.b.lokr_w1", &[2, 2]),
        random("diffusion_model.b.lokr_w2", &[2, 2]),
        random("diffusion_model.c.diff", &[4]),
        random("diffusion_model.c.diff_b", &[4]),
        random("stray.weight", &[4]),
        number("lonely.alpha", 1.0),
    ]);
    let found: Vec<_> = file.changes().iter().map(|c| (c.key(), c.naming(), c.weight()[0].name())).collect();
    assert_eq!(
        found,
        [
            ("lora_unet_a_b", Naming::Underscored, "LoRA"),
            ("transformer.a", Naming::Peft, "LoRA"),
            ("unet.a.to_q", Naming::Diffusers, "LoRA"),
            ("diffusion_model.b", Naming::Native, "LoKr"),
            ("diffusion_model.c", Naming::Native, "difference"),
        ]
    );
    assert!(file.changes()[4].bias().is_some());
    assert_eq!(file.unrecognised(), ["stray.weight", "lonely.alpha"]);
    assert_eq!(file.bytes(), 4 * (16 + 16 + 16 + 8 + 8));
}

#[test]
fn a_missing_half_names_the_layer() {
    for (names, key, missing) in [
        (&["a.lora_up.weight"][..], "a", "down (A) matrix"),
        (&["b.lora_A.weight"], "b", "up (B) matrix"),
        (&["c.lora_mid.weight"], "c", "up and down matrices"),
        (&["d.hada_w1_a", "d.hada_w1_b", "d.hada_w2_a"], "d", "hada_w2_b"),
        (&["e.hada_w1_a", "e.hada_w1_b", "e.hada_w2_a", "e.hada_w2_b", "e.hada_t1"], "e", "hada_t2"),
        (&["f.lokr_w1"], "f", "lokr_w2"),
        (&["g.lokr_w1", "g.lokr_w2_a"], "g", "lokr_w2_b"),
        (&["h.a1.weight", "h.a2.weight", "h.b1.weight"], "h", "b2.weight"),
    ] {
        let tensors: Vec<Stored> = names.iter().map(|name| random(name, &[2, 2])).collect();
        match file_error(&tensors) {
            Error::MissingPart { key: got, missing: what, .. } => assert_eq!((&*got, what), (key, missing)),
            other => panic!("{key}: {other}"),
        }
    }
    let text = file_error(&[random("te.layer.lora_A.weight", &[2, 2])]).to_string();
    assert!(
        text.contains("patch.safetensors") && text.contains("'te.layer'") && text.contains("no up (B)"),
        "{text}"
    );
}

#[test]
fn nonsense_is_refused() {
    let [up, down] = pair("a", 4, 2, 4);
    let twice = file_error(&[up, down, random("a.lora_A.weight", &[2, 4])]);
    assert!(matches!(twice, Error::Duplicate { first, .. } if first == "a.lora_down.weight"));
    let wide = file_error(&[random("a.alpha", &[2])]);
    assert!(matches!(wide, Error::Value { name, expected: "one finite number", .. } if name == "a.alpha"));
    let infinite = file_error(&[number("a.alpha", f32::INFINITY)]);
    assert!(infinite.to_string().contains("inf"), "{infinite}");
    let empty =
        file_error(&[Stored { name: "a.diff".into(), shape: Shape::from([0, 4]), values: Vec::new() }]);
    assert!(matches!(empty, Error::Value { .. }));
    let flags = SafetensorsWriter::new().tensor("a.diff", DType::U8, Shape::from([4]), vec![0, 1, 2, 3]);
    let flags = Cow::Owned(flags.finish().unwrap());
    let flags = Checkpoint::from_memory(("flags.safetensors", flags), Vec::new()).unwrap();
    assert!(matches!(PatchFile::read(&flags), Err(Error::Value { got, .. }) if got.contains("u8")));
    for (name, shape) in [("a.oft_blocks", &[2, 2, 2, 2][..]), ("a.reshape_weight", &[2])] {
        let error = file_error(&[random(name, shape)]);
        assert!(matches!(&error, Error::Unsupported { name: got, .. } if got == name), "{error}");
    }
}

#[test]
fn what_means_no_weight_is_listed() {
    let mut tensors = Vec::from(pair("lora_unet_layer", 4, 2, 6));
    tensors.extend(pair("lora_unet_elsewhere", 4, 2, 6));
    tensors.push(random("layer.diff_b", &[4]));
    let mut set = PatchSet::new();
    set.add(&file(&tensors), &one_layer(&[4, 6]), 1.0).unwrap();
    let expected =
        ["lora_unet_elsewhere.lora_up.weight", "lora_unet_elsewhere.lora_down.weight", "layer.diff_b"];
    assert_eq!(set.unmatched(), expected);
    assert_eq!(set.len(), 1);
}

#[test]
fn a_bias_takes_its_difference() {
    let (matrix, vector) = (Shape::from([4, 6]), Shape::from([4]));
    let map = KeyMap::native([("layer.weight", &matrix), ("layer.bias", &vector)]);
    let mut set = PatchSet::new();
    set.add(&file(&[random("layer.w_norm", &[4, 6]), random("layer.b_norm", &[4])]), &map, 0.5).unwrap();
    let names: Vec<&str> = set.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["layer.bias", "layer.weight"]);
    assert_eq!(set.unmatched(), &[] as &[String]);
}

#[test]
fn a_wrong_size_names_key_expected_and_got() {
    let add = |tensors: &[Stored], dims: &[usize]| {
        let mut set = PatchSet::new();
        let error = set.add(&file(tensors), &one_layer(dims), 1.0).unwrap_err();
        assert!(set.is_empty() && set.unmatched().is_empty());
        error.to_string()
    };
    let text = add(&pair("lora_unet_layer", 4, 2, 6), &[4, 8]);
    assert!(text.contains("'lora_unet_layer'") && text.contains("'layer.weight'"), "{text}");
    assert!(text.contains("expected a change of [4, 8], got [4, 6]"), "{text}");

    let loose = [random("layer.lora_up.weight", &[4, 3]), random("layer.lora_down.weight", &[2, 8])];
    let text = add(&loose, &[4, 8]);
    assert!(text.contains("tensors of [4, 3] and [2, 8] that do not fit each other"), "{text}");

    let text = add(&[random("layer.lokr_w1", &[2, 2]), random("layer.lokr_w2", &[2, 3])], &[4, 8]);
    assert!(text.contains("got [4, 6]"), "{text}");

    let mut dora = Vec::from(pair("layer", 4, 2, 8));
    dora.push(random("layer.dora_scale", &[1, 5]));
    let text = add(&dora, &[4, 8]);
    assert!(text.contains("expected a change of 4 or 8 lengths, got lengths of shape [1, 5]"), "{text}");

    let text = add(&[random("layer.diff", &[8, 4])], &[4, 8]);
    assert!(text.contains("expected a change of [4, 8], got [8, 4]"), "{text}");
}
