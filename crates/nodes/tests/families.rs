//! Whole workflows of families whose nodes have no reference cases, on small files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use golden_support::{Bench, host};
use graph::Literal;
use meta::DeviceId;
use nodes::value::{Conditioning, Image, LatentImage};
use testkit::Report;

fn workflow(nodes: &str) -> Literal {
    serde_json::from_str(&format!("{{{nodes}}}")).unwrap()
}

#[test]
fn pixels_are_painted_without_an_autoencoder() {
    let bench = Bench::with(&["chroma_radiance_tiny"], host(), DeviceId::CPU);
    let painted = |tile: i64| {
        let nodes = format!(
            r#""1": {{"class_type": "UNETLoader", "inputs": {{"unet_name": "chroma_radiance_tiny.safetensors",
                "weight_dtype": "default"}}}},
            "2": {{"class_type": "ChromaRadianceOptions", "inputs": {{"model": ["1", 0], "preserve_wrapper": true,
                "start_sigma": 1.0, "end_sigma": 0.0, "nerf_tile_size": {tile}}}}},
            "3": {{"class_type": "Tell", "inputs": {{"seed": 1, "beside": false, "tokens": 12}}}},
            "4": {{"class_type": "Tell", "inputs": {{"seed": 2, "beside": false, "tokens": 12}}}},
            "5": {{"class_type": "EmptyChromaRadianceLatentImage", "inputs": {{"width": 64, "height": 48,
                "batch_size": 1}}}},
            "6": {{"class_type": "KSampler", "inputs": {{"model": ["2", 0], "positive": ["3", 0], "negative": ["4", 0],
                "latent_image": ["5", 0], "seed": 7, "steps": 2, "cfg": 3.0, "sampler_name": "euler",
                "scheduler": "simple", "denoise": 1.0}}}},
            "7": {{"class_type": "VAELoader", "inputs": {{"vae_name": "pixel_space"}}}},
            "8": {{"class_type": "VAEDecode", "inputs": {{"samples": ["6", 0], "vae": ["7", 0]}}}},
            "9": {{"class_type": "VAEEncode", "inputs": {{"pixels": ["8", 0], "vae": ["7", 0]}}}}"#
        );
        bench.run(&workflow(&nodes), &[("latent", "6"), ("image", "8"), ("again", "9")])
    };
    let usual = painted(-1);
    let (latent, image) = (usual.object::<LatentImage>("latent"), usual.object::<Image>("image"));
    assert_eq!((latent.samples.shape(), image.shape()), (&[1, 3, 48, 64][..], [1, 48, 64, 3]));
    assert!(image.values.iter().all(|value| (0.0..=1.0).contains(value)));
    assert!(image.values.iter().any(|value| *value > 0.0 && *value < 1.0));
    let (plane, first) = (48 * 64, (latent.samples.values()[0] + 1.0) / 2.0);
    assert!((image.values[0] - first.clamp(0.0, 1.0)).abs() < 1e-6);
    let again = usual.object::<LatentImage>("again");
    assert!((again.samples.values()[2 * plane + 5] - (image.values[5 * 3 + 2] * 2.0 - 1.0)).abs() < 1e-6);
    // One patch at a time gives the same picture.
    let apart = painted(1).object::<LatentImage>("latent");
    Report::new("one patch at a time", apart.samples.values(), latent.samples.values()).assert(1e-5);
}

/// A video that begins with a picture, with these tracks and the positions of its frames scaled.
fn following(tracks: &str, scale: f64) -> Literal {
    workflow(&format!(
        r#""1": {{"class_type": "UNETLoader", "inputs": {{"unet_name": "wan2.1_i2v_tiny.safetensors",
            "weight_dtype": "default"}}}},
        "2": {{"class_type": "ScaleROPE", "inputs": {{"model": ["1", 0], "scale_x": 1.0, "shift_x": 0.0, "scale_y": 1.0,
            "shift_y": 0.0, "scale_t": {scale:?}, "shift_t": 0.0}}}},
        "3": {{"class_type": "Tell", "inputs": {{"seed": 1, "beside": false, "tokens": 12}}}},
        "4": {{"class_type": "Tell", "inputs": {{"seed": 2, "beside": false, "tokens": 12}}}},
        "5": {{"class_type": "VAELoader", "inputs": {{"vae_name": "wan_2.1_vae_tiny.safetensors"}}}},
        "6": {{"class_type": "LoadImage", "inputs": {{"image": "image.png"}}}},
        "7": {{"class_type": "WanTrackToVideo", "inputs": {{"positive": ["3", 0], "negative": ["4", 0], "vae": ["5", 0],
            "tracks": "{tracks}", "width": 64, "height": 48, "length": 9, "batch_size": 1, "temperature": 220.0,
            "topk": 2, "start_image": ["6", 0]}}}},
        "8": {{"class_type": "KSampler", "inputs": {{"model": ["2", 0], "positive": ["7", 0], "negative": ["7", 1],
            "latent_image": ["7", 2], "seed": 7, "steps": 1, "cfg": 1.0, "sampler_name": "euler",
            "scheduler": "simple", "denoise": 1.0}}}}"#
    ))
}

