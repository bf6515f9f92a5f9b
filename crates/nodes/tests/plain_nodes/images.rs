//! Pictures: loaded, arranged, mixed, filtered.

use graph::{Given, Literal, Map, Verdict};
use indexmap::IndexMap;
use nodes::picture::{self, Pixels};
use nodes::value::{Image, Mask};

use crate::workbench::{Workbench, failure, image, inputs, literal, mask, object, outputs, value};

/// A picture of one channel's worth of numbers, the same in all three.
fn grey(height: usize, width: usize, values: &[f32]) -> Image {
    image([1, height, width, 3], |at| values[at / 3])
}

fn first_channel(image: &Image) -> Vec<f32> {
    image.values.chunks_exact(image.channels).map(|pixel| pixel[0]).collect()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[test]
fn transparency_is_loaded_as_a_mask() {
    let bench = Workbench::new();
    let pixels = Pixels { width: 2, height: 1, channels: 4, bytes: vec![255, 0, 51, 255, 0, 0, 0, 51] };
    std::fs::write(bench.folder.join("input/a.png"), picture::png_of(&pixels, 1, &[]).unwrap()).unwrap();
    let loaded = bench.run("LoadImage", inputs().with("image", "a.png")).unwrap();
    let image = object::<Image>(&loaded, 0);
    assert_eq!((image.channels, image.values[0], image.values[2]), (3, 1.0, 0.2));
    assert!(close(&object::<Mask>(&loaded, 1).values, &[0.0, 0.8]));
    let red = bench.mask("LoadImageMask", inputs().with("image", "a.png").with("channel", "red"));
    assert_eq!(red.values, [1.0, 0.0]);
    let alpha = bench.mask("LoadImageMask", inputs().with("image", "a.png").with("channel", "alpha"));
    assert!(close(&alpha.values, &[0.0, 0.8]));
    let opaque = Pixels { width: 1, height: 1, channels: 3, bytes: vec![1, 2, 3] };
    std::fs::create_dir_all(bench.folder.join("output")).unwrap();
    std::fs::write(bench.folder.join("output/b.png"), picture::png_of(&opaque, 1, &[]).unwrap()).unwrap();
    let loaded = bench.run("LoadImageOutput", inputs().with("image", "b.png [output]")).unwrap();
    let mask = object::<Mask>(&loaded, 1);
    assert_eq!((mask.height, mask.width, mask.values[0]), (64, 64, 0.0));
}

#[test]
fn a_file_that_is_not_there_is_told_before_the_run() {
    let bench = Workbench::new();
    std::fs::write(bench.folder.join("input/a.png"), b"").unwrap();
    let types = IndexMap::new();
    let verdict = |class: &str, file: Literal| {
        let constants: Map = graph::map([("image", file)]);
        bench.catalogue.get(class).unwrap().validate(&Given { constants: &constants, types: &types }).unwrap()
    };
    for class in ["LoadImage", "LoadImageMask", "LoadImageOutput"] {
        assert_eq!(verdict(class, "a.png".into()), Verdict::Good);
        assert_eq!(verdict(class, Literal::Null), Verdict::Good, "a linked name is not known yet");
        for name in ["none.png", "../a.png", "a.png [output]"] {
            let Verdict::Because(text) = verdict(class, name.into()) else { panic!("{name} was accepted") };
            assert!(text.contains("Invalid image file") && text.contains(name), "{text}");
        }
        assert_eq!(bench.catalogue.get(class).unwrap().validates().inputs, ["image"]);
    }
    assert!(failure(bench.run("LoadImage", inputs().with("image", "a.png"))).contains("image"));
}

#[test]
fn a_changed_file_has_another_fingerprint() {
    let bench = Workbench::new();
    let print = || {
        let call = bench.call("LoadImage", inputs().with("image", "a.png"));
        bench.catalogue.get("LoadImage").unwrap().fingerprint(&call).unwrap()
    };
    std::fs::write(bench.folder.join("input/a.png"), b"one").unwrap();
    let first = print();
    assert_eq!(first, print());
    std::fs::write(bench.folder.join("input/a.png"), b"two").unwrap();
    assert_ne!(print(), first);
    let menu = bench.catalogue.get("LoadImage").unwrap().schema();
    assert_eq!(menu.find("image").unwrap().kind, graph::Kind::Choice(vec!["a.png".into()]));
}

#[test]
fn sides_that_are_not_given_follow() {
    let bench = Workbench::new();
    let wide = image([1, 20, 40, 3], |at| at as f32);
    let size = |class: &str, more: graph::Inputs| {
        let scaled = bench.image(class, more.with("image", value(&wide)));
        (scaled.width, scaled.height)
    };
    assert_eq!(size("ImageScale", inputs().with("width", 0).with("height", 10)), (20, 10));
    assert_eq!(size("ImageScale", inputs().with("width", 13).with("height", 0)), (13, 6));
    assert_eq!(size("ImageScale", inputs().with("width", 0).with("height", 0)), (40, 20));
    assert_eq!(size("ImageScaleToMaxDimension", inputs().with("largest_size", 100)), (100, 50));
    let total = inputs().with("megapixels", 0.01);
    assert_eq!(size("ImageScaleToTotalPixels", total.clone()), (145, 72));
    assert_eq!(size("ImageScaleToTotalPixels", total.with("resolution_steps", 16)), (144, 80));
    assert_eq!(size("FluxKontextImageScale", inputs()), (1456, 720));
    let zero = inputs().with("image", value(&wide)).with("scale_by", 0.01);
    assert!(failure(bench.run("ImageScaleBy", zero)).contains("40x20"));
}

#[test]
fn one_node_resizes_in_many_ways() {
    let bench = Workbench::new();
    let size = |kind: &str, more: graph::Inputs| {
        let given =
            more.with("input", value(&image([1, 30, 50, 3], |at| at as f32))).with("resize_type", kind);
        let scaled = bench.image("ResizeImageMaskNode", given);
        (scaled.width, scaled.height)
    };
    let key = |name: &str, number: f64| inputs().with(&format!("resize_type.{name}"), number);
    assert_eq!(size("scale by multiplier", key("multiplier", 2.0)), (100, 60));
    assert_eq!(size("scale longer dimension", key("longer_size", 25.0)), (25, 15));
    assert_eq!(size("scale shorter dimension", key("shorter_size", 15.0)), (25, 15));
    assert_eq!(size("scale width", key("width", 10.0)), (10, 6));
    assert_eq!(size("scale height", key("height", 60.0)), (100, 60));
    assert_eq!(size("scale total pixels", key("megapixels", 0.01)), (132, 79));
    assert_eq!(size("scale to multiple", key("multiple", 16.0)), (48, 16));
    let both = key("width", 8.0).with("resize_type.height", 8).with("resize_type.crop", "center");
    assert_eq!(size("scale dimensions", both), (8, 8));
    let other = inputs()
        .with("resize_type.match", value(&mask([1, 7, 9], |_| 0.0)))
        .with("resize_type.crop", "disabled");
    assert_eq!(size("match size", other), (9, 7));
    let halved = inputs().with("input", value(&mask([2, 4, 4], |at| (at % 4) as f32)));
    let halved = halved.with("resize_type", "scale by multiplier").with("resize_type.multiplier", 0.5);
    let halved = bench.mask("ResizeImageMaskNode", halved);
    assert_eq!((halved.batch, &halved.values[..4]), (2, &[0.5, 2.5, 0.5, 2.5][..]));
}

#[test]
fn pictures_are_cut_turned_and_mirrored() {
    let bench = Workbench::new();
    let source = value(&grey(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let run = |class: &str, more: graph::Inputs| {
        let out = bench.image(class, more.with("image", source.clone()));
        (out.height, out.width, first_channel(&out))
    };
    let crop = inputs().with("width", 2).with("height", 9).with("x", 1).with("y", 1);
    assert_eq!(run("ImageCrop", crop), (1, 2, vec![5.0, 6.0]));
    let turn = |by: &str| inputs().with("rotation", by);
    assert_eq!(run("ImageRotate", turn("90 degrees")), (3, 2, vec![4.0, 1.0, 5.0, 2.0, 6.0, 3.0]));
    assert_eq!(run("ImageRotate", turn("180 degrees")), (2, 3, vec![6.0, 5.0, 4.0, 3.0, 2.0, 1.0]));
    assert_eq!(run("ImageRotate", turn("270 degrees")), (3, 2, vec![3.0, 6.0, 2.0, 5.0, 1.0, 4.0]));
    let flip = |by: &str| inputs().with("flip_method", by);
    assert_eq!(run("ImageFlip", flip("x-axis: vertically")).2, [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
    assert_eq!(run("ImageFlip", flip("y-axis: horizontally")).2, [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
}

#[test]
fn borders_for_outpainting_are_soft() {
    let bench = Workbench::new();
    let given =
        inputs().with("image", value(&image([1, 9, 9, 3], |_| 1.0))).with("left", 8).with("feathering", 4);
    let outcome = bench.run("ImagePadForOutpaint", given).unwrap();
    let (padded, mask) = (object::<Image>(&outcome, 0), object::<Mask>(&outcome, 1));
    assert_eq!((padded.width, padded.height), (17, 9));
    assert_eq!((padded.values[0], padded.values[8 * 3]), (0.5, 1.0));
    assert_eq!(mask.values[7..14], [1.0, 1.0, 0.5625, 0.25, 0.0625, 0.0, 0.0]);
}

#[test]
fn pictures_are_put_beside_each_other() {
    let bench = Workbench::new();
    let (first, second) = (grey(1, 2, &[0.1, 0.2]), grey(1, 1, &[0.9]));
    let stitched = |more: graph::Inputs| {
        let given = more.with("image1", value(&first)).with("image2", value(&second));
        bench.image("ImageStitch", given)
    };
    let plain = inputs().with("match_image_size", false);
    assert_eq!(first_channel(&stitched(plain.clone())), [0.1, 0.2, 0.9]);
    assert_eq!(first_channel(&stitched(plain.clone().with("direction", "left"))), [0.9, 0.1, 0.2]);
    let spaced = stitched(plain.clone().with("spacing_width", 1).with("spacing_color", "red"));
    assert_eq!(first_channel(&spaced), [0.1, 0.2, 1.0, 1.0, 0.9]);
    assert_eq!(spaced.values[7], 0.0, "red has no green");
    let below = stitched(plain.with("direction", "down"));
    assert_eq!((below.height, below.width), (2, 2));
    assert_eq!(first_channel(&below), [0.1, 0.2, 0.9, 1.0], "filled up with white");
    let matched = stitched(inputs().with("direction", "down"));
    assert_eq!((matched.height, matched.width), (3, 2));
    let alone = bench.image("ImageStitch", inputs().with("image1", value(&first)));
    assert_eq!(*alone, first);
}

#[test]
fn batches_are_joined_parted_and_regrouped() {
    let bench = Workbench::new();
    let (first, second) = (image([2, 1, 1, 3], |at| at as f32), image([1, 2, 2, 4], |_| 7.0));
    let joined =
        bench.image("ImageBatch", inputs().with("image1", value(&first)).with("image2", value(&second)));
    assert_eq!((joined.batch, joined.height, joined.channels), (3, 1, 4));
    assert_eq!(joined.values, [0.0, 1.0, 2.0, 1.0, 3.0, 4.0, 5.0, 1.0, 7.0, 7.0, 7.0, 7.0]);
    let grown = inputs().with("images.image10", value(&second)).with("images.image2", value(&first));
    assert_eq!(bench.image("BatchImagesNode", grown).batch, 3);
    assert!(failure(bench.run("BatchImagesNode", inputs())).contains("images"));
    let part = inputs().with("image", value(&first)).with("batch_index", 9).with("length", 5);
    assert_eq!(bench.image("ImageFromBatch", part).values, [3.0, 4.0, 5.0]);
    let repeated = bench.image("RepeatImageBatch", inputs().with("image", value(&first)).with("amount", 2));
    assert_eq!((repeated.batch, repeated.values[9]), (4, 3.0));
    let mut lists = inputs().with("batch_size", 2);
    lists
        .values
        .insert("images".to_owned(), vec![value(&first), value(&image([3, 1, 1, 3], |at| at as f32 + 6.0))]);
    let regrouped = outputs(&bench.run("RebatchImages", lists).unwrap(), 0);
    let batches: Vec<_> = regrouped.iter().map(|value| value.downcast::<Image>().unwrap().batch).collect();
    assert_eq!(batches, [2, 2, 1]);
    let mut unequal = inputs().with("batch_size", 3);
    unequal.values.insert("images".to_owned(), vec![value(&first), value(&second)]);
    assert!(bench.run("RebatchImages", unequal).is_err());
    let size = bench.run("GetImageSize", inputs().with("image", value(&second))).unwrap();
    assert_eq!([0, 1, 2].map(|slot| literal(&size, slot).as_int().unwrap()), [2, 2, 1]);
}

#[test]
fn sizes_beyond_all_memory_are_refused() {
    let bench = Workbench::new();
    let huge = inputs().with("width", 16_384).with("height", 16_384).with("batch_size", 4096);
    assert!(failure(bench.run("EmptyImage", huge)).contains("memory"));
    let repeated = inputs().with("image", value(&image([1, 1, 1, 3], |_| 0.0))).with("amount", i64::MAX);
    assert!(failure(bench.run("RepeatImageBatch", repeated)).contains("memory"));
    assert!(bench.run("EmptyImage", inputs().with("width", -1)).is_err());
}

#[test]
fn two_pictures_are_mixed() {
    let bench = Workbench::new();
    let blend = |mode: &str, a: f32, b: f32| {
        let given =
            inputs().with("image1", value(&grey(1, 1, &[a]))).with("image2", value(&grey(1, 1, &[b])));
        bench.image("ImageBlend", given.with("blend_factor", 1.0).with("blend_mode", mode)).values[0]
    };
    let cases = [
        ("normal", 0.25, 0.5, 0.5),
        ("multiply", 0.5, 0.5, 0.25),
        ("screen", 0.5, 0.5, 0.75),
        ("overlay", 0.25, 0.5, 0.25),
        ("overlay", 0.75, 0.5, 0.75),
        ("soft_light", 0.25, 0.25, 0.15625),
        ("soft_light", 0.25, 1.0, 0.5),
        ("difference", 0.25, 0.5, 0.0),
        ("difference", 0.75, 0.5, 0.25),
    ];
    for (mode, a, b, expected) in cases {
        assert_eq!(blend(mode, a, b), expected, "{mode} of {a} and {b}");
    }
}

#[test]
fn blur_and_sharpen_are_opposite() {
    let bench = Workbench::new();
    let dot = |value: f32| image([1, 5, 5, 3], |at| if at / 3 == 12 { value } else { 0.5 });
    let blurred = first_channel(&bench.image("ImageBlur", inputs().with("image", value(&dot(1.0)))));
    // Over -1 to 1 the bell with sigma 1 is 0.6065 beside 1: shares of 0.2741 and 0.4519.
    assert!((blurred[12] - (0.5 + 0.5 * 0.451_863 * 0.451_863)).abs() < 1e-4, "{}", blurred[12]);
    assert!((blurred[7] - (0.5 + 0.5 * 0.451_863 * 0.274_068)).abs() < 1e-4, "{}", blurred[7]);
    assert!((blurred[0] - 0.5).abs() < 1e-6);
    let sharp = first_channel(
        &bench.image("ImageSharpen", inputs().with("image", value(&dot(0.6))).with("alpha", 0.1)),
    );
    assert!((sharp[12] - (0.6 * 2.0 - (0.5 + 0.1 * 0.451_863 * 0.451_863))).abs() < 1e-4, "{}", sharp[12]);
    let large = inputs().with("image", value(&dot(1.0))).with("blur_radius", 5);
    assert!(failure(bench.run("ImageBlur", large)).contains("radius"));
    let noisy =
        |seed: i64| bench.image("ImageAddNoise", inputs().with("image", value(&dot(0.5))).with("seed", seed));
    assert_eq!(noisy(1), noisy(1));
    assert_ne!(noisy(1), noisy(2));
}

#[test]
fn edges_are_found_where_brightness_jumps() {
    let bench = Workbench::new();
    let half = image([1, 12, 12, 3], |at| if at / 3 % 12 < 6 { 0.0 } else { 1.0 });
    let edges = bench.image("Canny", inputs().with("image", value(&half)).with("low_threshold", 0.1));
    let marked: Vec<usize> = (0..144).filter(|at| edges.values[at * 3] == 1.0).map(|at| at % 12).collect();
    assert!(!marked.is_empty() && marked.iter().all(|column| *column == 5 || *column == 6), "{marked:?}");
    assert!(edges.values.iter().all(|value| *value == 0.0 || *value == 1.0));
    let flat = bench.image("Canny", inputs().with("image", value(&image([1, 12, 12, 3], |_| 0.7))));
    assert!(flat.values.iter().all(|value| *value == 0.0));
    let swapped = inputs().with("image", value(&half)).with("low_threshold", 0.9).with("high_threshold", 0.2);
    assert!(failure(bench.run("Canny", swapped)).contains("low_threshold"));
}

#[test]
fn one_picture_is_laid_over_another() {
    let bench = Workbench::new();
    let (under, over) = (grey(2, 3, &[0.0; 6]), grey(2, 2, &[1.0; 4]));
    let laid = |more: graph::Inputs| {
        let given = more.with("destination", value(&under)).with("source", value(&over));
        first_channel(&bench.image("ImageCompositeMasked", given))
    };
    assert_eq!(laid(inputs().with("x", 2).with("y", 1)), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(laid(inputs().with("x", 99).with("y", 99)), [0.0; 6]);
    assert_eq!(laid(inputs().with("resize_source", true)), [1.0; 6]);
    let half = mask([1, 2, 2], |at| if at == 0 { 0.25 } else { 0.0 });
    assert_eq!(laid(inputs().with("mask", value(&half)).with("x", 1)), [0.0, 0.25, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn porter_and_duff_mix_by_opacity() {
    let bench = Workbench::new();
    let mixed = |mode: &str| {
        let given = inputs()
            .with("source", value(&grey(1, 1, &[1.0])))
            .with("source_alpha", value(&mask([1, 1, 1], |_| 0.5)))
            .with("destination", value(&grey(1, 1, &[0.5])))
            .with("destination_alpha", value(&mask([1, 1, 1], |_| 0.0)));
        let outcome = bench.run("PorterDuffImageComposite", given.with("mode", mode)).unwrap();
        (object::<Image>(&outcome, 0).values[0], object::<Mask>(&outcome, 1).values[0])
    };
    let cases = [
        ("SRC_OVER", 0.75, 0.0),
        ("DST", 0.5, 0.0),
        ("SRC", 1.0, 0.5),
        ("CLEAR", 0.0, 1.0),
        ("SRC_IN", 1.0, 0.5),
        ("DST_OUT", 0.5, 0.5),
        ("XOR", 0.5, 0.5),
        ("ADD", 1.0, 0.0),
        ("MULTIPLY", 0.5, 0.5),
        ("SCREEN", 0.75, 0.0),
        ("LIGHTEN", 0.75, 0.0),
    ];
    for (mode, colour, transparency) in cases {
        assert_eq!(mixed(mode), (colour, transparency), "{mode}");
    }
}

#[test]
fn transparency_is_parted_and_joined() {
    let bench = Workbench::new();
    let source = image([1, 1, 2, 4], |at| [0.1, 0.2, 0.3, 0.75, 0.4, 0.5, 0.6, 1.0][at]);
    let parted = bench.run("SplitImageWithAlpha", inputs().with("image", value(&source))).unwrap();
    let (colours, mask) = (object::<Image>(&parted, 0), object::<Mask>(&parted, 1));
    assert_eq!((colours.channels, mask.values.as_ref()), (3, &[0.25, 0.0][..]));
    let joined = inputs().with("image", value(&*colours)).with("alpha", value(&*mask));
    assert_eq!(*bench.image("JoinImageWithAlpha", joined), source);
}
