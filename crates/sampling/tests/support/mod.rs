//! What the golden tests share: latents from files, and a model that answers with stored predictions.
#![allow(dead_code, reason = "each test file uses a part of it")]

use sampling::{Conditioning, Latent, ModelSampling, Observer, Parameterization, Predictor, Step};
use sampling::{LatentSpec, Scaling};
use testkit::Golden;

/// A file of this crate's test data.
pub(crate) fn data(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A tensor of a golden file as a latent.
pub(crate) fn latent(golden: &Golden, name: &str) -> Latent {
    let (shape, values) = golden.tensor(name).unwrap();
    Latent::new(shape.dims().to_vec(), values).unwrap()
}

/// The model samplings that the goldens name.
pub(crate) fn sampling(name: &str) -> ModelSampling {
    match name {
        "sd15" | "sdxl" => ModelSampling::discrete(Parameterization::Eps, false),
        "flux_default" => ModelSampling::exponential_flow(1.15),
        "flux_schnell" => ModelSampling::flow(1.0, 1.0),
        "sd3_shift3" => ModelSampling::flow(3.0, 1000.0),
        "sd3_shift5" => ModelSampling::flow(5.0, 1000.0),
        "wan_shift8" => ModelSampling::flow(8.0, 1000.0),
        "qwen_image" => ModelSampling::exponential_flow(1.15),
        "hunyuan_video" => ModelSampling::flow(7.0, 1000.0),
        "z_image" => ModelSampling::flow(3.0, 1.0),
        "aura_shift3.1" => ModelSampling::flow(3.1, 1.0),
        "aura_shift1.73" => ModelSampling::flow(1.73, 1.0),
        "ltxv" => ModelSampling::exponential_flow(2.37),
        "mochi" => ModelSampling::flow(6.0, 1.0),
        "flux_1024x1024" => {
            ModelSampling::exponential_flow(ModelSampling::shift_for_size(0.5, 1.15, 1024, 1024))
        }
        "flux_64x64" => ModelSampling::exponential_flow(ModelSampling::shift_for_size(0.5, 1.15, 64, 64)),
        other => panic!("no sampling is called {other}"),
    }
}

/// Answers with stored predictions, in order; guidance has been applied to them already.
pub(crate) struct Replay {
    pub(crate) answers: std::vec::IntoIter<Latent>,
    pub(crate) asked: Vec<(Latent, f32)>,
}

impl Replay {
    pub(crate) fn new(answers: Vec<Latent>) -> Replay {
        Replay { answers: answers.into_iter(), asked: Vec::new() }
    }
}

impl Predictor for Replay {
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        _: &[Conditioning],
    ) -> Result<Vec<Latent>, Box<dyn std::error::Error + Send + Sync>> {
        self.asked.push((x.clone(), sigma));
        let positive = self.answers.next().ok_or("more calls than stored predictions")?;
        Ok(vec![positive])
    }
}

/// Keeps what it is told.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) x: Vec<Latent>,
    pub(crate) denoised: Vec<Latent>,
    pub(crate) cancel_after: Option<usize>,
}

impl Observer for Recorder {
    fn step(&mut self, step: &Step<'_>) {
        assert_eq!(step.index, self.x.len());
        self.x.push(step.x.clone());
        self.denoised.push(step.denoised.clone());
    }

    fn cancelled(&self) -> bool {
        self.cancel_after.is_some_and(|steps| self.x.len() >= steps)
    }
}

/// The scale of a family's latents; previews are not made here.
const fn latents(channels: usize, scale: f32, shift: f32) -> LatentSpec {
    LatentSpec {
        name: "the family's",
        channels,
        scaling: Scaling::Uniform { scale, shift },
        pixels_per_value: 8,
        frames_per_value: None,
        colours: &[],
        background: [0.0; 3],
    }
}

/// Stable Diffusion 1.
pub(crate) static SD15: LatentSpec = latents(4, 0.18215, 0.0);
/// Stable Diffusion 3.
pub(crate) static SD3: LatentSpec = latents(16, 1.5305, 0.0609);
/// FLUX.1.
pub(crate) static FLUX: LatentSpec = latents(16, 0.3611, 0.1159);