#[test]
fn a_video_follows_tracks_and_its_frames_stand_where_they_are_said_to() {
    let bench = Bench::with(&["wan2.1_i2v_tiny", "wan_2.1_vae_tiny"], host(), DeviceId::CPU);
    let run = |tracks: &str, scale: f64| {
        let got = bench.run(&following(tracks, scale), &[("told", "7"), ("latent", "8")]);
        let cond = got.object::<Conditioning>("told").entries[0].cond.clone();
        let latent = got.object::<LatentImage>("latent");
        (cond.concat_latent.unwrap(), cond.concat_mask.unwrap(), latent.samples.values().to_vec())
    };
    let points =
        (0..121).map(|at| format!("{{'x': {}, 'y': 28.8}}", 8 + at / 3)).collect::<Vec<_>>().join(",");
    let (still, whole, plain) = run("[]", 1.0);
    let (led, mask, moved) = run(&format!("[{points}]"), 1.0);
    assert_eq!((still.shape(), led.shape()), (&[1, 16, 3, 6, 8][..], &[1, 16, 3, 6, 8][..]));
    assert_eq!((whole.shape(), mask.shape()), (&[1, 4, 3, 6, 8][..], &[1, 4, 3, 6, 8][..]));
    // The first frame is the picture's, later ones are given near the track alone.
    let plane = 6 * 8;
    for channel in 0..16 {
        let first = channel * 3 * plane..channel * 3 * plane + plane;
        let report = Report::new("the first frame", &led.values()[first.clone()], &still.values()[first]);
        report.assert(1e-4);
    }
    assert!(mask.values()[..plane].iter().all(|made| *made == 0.0));
    let later = &mask.values()[plane..3 * plane];
    assert!(later.iter().any(|made| *made < 0.5) && later.iter().any(|made| *made > 0.99));
    assert_ne!(plain, moved);
    // Without tracks it is a video that begins with a picture.
    assert!(whole.values()[plane..3 * plane].iter().all(|made| *made == 1.0));
    let (_, _, scaled) = run("[]", 7.0);
    assert!(!Report::new("scaled", &scaled, &plain).passes(1e-3));
}

#[test]
fn a_latent_video_grows() {
    let bench = Bench::with(&["ltxv_tiny", "ltxv_spatial_tiny"], host(), DeviceId::CPU);
    let nodes = r#"
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "ltxv_tiny.safetensors"}},
        "2": {"class_type": "LatentUpscaleModelLoader", "inputs": {"model_name": "ltxv_spatial_tiny.safetensors"}},
        "3": {"class_type": "EmptyLTXVLatentVideo", "inputs": {"width": 64, "height": 96, "length": 9, "batch_size": 2}},
        "4": {"class_type": "LTXVLatentUpsampler", "inputs": {"samples": ["3", 0], "upscale_model": ["2", 0],
            "vae": ["1", 2]}},
        "5": {"class_type": "LTXVLatentUpsampler", "inputs": {"samples": ["4", 0], "upscale_model": ["2", 0],
            "vae": ["1", 2]}}"#;
    let got = bench.run(&workflow(nodes), &[("once", "4"), ("twice", "5")]);
    let (once, twice) = (got.object::<LatentImage>("once"), got.object::<LatentImage>("twice"));
    assert_eq!(once.samples.shape(), [2, 128, 2, 6, 4]);
    assert_eq!(twice.samples.shape(), [2, 128, 2, 12, 8]);
    let half = once.samples.values().len() / 2;
    assert_eq!(once.samples.values()[..half], once.samples.values()[half..]);
    assert!(twice.samples.values().iter().all(|value| value.is_finite()));
    assert!(!once.samples.is_zero());
}
