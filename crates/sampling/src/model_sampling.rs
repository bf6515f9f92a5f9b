//! How a model family reads noise: its table of levels, its timesteps, and what its output means.

use std::borrow::Cow;

use crate::Latent;
use crate::schedule::linspace;

/// What the model's output is, relative to its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameterization {
    /// The noise in the input (Stable Diffusion 1.x, SDXL).
    Eps,
    /// The velocity between noise and image (Stable Diffusion 2.x at 768 pixels).
    V,
    /// The preconditioned output of Karras et al. (Playground 2.5).
    Edm,
    /// The velocity of a rectified flow (FLUX, SD3, Wan, Qwen-Image).
    Flow,
    /// The clean image itself.
    Clean,
    /// The clean image, for an input that is not scaled by the level.
    ImageToImage,
    /// The velocity of a rectified flow whose levels are noise added to the image, not mixed into it (Cosmos).
    AddedFlow,
    /// The noise, from which a consistency model's answer is made: mixed with the input by the timestep.
    Consistency,
}

/// How timesteps and noise levels map to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Clock {
    /// Positions in the table, interpolated in the logarithm. Positions stand for so many timesteps each; a timestep is the
    /// last of its position's.
    Table { stride: u16 },
    /// A quarter of the level's logarithm.
    LogQuarter,
    /// The angle whose tangent is the level.
    Angle,
    /// The share of noise in noise and image.
    Share,
    /// A flow whose time is shifted by a factor and scaled by `multiplier`.
    ShiftedFlow { shift: f64, multiplier: f64 },
    /// FLUX's flow, shifted by the exponential of `mu`.
    ExponentialFlow { mu: f64 },
}

/// The noise model of one model family.
#[derive(Clone, Debug)]
pub struct ModelSampling {
    parameterization: Parameterization,
    clock: Clock,
    sigmas: Vec<f32>,
    log_sigmas: Vec<f32>,
    sigma_data: f64,
}

/// Levels whose logarithms differ by no more are equally near.
const HALFWAY: f32 = 1e-6;
/// A level above every schedule's, for conditions that hold from the start.
const BEFORE_ALL: f64 = 999_999_999.9;

impl ModelSampling {
    /// A thousand levels from a linear schedule of the betas' square roots (Stable Diffusion 1.x, 2.x, SDXL).
    ///
    /// `zero_terminal_snr` rescales it so that the last level is pure noise.
    pub fn discrete(parameterization: Parameterization, zero_terminal_snr: bool) -> ModelSampling {
        let (first, last) = (0.00085f64.sqrt(), 0.012f64.sqrt());
        let step = (last - first) / 999.0;
        let mut kept = 1.0f64;
        let mut sigmas: Vec<f64> = (0..1000)
            .map(|i| {
                let root =
                    if i < 500 { first + step * f64::from(i) } else { last - step * f64::from(999 - i) };
                kept *= 1.0 - root * root;
                ((1.0 - kept) / kept).sqrt()
            })
            .collect();
        if zero_terminal_snr {
            rescale_to_zero_snr(&mut sigmas);
        }
        ModelSampling {
            parameterization,
            clock: Clock::Table { stride: 1 },
            log_sigmas: sigmas.iter().map(|s| s.ln() as f32).collect(),
            sigmas: sigmas.iter().map(|s| *s as f32).collect(),
            sigma_data: 1.0,
        }
    }

    /// The levels that consistency models were distilled at: every twentieth of the thousand (LCM).
    pub fn consistency(zero_terminal_snr: bool) -> ModelSampling {
        const STRIDE: u16 = 20;
        let all = ModelSampling::discrete(Parameterization::Consistency, zero_terminal_snr);
        let kept = |values: &[f32]| -> Vec<f32> {
            let stride = usize::from(STRIDE);
            values.iter().skip(stride - 1).step_by(stride).copied().collect()
        };
        let sigmas = kept(&all.sigmas);
        let log_sigmas = sigmas.iter().map(|sigma| sigma.ln()).collect();
        ModelSampling { sigmas, log_sigmas, clock: Clock::Table { stride: STRIDE }, ..all }
    }

    /// Continuous levels between two bounds; timesteps are a quarter of the level's logarithm.
    pub fn continuous_edm(
        parameterization: Parameterization,
        bounds: (f64, f64),
        sigma_data: f64,
    ) -> ModelSampling {
        ModelSampling::continuous(parameterization, bounds, sigma_data, Clock::LogQuarter)
    }

    /// Continuous levels between two bounds; timesteps are angles.
    pub fn continuous_v(
        parameterization: Parameterization,
        bounds: (f64, f64),
        sigma_data: f64,
    ) -> ModelSampling {
        ModelSampling::continuous(parameterization, bounds, sigma_data, Clock::Angle)
    }

