//! Upscalers of latents against formulas that were written down elsewhere (`tools/reference`), and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::detect;
use models::detect::{Reader, Role};
use models::latent_upscale::LatentUpscaler;
use placement::RemotePolicy;
use residency::{Residency, Session};
use support::transformers::input;
use support::*;

const NAME: &str = "ltxv_spatial_tiny";
/// The kinds for HunyuanVideo 1.5, by the names of their results, and what their files seem to be.
const REFINING: [(&str, &str); 2] =
    [("plain", "HunyuanVideo 1.5, 720p"), ("staged", "HunyuanVideo 1.5, 1080p")];

fn upscaler(file: &Checkpoint, kind: &str) -> Box<dyn LatentUpscaler> {
    let detected = detect(file);
    assert_eq!(detected.seems(), format!("an upscaler of latents ({kind})"));
    let part = detected.part(Role::LatentUpscale, "an upscaler of latents").unwrap();
    let Some(Reader::LatentUpscale(family)) = part.reader else { panic!("nobody reads {part}") };
    let upscaler = (family.read)(file, part).unwrap();
    assert_eq!(part.unused(file, &upscaler.manifest(file).unwrap()), [""; 0]);
    upscaler
}

fn enlarged(upscaler: &dyn LatentUpscaler, session: &Session) -> Vec<f32> {
    let latent = input(&golden(NAME), session, "x");
    let large = upscaler.enlarge(session, &latent).unwrap();
    assert_eq!(large.dims(), [1, 128, 2, 6, 4]);
    large.to_vec().unwrap()
}

#[test]
fn latents_grow_as_the_formulas_say_wherever_the_weights_are() {
    let file = checkpoint(NAME);
    let upscaler = upscaler(&file, "LTX-Video, spatial");
    assert_eq!((upscaler.channels(), upscaler.scale()), (128, 2));
    let expected = enlarged(&*upscaler, &open_on_cpu(upscaler.manifest(&file).unwrap()));
    let golden = golden(NAME);
    let (shape, _) = golden.tensor("enlarged").unwrap();
    golden.assert_close("enlarged", &shape, &expected, 1e-5);
    for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let manifest = || upscaler.manifest(&file).unwrap();
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, RemotePolicy::InPlace);
        let session = open(&residency, manifest(), plan);
        assert!(enlarged(&*upscaler, &session) == expected, "{text}");
    }
}

#[test]
fn other_latents_are_refused() {
    let file = checkpoint(NAME);
    let upscaler = upscaler(&file, "LTX-Video, spatial");
    let session = open_on_cpu(upscaler.manifest(&file).unwrap());
    let wrong = session.lane().unwrap().full([1, 16, 1, 2, 2], 0.0).unwrap();
    let told = upscaler.enlarge(&session, &wrong).unwrap_err().to_string();
    assert!(told.contains("[batch, 128, frames, height, width]"), "{told}");
}

#[test]
fn latents_are_refined_as_the_formulas_say_wherever_the_weights_are() {
    let golden = golden("hunyuan_video_15_sr_tiny");
    for (name, kind) in REFINING {
        let file = checkpoint(&format!("hunyuan_video_15_{name}_upscaler_tiny"));
        let upscaler = upscaler(&file, kind);
        assert_eq!((upscaler.channels(), upscaler.scale()), (32, 1));
        let refined = |session: &Session| {
            let latent = input(&golden, session, "latent");
            upscaler.enlarge(session, &latent).unwrap().to_vec().unwrap()
        };
        let expected = refined(&open_on_cpu(upscaler.manifest(&file).unwrap()));
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &expected, 1e-5);
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let manifest = || upscaler.manifest(&file).unwrap();
        let text = "sim:0,1%;cpu,99%";
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, RemotePolicy::Stream);
        assert!(refined(&open(&residency, manifest(), plan)) == expected, "{name}");
        let session = open_on_cpu(upscaler.manifest(&file).unwrap());
        let wrong = session.lane().unwrap().full([1, 16, 1, 2, 2], 0.0).unwrap();
        assert!(upscaler.enlarge(&session, &wrong).unwrap_err().to_string().contains("[batch, 32, frames"));
    }
}
