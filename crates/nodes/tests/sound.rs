//! Videos that go with a sound or move as others do, and videos made larger, as their workflows run them: sound loaded,
//! listened to and told, poses and faces followed, latents enlarged and refined; and what does not fit is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use golden_support::{Bench, host};
use graph::{Literal, RunEnd};
use meta::DeviceId;
use nodes::value::LatentImage;
use serde_json::{Map, Value, json};

/// A node of a workflow.
#[expect(clippy::needless_pass_by_value, reason = "inputs are written where they are used")]
fn node(class: &str, inputs: Value) -> Value {
    json!({"class_type": class, "inputs": inputs})
}

/// A model, an autoencoder, two texts of this width, and a picture, under the numbers 1 to 5.
fn loaders(model: &str, vae: &str, width: usize) -> Map<String, Value> {
    let file = |name: &str| format!("{name}.safetensors");
    let text = |seed: u64| node("Tell", json!({"seed": seed, "beside": false, "tokens": 5, "width": width}));
    let nodes = [
        ("1", node("UNETLoader", json!({"unet_name": file(model), "weight_dtype": "default"}))),
        ("2", node("VAELoader", json!({"vae_name": file(vae)}))),
        ("3", text(1)),
        ("4", text(2)),
        ("5", node("LoadImage", json!({"image": "image.png"}))),
    ];
    nodes.into_iter().map(|(id, node)| (id.to_owned(), node)).collect()
}

/// The same with a sound that an encoder listens to, under the numbers 6 to 8.
fn with_sound(bench: &Bench, mut nodes: Map<String, Value>, encoder: &str) -> Map<String, Value> {
    std::fs::write(bench.input("sound.wav"), wave()).unwrap();
    let name = format!("{encoder}.safetensors");
    nodes.insert("6".into(), node("LoadAudio", json!({"audio": "sound.wav"})));
    nodes.insert("7".into(), node("AudioEncoderLoader", json!({"audio_encoder_name": name})));
    nodes.insert(
        "8".into(),
        node("AudioEncoderEncode", json!({"audio_encoder": ["7", 0], "audio": ["6", 0]})),
    );
    nodes
}

