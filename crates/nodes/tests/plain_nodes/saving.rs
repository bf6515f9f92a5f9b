//! Pictures saved, shown and sent.

use std::sync::Arc;

use graph::{Failure, Literal, RunEvent};
use nodes::picture;
use runtime::Settings;

use crate::workbench::{Workbench, failure, image, inputs, mask, value};

fn shown(outcome: &graph::Outcome, key: &str) -> Vec<[String; 3]> {
    let field = |item: &Literal, name: &str| item.get(name).unwrap().as_text().unwrap().to_owned();
    let items = outcome.ui.as_ref().unwrap()[key].as_list().unwrap();
    items.iter().map(|item| ["filename", "subfolder", "type"].map(|name| field(item, name))).collect()
}

#[test]
fn pictures_are_saved_with_the_workflow_that_made_them() {
    let mut bench = Workbench::new();
    bench.extra =
        graph::map([("extra_pnginfo", Literal::Map(graph::map([("workflow", Literal::from("w"))])))]);
    let pictures = image([2, 2, 3, 3], |at| at as f32 / 100.0);
    let given = || inputs().with("images", value(&pictures)).with("filename_prefix", "a/cat");
    let items = shown(&bench.run("SaveImage", given()).unwrap(), "images");
    assert_eq!(items[0], ["cat_00001_.png", "a", "output"]);
    assert_eq!(items[1], ["cat_00002_.png", "a", "output"]);
    let again = shown(&bench.run("SaveImage", given()).unwrap(), "images");
    assert_eq!(again[0][0], "cat_00003_.png");
    let bytes = std::fs::read(bench.folder.join("output/a/cat_00002_.png")).unwrap();
    let text = picture::png_text(&bytes);
    let expected = r#"{"1": {"inputs": {"note": "gr\u00fcn"}, "class_type": "SaveImage"}}"#;
    assert_eq!(text[0], ("prompt".to_owned(), expected.to_owned()));
    assert_eq!(text[1], ("workflow".to_owned(), "\"w\"".to_owned()));
    let pixels = picture::decode_pixels(&bytes).unwrap();
    assert_eq!((pixels.width, pixels.height, pixels.bytes[0]), (3, 2, (18.0f32 / 100.0 * 255.0) as u8));
    let outside = given().with("filename_prefix", "../cat");
    assert!(failure(bench.run("SaveImage", outside)).contains("outside"));
    let none = inputs().with("images", value(&image([0, 2, 2, 3], |_| 0.0)));
    assert!(failure(bench.run("SaveImage", none)).contains("no picture"));
}

#[test]
fn pictures_are_saved_in_16_bits_and_passed_on() {
    let bench = Workbench::new();
    let picture = image([1, 2, 3, 3], |at| at as f32 / 100.0);
    let given = |depth: &str| {
        let given = inputs().with("images", value(&picture)).with("filename_prefix", "deep");
        given.with("format", "png").with("format.bit_depth", depth).with("format.input_color_space", "sRGB")
    };
    let outcome = bench.run("SaveImageAdvanced", given("16-bit")).unwrap();
    assert_eq!(shown(&outcome, "images")[0][0], "deep_00001_.png");
    bench.run("SaveImageAdvanced", given("8-bit")).unwrap();
    let read = |name: &str| std::fs::read(bench.folder.join("output").join(name)).unwrap();
    let (deep, shallow) = (read("deep_00001_.png"), read("deep_00002_.png"));
    // The byte behind the size in the header is the depth.
    assert_eq!((deep[24], shallow[24]), (16, 8));
    let pixels = [deep, shallow].map(|bytes| picture::decode_pixels(&bytes).unwrap());
    assert_eq!((pixels[0].width, pixels[0].height, pixels[0].channels), (3, 2, 3));
    let apart = pixels[0].bytes.iter().zip(&pixels[1].bytes).map(|(a, b)| a.abs_diff(*b));
    assert!(apart.max().unwrap() <= 1);
}

#[test]
fn the_workflow_can_be_left_out() {
    let bench = Workbench::with(Settings { no_metadata: true, ..Settings::default() });
    bench.run("SaveImage", inputs().with("images", value(&image([1, 1, 1, 3], |_| 0.0)))).unwrap();
    let bytes = std::fs::read(bench.folder.join("output/ComfyUI_00001_.png")).unwrap();
    assert!(picture::png_text(&bytes).is_empty());
}