    /// A rectified flow between two bounds of noise that is added to the image; timesteps are its share (Cosmos: 0.002, 80).
    pub fn added_flow(bounds: (f64, f64)) -> ModelSampling {
        ModelSampling::continuous(Parameterization::AddedFlow, bounds, 1.0, Clock::Share)
    }

    fn continuous(
        parameterization: Parameterization,
        (low, high): (f64, f64),
        sigma_data: f64,
        clock: Clock,
    ) -> ModelSampling {
        let sigmas: Vec<f32> =
            linspace(low.ln() as f32, high.ln() as f32, 1000).into_iter().map(f32::exp).collect();
        let log_sigmas = sigmas.iter().map(|s| s.ln()).collect();
        ModelSampling { parameterization, clock, sigmas, log_sigmas, sigma_data }
    }

    /// A rectified flow with shifted time: SD3 (3, 1000), Wan (8, 1000), AuraFlow (1.73, 1).
    ///
    /// `multiplier` is the model's timestep at level one.
    pub fn flow(shift: f64, multiplier: f64) -> ModelSampling {
        let mut sampling = ModelSampling {
            parameterization: Parameterization::Flow,
            clock: Clock::ShiftedFlow { shift, multiplier },
            sigmas: Vec::new(),
            log_sigmas: Vec::new(),
            sigma_data: 1.0,
        };
        let scale = multiplier as f32;
        sampling.sigmas = (1..=1000u16).map(|i| sampling.sigma(f32::from(i) / 1000.0 * scale)).collect();
        sampling
    }

    /// Ten thousand levels of a flow shifted by the exponential of `mu`: FLUX and Qwen-Image (1.15), LTX-Video (2.37).
    pub fn exponential_flow(mu: f64) -> ModelSampling {
        let mut sampling = ModelSampling {
            parameterization: Parameterization::Flow,
            clock: Clock::ExponentialFlow { mu },
            sigmas: Vec::new(),
            log_sigmas: Vec::new(),
            sigma_data: 1.0,
        };
        sampling.sigmas = (1..=10_000u16).map(|i| sampling.sigma(f32::from(i) / 10_000.0)).collect();
        sampling
    }

    /// FLUX's shift for an image size in pixels: `base` at 256 tokens, `max` at 4096, linear between and beyond.
    pub fn shift_for_size(base: f64, max: f64, width: usize, height: usize) -> f64 {
        let slope = (max - base) / (4096.0 - 256.0);
        let tokens = (width as f64 * height as f64) / 256.0;
        tokens * slope + (base - slope * 256.0)
    }

    /// What the model's output means.
    pub fn parameterization(&self) -> Parameterization {
        self.parameterization
    }

    /// Whether the noise replaces the image as in a flow, instead of being added to it.
    pub fn is_flow(&self) -> bool {
        self.parameterization == Parameterization::Flow
    }

    /// The table of levels, rising.
    pub fn sigmas(&self) -> &[f32] {
        &self.sigmas
    }

    /// The lowest level.
    pub fn sigma_min(&self) -> f32 {
        self.sigmas[0]
    }

    /// The highest level.
    pub fn sigma_max(&self) -> f32 {
        self.sigmas[self.sigmas.len() - 1]
    }

    /// The timestep that the model is given for a level.
    pub fn timestep(&self, sigma: f32) -> f32 {
        match self.clock {
            Clock::Table { stride } => {
                let log = sigma.ln();
                // Schedules meet sparse levels halfway, but for rounding; the reference takes the lower one there.
                let clearly = if stride > 1 { HALFWAY } else { 0.0 };
                let nearest =
                    self.log_sigmas.iter().enumerate().fold((0, f32::INFINITY), |best, (i, level)| {
                        let distance = (log - level).abs();
                        if distance + clearly < best.1 { (i, distance) } else { best }
                    });
                let stride = f32::from(stride);
                nearest.0 as f32 * stride + (stride - 1.0)
            }
            Clock::LogQuarter => 0.25 * sigma.ln(),
            Clock::Angle => sigma.atan() / std::f32::consts::PI * 2.0,
            Clock::Share => share(sigma),
            Clock::ShiftedFlow { multiplier, .. } => sigma * multiplier as f32,
            Clock::ExponentialFlow { .. } => sigma,
        }
    }

