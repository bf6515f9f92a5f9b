//! Picture files: read, written, with text, and hostile ones.

use crate::workbench::image;
use graph::{Literal, Picture};
use nodes::picture::{self, Pixels, PreviewFormat};

fn gradient(width: usize, height: usize, channels: usize) -> Pixels {
    let bytes = (0..width * height * channels).map(|at| (at * 37 % 251) as u8).collect();
    Pixels { width, height, channels, bytes }
}

fn png(pixels: &Pixels) -> Vec<u8> {
    picture::png_of(pixels, 4, &[]).unwrap()
}

/// A PNG with what the simple writer does not write.
fn special_png(
    color: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
    more: impl Fn(&mut png::Encoder<'_, &mut Vec<u8>>),
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 2, 1);
    encoder.set_color(color);
    encoder.set_depth(depth);
    more(&mut encoder);
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    out
}

#[test]
fn values_are_cut_to_bytes_and_come_back() {
    let values = [-1.0, 0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 2.0 / 3.0, 0.999, 1.0, 2.0, f32::NAN];
    let saved = image([1, 1, 4, 3], |at| values[at]);
    for level in [0, 1, 4, 9] {
        let bytes = picture::encode_png(&saved, 0, level, &[]).unwrap();
        let back = picture::decode_pixels(&bytes).unwrap();
        assert_eq!(back.bytes, [0, 0, 25, 51, 63, 76, 127, 170, 254, 255, 255, 0]);
        assert_eq!(
            picture::decode(&runtime::host::Host::with_budget(1 << 30), &bytes).unwrap().values[2],
            25.0 / 255.0
        );
    }
    assert!(picture::encode_png(&saved, 1, 4, &[]).is_err());
}

#[test]
fn text_goes_into_the_file_and_out_again() {
    let prompt: Literal = serde_json::from_str(
        r#"{"3": {"inputs": {"seed": 18446744073709551615, "cfg": 7.0, "tiny": 1e-7, "big": 1e+22, "text": "grün 😀 \"q\"\n\u0007", "on": true, "none": null, "list": [1, 2.5], "link": ["4", 0]}}, "empty": {}}"#,
    )
    .unwrap();
    let expected = r#"{"3": {"inputs": {"seed": 18446744073709551615, "cfg": 7.0, "tiny": 1e-07, "big": 1e+22, "text": "gr\u00fcn \ud83d\ude00 \"q\"\n\u0007", "on": true, "none": null, "list": [1, 2.5], "link": ["4", 0]}}, "empty": {}}"#;
    let extra = graph::map([("workflow", Literal::from("ä")), ("other", Literal::from(1))]);
    let text = picture::provenance(&prompt, Some(&extra));
    assert_eq!(text[0], ("prompt".to_owned(), expected.to_owned()));
    let bytes = picture::encode_png(&image([1, 2, 2, 3], |_| 0.5), 0, 4, &text).unwrap();
    assert_eq!(picture::png_text(&bytes), text);
    let place = |needle: &[u8]| bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    assert!(place(b"tEXtprompt\0{") < place(b"tEXtworkflow\0\"\\u00e4\""), "uncompressed, and in order");
    assert!(place(b"tEXtother") < place(b"IDAT"));
}

#[test]
fn keys_that_a_png_cannot_have_are_left_out() {
    let text = ["", "good", "日本", "nul\0", &"x".repeat(80)].map(|key| (key.to_owned(), "v".to_owned()));
    let bytes = picture::encode_png(&image([1, 1, 1, 3], |_| 0.0), 0, 1, &text).unwrap();
    assert_eq!(picture::png_text(&bytes), [("good".to_owned(), "v".to_owned())]);
}

#[test]
fn text_is_copied_from_one_file_to_another() {
    let text = [("prompt".to_owned(), "{}".to_owned()), ("a".to_owned(), "b".to_owned())];
    let with = picture::png_of(&gradient(3, 3, 3), 4, &text).unwrap();
    let without = png(&gradient(4, 4, 4));
    let copied = picture::with_text_of(&without, &with);
    assert_eq!(picture::png_text(&copied), text);
    assert_eq!(picture::decode_pixels(&copied).unwrap(), gradient(4, 4, 4));
    assert_eq!(picture::with_text_of(&without, b"no picture"), without);
    assert_eq!(picture::with_text_of(b"no picture", &with), b"no picture");
}