#[test]
fn a_program_can_keep_what_is_saved() {
    let (bench, kept) = Workbench::keeping();
    let pictures = image([2, 2, 3, 3], |at| at as f32 / 100.0);
    let given = || inputs().with("images", value(&pictures)).with("filename_prefix", "cat");
    let items = shown(&bench.run("SaveImage", given()).unwrap(), "images");
    assert_eq!(items[1], ["cat_00002_.png", "", "output"]);
    let files = kept.take();
    assert_eq!(files.len(), 2);
    let pixels = picture::decode_pixels(&files[1]).unwrap();
    assert_eq!((pixels.width, pixels.height, pixels.bytes[0]), (3, 2, (18.0f32 / 100.0 * 255.0) as u8));
    assert_eq!(picture::png_text(&files[0])[0].0, "prompt");
    assert!(kept.take().is_empty() && !bench.folder.join("output").exists());
    // Previews are no results.
    bench.run("PreviewImage", inputs().with("images", value(&pictures))).unwrap();
    assert!(kept.take().is_empty() && bench.folder.join("temp").is_dir());
}

#[test]
fn previews_go_to_the_temporary_folder() {
    let bench = Workbench::new();
    let picture = value(&image([1, 4, 4, 3], |_| 0.5));
    let items =
        shown(&bench.run("PreviewImage", inputs().with("images", picture.clone())).unwrap(), "images");
    let [name, _, kind] = &items[0];
    assert!(name.starts_with("ComfyUI_temp_") && name.ends_with("_00001_.png"), "{name}");
    assert_eq!((name.len(), kind.as_str()), ("ComfyUI_temp_abcde_00001_.png".len(), "temp"));
    assert!(bench.folder.join("temp").join(name).is_file());
    let masked = bench.run("MaskPreview", inputs().with("mask", value(&mask([1, 2, 2], |_| 1.0)))).unwrap();
    assert_eq!(shown(&masked, "images")[0][2], "temp");
    let compared = bench.run("ImageCompare", inputs().with("image_a", picture)).unwrap();
    assert!(shown(&compared, "a_images")[0][0].starts_with("comfy.compare.a_temp_"));
    assert!(shown(&compared, "b_images").is_empty());
}

#[test]
fn pictures_are_sent_instead_of_saved() {
    let bench = Workbench::new();
    let pictures = image([2, 1, 2, 4], |at| if at % 4 == 3 { 0.0 } else { 1.0 });
    bench.run("SaveImageWebsocket", inputs().with("images", value(&pictures))).unwrap();
    let events = bench.events.0.lock().unwrap();
    assert_eq!(events.len(), 2);
    let RunEvent::Progress { value, max, picture: Some(picture), .. } = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!((*value, *max, picture.is_result), (1.0, 2.0, true));
    assert_eq!((picture.width, picture.rgb.as_slice()), (2, &[255; 6][..]));
    drop(events);
    let call = bench.call("SaveImageWebsocket", inputs().with("images", 0));
    let print = bench.catalogue.get("SaveImageWebsocket").unwrap().fingerprint(&call).unwrap();
    assert_ne!(print, print.clone(), "it is sent every time");
}

#[test]
fn moving_pictures_are_saved_as_one_file() {
    let bench = Workbench::new();
    let frames = image([3, 2, 2, 3], |at| at as f32 / 40.0);
    let outcome =
        bench.run("SaveAnimatedPNG", inputs().with("images", value(&frames)).with("fps", 10.0)).unwrap();
    assert_eq!(shown(&outcome, "images").len(), 1);
    assert_eq!(outcome.ui.as_ref().unwrap()["animated"], Literal::List(vec![true.into()]));
    let bytes = std::fs::read(bench.folder.join("output/ComfyUI_00001_.png")).unwrap();
    assert_eq!(picture::decode_frames(&runtime::host::Host::with_budget(1 << 30), &bytes).unwrap().batch, 3);
}

#[test]
fn a_job_that_is_to_end_saves_no_more() {
    let bench = Workbench::new();
    let call = bench.call("SaveImage", inputs().with("images", value(&image([1, 1, 1, 3], |_| 0.0))));
    call.job.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let class = Arc::clone(bench.catalogue.get("SaveImage").unwrap());
    assert_eq!(class.run(&call).unwrap_err(), Failure::Interrupted);
    assert!(!bench.folder.join("output/ComfyUI_00001_.png").exists());
}