    /// The level of a timestep.
    pub fn sigma(&self, timestep: f32) -> f32 {
        match self.clock {
            Clock::Table { stride } => {
                let last = (self.log_sigmas.len() - 1) as f32;
                let stride = f32::from(stride);
                let t = ((timestep - (stride - 1.0)) / stride).max(0.0).min(last);
                let (low, high, w) = (t.floor(), t.ceil(), t.fract());
                let log = (1.0 - w) * self.log_sigmas[low as usize] + w * self.log_sigmas[high as usize];
                log.exp()
            }
            Clock::LogQuarter => (timestep / 0.25).exp(),
            Clock::Angle => (timestep * std::f32::consts::PI / 2.0).tan(),
            Clock::Share => {
                let top = self.sigma_max();
                if timestep >= share(top) { top } else { timestep / (1.0 - timestep) }
            }
            Clock::ShiftedFlow { shift, multiplier } => {
                let t = timestep / multiplier as f32;
                if shift == 1.0 { t } else { shift as f32 * t / (1.0 + (shift - 1.0) as f32 * t) }
            }
            Clock::ExponentialFlow { mu } => {
                let factor = mu.exp() as f32;
                factor * (1.0 / (factor + (1.0 / timestep - 1.0)))
            }
        }
    }

    /// The level at a share of the run, 0 at its start and 1 at its end.
    pub fn percent_to_sigma(&self, percent: f64) -> f64 {
        if percent <= 0.0 {
            return if self.is_flow() { 1.0 } else { BEFORE_ALL };
        }
        if percent >= 1.0 {
            return 0.0;
        }
        let left = 1.0 - percent;
        match self.clock {
            Clock::Table { .. } => f64::from(self.sigma((left * 999.0) as f32)),
            Clock::LogQuarter | Clock::Angle | Clock::Share => {
                let (low, high) = (f64::from(self.sigma_min()).ln(), f64::from(self.sigma_max()).ln());
                ((high - low) * left + low).exp()
            }
            Clock::ShiftedFlow { shift, .. } => shift * left / (1.0 + (shift - 1.0) * left),
            Clock::ExponentialFlow { mu } => mu.exp() / (mu.exp() + (1.0 / left - 1.0)),
        }
    }

    /// What the model is given for `x` at a level.
    pub fn calculate_input<'a>(&self, sigma: f32, x: &'a Latent) -> Cow<'a, Latent> {
        if self.is_flow() || self.parameterization == Parameterization::ImageToImage {
            return Cow::Borrowed(x);
        }
        if self.parameterization == Parameterization::AddedFlow {
            let kept = 1.0 - share(sigma);
            return Cow::Owned(x.map(|x| x * kept));
        }
        let scale = self.deviation(sigma);
        Cow::Owned(x.map(|x| x / scale))
    }

    /// What becomes `x` itself as the model is given it at a level: the way back of [`ModelSampling::calculate_input`].
    pub fn inverse_input<'a>(&self, sigma: f32, x: &'a Latent) -> Cow<'a, Latent> {
        match self.parameterization {
            Parameterization::Flow | Parameterization::ImageToImage => Cow::Borrowed(x),
            Parameterization::AddedFlow => {
                let kept = 1.0 - share(sigma);
                Cow::Owned(x.map(|x| x / kept))
            }
            _ => {
                let scale = self.deviation(sigma);
                Cow::Owned(x.map(|x| x * scale))
            }
        }
    }

    /// The clean image that the model's output means, for the unscaled `x` at a level.
    pub fn calculate_denoised(&self, sigma: f32, output: &Latent, x: &Latent) -> Latent {
        let data = self.sigma_data as f32;
        let (variance, deviation) = (sigma * sigma + data * data, self.deviation(sigma));
        match self.parameterization {
            Parameterization::Eps | Parameterization::Flow => x.zip(output, |x, out| x - out * sigma),
            Parameterization::V => {
                x.zip(output, |x, out| x * (data * data) / variance - out * sigma * data / deviation)
            }
            Parameterization::Edm => {
                x.zip(output, |x, out| x * (data * data) / variance + out * sigma * data / deviation)
            }
            Parameterization::Clean | Parameterization::ImageToImage => output.clone(),
            Parameterization::AddedFlow => {
                let noise = share(sigma);
                x.zip(output, |x, out| x * (1.0 - noise) - out * noise)
            }
            Parameterization::Consistency => {
                let (skip, take) = consistency_shares(self.timestep(sigma));
                x.zip(output, |x, out| take * (x - out * sigma) + skip * x)
            }
        }
    }

    /// An image at a level: noise added to it, or mixed into it by a flow.
    ///
    /// `from_pure_noise` says that the run starts at the top, where the level's noise stands for noise and image.
    pub fn noise_scaling(&self, sigma: f32, noise: &Latent, image: &Latent, from_pure_noise: bool) -> Latent {
        if self.is_flow() {
            return noise.zip(image, |n, image| sigma * n + (1.0 - sigma) * image);
        }
        let is_pure = from_pure_noise && self.parameterization != Parameterization::AddedFlow;
        let scale = if is_pure { (1.0 + sigma * sigma).sqrt() } else { sigma };
        noise.zip(image, |n, image| n * scale + image)
    }

    /// Undoes what the level `sigma` at a run's end left in the scale of `x`.
    pub fn inverse_noise_scaling(&self, sigma: f32, x: Latent) -> Latent {
        if self.is_flow() { x.map(|v| v / (1.0 - sigma)) } else { x }
    }

    fn deviation(&self, sigma: f32) -> f32 {
        let data = self.sigma_data as f32;
        (sigma * sigma + data * data).sqrt()
    }

    /// Half the logarithm of the signal-to-noise ratio at a level.
    pub(crate) fn half_log_snr(&self, sigma: f32) -> f32 {
        if self.is_flow() { -(sigma / (1.0 - sigma)).ln() } else { -sigma.ln() }
    }

    /// The level of half a logarithmic signal-to-noise ratio.
    pub(crate) fn sigma_of_half_log_snr(&self, lambda: f32) -> f32 {
        if self.is_flow() { 1.0 / (1.0 + lambda.exp()) } else { (-lambda).exp() }
    }
}