/// Half a second of two channels at 22050 values a second, as a file.
fn wave() -> Vec<u8> {
    let (rate, count) = (22_050u32, 11_025u32);
    let mut bytes = Vec::new();
    bytes.extend(b"RIFF");
    bytes.extend((36 + 4 * count).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend(2u16.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend((4 * rate).to_le_bytes());
    bytes.extend(4u16.to_le_bytes());
    bytes.extend(16u16.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend((4 * count).to_le_bytes());
    for at in 0..count {
        let wave = |pitch: f32| ((at as f32 * pitch).sin() * 9000.0) as i16;
        bytes.extend(wave(0.1).to_le_bytes());
        bytes.extend(wave(0.03).to_le_bytes());
    }
    bytes
}

/// A latent that is sampled of what a node gives.
fn sampled(bench: &Bench, mut nodes: Map<String, Value>, of: &str) -> LatentImage {
    let sampling = json!({"model": ["1", 0], "positive": [of, 0], "negative": [of, 1], "latent_image": [of, 2],
        "seed": 3, "steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0});
    nodes.insert("sampler".into(), node("KSampler", sampling));
    let workflow: Literal = serde_json::from_value(Value::Object(nodes)).unwrap();
    let got = bench.run(&workflow, &[("latent", "sampler")]);
    let latent = LatentImage::clone(&got.object::<LatentImage>("latent"));
    assert!(latent.samples.values().iter().all(|value| value.is_finite()));
    latent
}

fn failure(bench: &Bench, nodes: Map<String, Value>, of: &str) -> String {
    let workflow: Literal = serde_json::from_value(Value::Object(nodes)).unwrap();
    match bench.executor().run(bench.job(&workflow, &[("made", of)]).request).end {
        RunEnd::Failed(failure) => failure.message,
        other => panic!("{other:?}"),
    }
}

/// The inputs of a node that makes a small video go with a sound; those that are null are left out.
fn small(inputs: &Value) -> Value {
    let mut all = json!({"positive": ["3", 0], "negative": ["4", 0], "vae": ["2", 0], "width": 64, "height": 64,
        "length": 5, "batch_size": 1});
    let given = inputs.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    all.as_object_mut().unwrap().extend(given.map(|(name, value)| (name.clone(), value.clone())));
    all
}

#[test]
fn a_video_hears_a_sound() {
    let files = ["wan2.1_humo_tiny", "wan_2.1_vae_tiny", "whisper_tiny", "wav2vec2_large_tiny"];
    let bench = Bench::with(&files, host(), DeviceId::CPU);
    let of = |encoder: &str, inputs: Value| {
        let mut nodes = with_sound(&bench, loaders("wan2.1_humo_tiny", "wan_2.1_vae_tiny", 4096), encoder);
        nodes.insert("9".into(), node("WanHuMoImageToVideo", small(&inputs)));
        nodes
    };
    let heard = json!({"audio_encoder_output": ["8", 0], "ref_image": ["5", 0]});
    let both = sampled(&bench, of("whisper_tiny", heard.clone()), "9");
    assert_eq!(both.samples.shape(), [1, 16, 2, 8, 8]);
    let alone = sampled(&bench, of("whisper_tiny", json!({"audio_encoder_output": ["8", 0]})), "9");
    assert!(both.samples.values() != alone.samples.values());
    let told = failure(&bench, of("wav2vec2_large_tiny", heard), "9");
    assert!(told.contains("whisper_large_v3"), "{told}");
}

#[test]
fn somebody_speaks_and_goes_on() {
    let files = ["wan2.2_s2v_tiny", "wan_2.1_vae_tiny", "wav2vec2_large_tiny"];
    let bench = Bench::with(&files, host(), DeviceId::CPU);
    let nodes =
        || with_sound(&bench, loaders("wan2.2_s2v_tiny", "wan_2.1_vae_tiny", 4096), "wav2vec2_large_tiny");
    let of = |inputs: Value| {
        let mut nodes = nodes();
        nodes.insert("9".into(), node("WanSoundImageToVideo", small(&inputs)));
        nodes
    };
    let all = json!({"audio_encoder_output": ["8", 0], "ref_image": ["5", 0], "control_video": ["5", 0]});
    let first = sampled(&bench, of(all), "9");
    assert_eq!(first.samples.shape(), [1, 16, 2, 8, 8]);
    let mut seen = vec![first.samples.values().to_vec()];
    for inputs in [
        json!({"audio_encoder_output": ["8", 0], "ref_image": ["5", 0]}),
        json!({"audio_encoder_output": ["8", 0]}),
        json!({"ref_image": ["5", 0]}),
        json!({"audio_encoder_output": ["8", 0], "ref_image": ["5", 0], "ref_motion": ["5", 0]}),
    ] {
        let latent = sampled(&bench, of(inputs.clone()), "9").samples.values().to_vec();
        assert!(!seen.contains(&latent), "{inputs} changes nothing");
        seen.push(latent);
    }
    // What goes on is as large as what was there.
    let mut nodes = of(json!({"audio_encoder_output": ["8", 0], "ref_image": ["5", 0]}));
    let more = json!({"positive": ["3", 0], "negative": ["4", 0], "vae": ["2", 0], "length": 9, "video_latent": ["9", 2],
        "audio_encoder_output": ["8", 0], "ref_image": ["5", 0]});
    nodes.insert("10".into(), node("WanSoundImageToVideoExtend", more));
    let latent = sampled(&bench, nodes, "10");
    assert_eq!(latent.samples.shape(), [1, 16, 3, 8, 8]);
}

#[test]
fn a_video_is_made_larger() {
    let files = [
        "hunyuan_video_15_sr_tiny",
        "hunyuan_video_15_vae_tiny",
        "hunyuan_video_15_staged_upscaler_tiny",
        "hunyuan_video_15_plain_upscaler_tiny",
        "ltxv_spatial_tiny",
    ];
    let bench = Bench::with(&files, host(), DeviceId::CPU);
    let of = |upscaler: &str, width: usize, inputs: Value| {
        let mut nodes = loaders("hunyuan_video_15_sr_tiny", "hunyuan_video_15_vae_tiny", 256);
        let empty = json!({"width": 64, "height": 64, "length": 5, "batch_size": 1});
        nodes.insert("6".into(), node("EmptyHunyuanVideo15Latent", empty));
        let name = format!("{upscaler}.safetensors");
        nodes.insert("7".into(), node("LatentUpscaleModelLoader", json!({"model_name": name})));
        let larger = json!({"model": ["7", 0], "samples": ["6", 0], "upscale_method": "bilinear", "width": width,
            "height": 96, "crop": "disabled"});
        nodes.insert("8".into(), node("HunyuanVideo15LatentUpscaleWithModel", larger));
        let mut all = json!({"positive": ["3", 0], "negative": ["4", 0], "latent": ["8", 0]});
        all.as_object_mut().unwrap().extend(inputs.as_object().unwrap().clone());
        nodes.insert("9".into(), node("HunyuanVideo15SuperResolution", all));
        nodes
    };
    let plain = "hunyuan_video_15_plain_upscaler_tiny";
    let mut seen = Vec::new();
    for (upscaler, inputs) in [
        ("hunyuan_video_15_staged_upscaler_tiny", json!({"noise_augmentation": 0.7})),
        (plain, json!({"noise_augmentation": 0.7})),
        (plain, json!({"noise_augmentation": 0.0})),
        (plain, json!({"noise_augmentation": 0.7, "start_image": ["5", 0], "vae": ["2", 0]})),
    ] {
        let latent = sampled(&bench, of(upscaler, 128, inputs.clone()), "9");
        assert_eq!(latent.samples.shape(), [1, 32, 2, 6, 8]);
        assert!(!seen.contains(&latent.samples.values().to_vec()), "{upscaler} {inputs} changes nothing");
        seen.push(latent.samples.values().to_vec());
    }
    // A side of zero follows from the other.
    let latent = sampled(&bench, of(plain, 0, json!({"noise_augmentation": 0.5})), "9");
    assert_eq!(latent.samples.shape(), [1, 32, 2, 6, 6]);
    let told = failure(&bench, of("ltxv_spatial_tiny", 128, json!({"noise_augmentation": 0.5})), "8");
    assert!(told.contains("128 channels, but this one has 32"), "{told}");
}

#[test]
fn a_picture_moves_as_somebody_in_a_video() {
    let files = ["wan2.2_animate_tiny", "wan_2.1_vae_tiny"];
    let bench = Bench::with(&files, host(), DeviceId::CPU);
    let of = |inputs: Value| {
        let mut nodes = loaders("wan2.2_animate_tiny", "wan_2.1_vae_tiny", 4096);
        nodes.insert("6".into(), node("RepeatImageBatch", json!({"image": ["5", 0], "amount": 3})));
        nodes.insert("9".into(), node("WanAnimateToVideo", small(&inputs)));
        nodes
    };
    let mut seen = Vec::new();
    for inputs in [
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0}),
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0, "reference_image": ["5", 0]}),
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0, "reference_image": ["5", 0],
            "pose_video": ["6", 0]}),
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0, "reference_image": ["5", 0],
            "face_video": ["6", 0]}),
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0, "background_video": ["6", 0]}),
        json!({"continue_motion_max_frames": 5, "video_frame_offset": 0, "background_video": ["6", 0],
            "character_mask": ["5", 1]}),
        json!({"continue_motion_max_frames": 1, "video_frame_offset": 2, "continue_motion": ["6", 0],
            "pose_video": ["6", 0]}),
    ] {
        let latent = sampled(&bench, of(inputs.clone()), "9");
        // The picture stands in front of the video.
        assert_eq!(latent.samples.shape(), [1, 16, 3, 8, 8]);
        assert!(!seen.contains(&latent.samples.values().to_vec()), "{inputs} changes nothing");
        seen.push(latent.samples.values().to_vec());
    }
}