#[test]
fn a_mask_editor_gets_its_alpha_and_the_text_stays() {
    let text = [("prompt".to_owned(), "{}".to_owned())];
    let original = picture::png_of(&gradient(2, 2, 3), 4, &text).unwrap();
    let mask = gradient(2, 2, 4);
    let joined = picture::with_alpha_of(&original, &png(&mask)).unwrap();
    let pixels = picture::decode_pixels(&joined).unwrap();
    for (at, pixel) in pixels.bytes.chunks_exact(4).enumerate() {
        assert_eq!(pixel[..3], gradient(2, 2, 3).bytes[at * 3..at * 3 + 3]);
        assert_eq!(pixel[3], mask.bytes[at * 4 + 3]);
    }
    assert_eq!(picture::png_text(&joined), text);
    assert!(
        picture::with_alpha_of(&original, &png(&gradient(3, 2, 4))).unwrap_err().to_string().contains("3x2")
    );
}

#[test]
fn views_are_written_in_other_formats() {
    let source = png(&gradient(8, 6, 4));
    let webp = picture::preview(&source, PreviewFormat::Webp(90), false).unwrap();
    assert_eq!(&webp[..4], b"RIFF");
    assert_eq!(picture::decode_pixels(&webp).unwrap().channels, 4);
    let opaque = picture::preview(&source, PreviewFormat::Webp(90), true).unwrap();
    assert_eq!(picture::decode_pixels(&opaque).unwrap().channels, 3);
    let large = png(&gradient(128, 96, 3));
    let size = |quality| picture::preview(&large, PreviewFormat::Webp(quality), false).unwrap().len();
    assert!(size(10) < size(50) && size(50) < size(95), "quality is heard: {:?}", [10, 50, 95].map(size));
    let jpeg = picture::preview(&source, PreviewFormat::Jpeg(90), false).unwrap();
    assert_eq!(&jpeg[..3], b"\xff\xd8\xff");
    let colours = picture::decode_pixels(&picture::colours_png(&source).unwrap()).unwrap();
    assert_eq!(colours.bytes[3..6], gradient(8, 6, 4).bytes[4..7]);
    let alpha = picture::decode_pixels(&picture::alpha_png(&source).unwrap()).unwrap();
    assert_eq!(alpha.bytes[..4], [0, 0, 0, gradient(8, 6, 4).bytes[3]]);
    let opaque = picture::decode_pixels(&picture::alpha_png(&png(&gradient(2, 2, 3))).unwrap()).unwrap();
    assert!(opaque.bytes.chunks_exact(4).all(|pixel| *pixel == [0, 0, 0, 255]));
}

#[test]
fn previews_fill_a_square_in_one_direction() {
    let of = |width, height| Picture { width, height, rgb: vec![128; width * height * 3], is_result: false };
    let size = |picture: &Picture, side| {
        let pixels = picture::decode_pixels(&picture::preview_jpeg(picture, side, 95).unwrap()).unwrap();
        (pixels.width, pixels.height)
    };
    assert_eq!(size(&of(128, 64), 512), (512, 256));
    assert_eq!(size(&of(30, 60), 20), (10, 20));
    assert_eq!(size(&of(16, 16), 16), (16, 16));
    assert_eq!(size(&of(500, 1), 100), (100, 1));
    let whole = picture::decode_pixels(&picture::picture_png(&of(5, 7)).unwrap()).unwrap();
    assert_eq!((whole.width, whole.height, whole.bytes[0]), (5, 7, 128));
    let broken = Picture { width: 4, height: 4, rgb: vec![0; 3], is_result: false };
    assert!(picture::preview_jpeg(&broken, 512, 95).is_err() && picture::picture_png(&broken).is_err());
}