/// The share of noise in an image with noise of a level.
fn share(sigma: f32) -> f32 {
    sigma / (sigma + 1.0)
}

/// How much of its input and of its clean image a consistency model's answer has at a timestep.
fn consistency_shares(timestep: f32) -> (f32, f32) {
    const DATA: f32 = 0.5;
    let scaled = timestep * 10.0;
    let sum = scaled * scaled + DATA * DATA;
    (DATA * DATA / sum, scaled / sum.sqrt())
}

/// Shifts and scales the signal's share so that it ends at zero.
fn rescale_to_zero_snr(sigmas: &mut [f64]) {
    let signal: Vec<f64> = sigmas.iter().map(|s| (1.0 / (s * s + 1.0)).sqrt()).collect();
    let (first, last) = (signal[0], signal[signal.len() - 1]);
    let end = signal.len() - 1;
    for (i, (sigma, share)) in sigmas.iter_mut().zip(&signal).enumerate() {
        let share = (share - last) * (first / (first - last));
        // The last share would be zero, and its level infinite: the reference puts this value in its place.
        let squared = if i == end { 4.897_345_189_085_343_5e-8 } else { share * share };
        *sigma = ((1.0 - squared) / squared).sqrt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timesteps_and_levels_are_inverse() {
        let all = [
            ModelSampling::discrete(Parameterization::Eps, false),
            ModelSampling::continuous_edm(Parameterization::Edm, (0.002, 120.0), 0.5),
            ModelSampling::continuous_v(Parameterization::V, (0.002, 120.0), 1.0),
            ModelSampling::added_flow((0.002, 80.0)),
        ];
        for sampling in &all {
            for i in [1, 250, 998] {
                let sigma = sampling.sigmas()[i];
                let back = sampling.sigma(sampling.timestep(sigma));
                assert!((back / sigma - 1.0).abs() < 1e-3, "{sigma} came back as {back}");
            }
        }
    }

    #[test]
    fn zero_terminal_snr_ends_in_noise() {
        let sampling = ModelSampling::discrete(Parameterization::V, true);
        assert!((sampling.sigma_max() - 4518.73).abs() < 0.5, "{}", sampling.sigma_max());
        assert!((sampling.sigma_min() - 0.029_167).abs() < 1e-5);
    }

    #[test]
    fn a_perfect_output_gives_the_clean_image_back() {
        let shape = [1, 1, 1, 3];
        let clean = Latent::new(shape.to_vec(), vec![0.5, -1.0, 2.0]).unwrap();
        let noise = Latent::new(shape.to_vec(), vec![1.0, 0.25, -0.75]).unwrap();
        let sigma = 0.6f32;
        let deviation = (1.0 + sigma * sigma).sqrt();
        for (sampling, output) in [
            (ModelSampling::discrete(Parameterization::Eps, false), noise.clone()),
            (ModelSampling::discrete(Parameterization::V, false), {
                // v = noise / deviation - clean * sigma / deviation.
                noise.zip(&clean, |n, c| (n - c * sigma) / deviation)
            }),
            (ModelSampling::exponential_flow(1.15), noise.zip(&clean, |n, c| n - c)),
            (ModelSampling::added_flow((0.002, 80.0)), noise.zip(&clean, |n, c| n - c)),
        ] {
            let x = sampling.noise_scaling(sigma, &noise, &clean, false);
            let shown = sampling.calculate_input(sigma, &sampling.inverse_input(sigma, &clean)).into_owned();
            assert!(shown.values().iter().zip(clean.values()).all(|(a, b)| (a - b).abs() < 1e-6));
            let back = sampling.calculate_denoised(sigma, &output, &x);
            for (a, b) in back.values().iter().zip(clean.values()) {
                assert!((a - b).abs() < 1e-6, "{:?}: {a} for {b}", sampling.parameterization());
            }
        }
    }
}