#[test]
fn deep_grey_and_indexed_pictures_are_read() {
    let none = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    let deep =
        special_png(png::ColorType::Grayscale, png::BitDepth::Sixteen, &[0x12, 0xFF, 0xFF, 0xFF], none);
    assert_eq!(picture::decode_pixels(&deep).unwrap().bytes, [0x12, 0x12, 0x12, 0xFF, 0xFF, 0xFF]);
    let alpha = special_png(png::ColorType::GrayscaleAlpha, png::BitDepth::Eight, &[9, 128, 7, 255], none);
    assert_eq!(picture::decode_pixels(&alpha).unwrap().bytes, [9, 9, 9, 128, 7, 7, 7, 255]);
    let indexed = special_png(png::ColorType::Indexed, png::BitDepth::Eight, &[1, 0], |encoder| {
        encoder.set_palette(vec![1, 2, 3, 4, 5, 6]);
    });
    assert_eq!(picture::decode_pixels(&indexed).unwrap().bytes, [4, 5, 6, 1, 2, 3]);
    let seen_through = special_png(png::ColorType::Indexed, png::BitDepth::Eight, &[1, 0], |encoder| {
        encoder.set_palette(vec![1, 2, 3, 4, 5, 6]);
        encoder.set_trns(vec![0, 200]);
    });
    assert_eq!(picture::decode_pixels(&seen_through).unwrap().bytes, [4, 5, 6, 200, 1, 2, 3, 0]);
}

#[test]
fn the_camera_says_how_to_turn() {
    let pixels = Pixels { width: 2, height: 1, channels: 3, bytes: vec![255, 0, 0, 0, 0, 255] };
    let plain = png(&pixels);
    // An EXIF block that says: turn clockwise by a quarter.
    let exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let mut chunk = Vec::from((exif.len() as u32).to_be_bytes());
    chunk.extend(b"eXIf");
    chunk.extend(exif);
    chunk.extend(crc(&chunk[4..]).to_be_bytes());
    // After the signature and the header, which is 25 bytes long.
    let turned = [&plain[..33], &chunk, &plain[33..]].concat();
    let image = picture::decode(&runtime::host::Host::with_budget(1 << 30), &turned).unwrap();
    assert_eq!((image.width, image.height), (1, 2));
    assert_eq!(image.values, [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(picture::decode_pixels(&turned).unwrap(), pixels, "views show it as it is stored");
}

/// The checksum of a PNG chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { 0xEDB8_8320 ^ (crc >> 1) } else { crc >> 1 },
        )
    })
}

#[test]
fn moving_pictures_are_a_batch() {
    let frames = image([3, 2, 2, 3], |at| (at % 5) as f32 / 5.0);
    let text = [("prompt".to_owned(), "{}".to_owned())];
    let bytes = picture::animated_png(&frames, 100, 4, &text).unwrap();
    let back = picture::decode_frames(&runtime::host::Host::with_budget(1 << 30), &bytes).unwrap();
    assert_eq!((back.batch, back.height, back.width, back.channels), (3, 2, 2, 3));
    let expected = frames.values.iter().map(|value| (value * 255.0).floor() / 255.0);
    assert!(back.values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!(picture::decode(&runtime::host::Host::with_budget(1 << 30), &bytes).unwrap().batch, 1);
    assert!(bytes.windows(10).any(|window| window == b"comfprompt"));
}

#[test]
fn hostile_files_end_with_an_error() {
    let good = png(&gradient(16, 16, 3));
    let mut huge = good.clone();
    huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let sum = crc(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    let error = picture::decode(&runtime::host::Host::with_budget(1 << 30), &huge).unwrap_err().to_string();
    assert!(
        error.contains("pixels") || error.to_lowercase().contains("limit") || error.contains("memory"),
        "{error}"
    );
    let host = runtime::host::Host::with_budget(1 << 30);
    for bytes in
        [&b""[..], b"GIF89a", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF\0\0\0\0WEBP", b"<svg/>", b"\xff\xd8\xff"]
    {
        assert!(
            picture::decode(&host, bytes).is_err() && picture::decode_frames(&host, bytes).is_err(),
            "{bytes:?}"
        );
        assert!(picture::png_text(bytes).is_empty());
        let _ = picture::with_text_of(bytes, bytes);
    }
    for length in (0..good.len()).step_by(7) {
        let _ = picture::decode(&host, &good[..length]);
        let _ = picture::png_text(&good[..length]);
        let _ = picture::with_text_of(&good[..length], &good);
    }
    let mut random = testkit::Random::new(1);
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..4 {
            let at = random.below(bytes.len());
            bytes[at] = random.next_u64() as u8;
        }
        let _ = picture::decode_frames(&runtime::host::Host::with_budget(1 << 30), &bytes);
    }
}
