//! Samplers: the ways through the noise levels, by the names that workflows use.

mod ancestral;
mod cfg_pp;
mod deis;
mod dpm_solver;
mod dpmpp;
mod er_sde;
mod euler;
mod linear;
mod multistep;
mod sa_solver;
mod seeds;
mod uni_pc;

use std::fmt;
use std::str::FromStr;

use crate::driver::{Observer, Request, Step};
use crate::guidance::Guided;
use crate::noise::{BrownianTree, Independent};
use crate::{Conditioning, Error, Latent, ModelSampling};

macro_rules! samplers {
    ($($variant:ident = $name:literal, $about:literal;)*) => {
        /// A sampler by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Sampler {
            $(#[doc = $about] $variant,)*
        }

        impl Sampler {
            /// All of them, in the order in which user interfaces list them.
            pub const ALL: &'static [Sampler] = &[$(Sampler::$variant),*];

            /// The name that workflows use.
            pub fn name(self) -> &'static str {
                match self {
                    $(Sampler::$variant => $name,)*
                }
            }
        }
    };
}

samplers! {
    Euler = "euler", "Euler steps (Karras et al. 2022).";
    EulerCfgPp = "euler_cfg_pp", "Euler steps with CFG++.";
    EulerAncestral = "euler_ancestral", "Euler steps with fresh noise.";
    EulerAncestralCfgPp = "euler_ancestral_cfg_pp", "Euler steps with fresh noise and CFG++.";
    Heun = "heun", "Heun's second-order steps.";
    HeunPp2 = "heunpp2", "Heun++: up to three slopes per step.";
    ExpHeun2X0 = "exp_heun_2_x0", "Exponential Heun in the clean prediction.";
    ExpHeun2X0Sde = "exp_heun_2_x0_sde", "Exponential Heun in the clean prediction, stochastic.";
    Dpm2 = "dpm_2", "DPM-Solver-2 with a middle point.";
    Dpm2Ancestral = "dpm_2_ancestral", "DPM-Solver-2 with fresh noise.";
    Lms = "lms", "Linear multistep of order four.";
    DpmFast = "dpm_fast", "DPM-Solver with a fixed number of calls.";
    DpmAdaptive = "dpm_adaptive", "DPM-Solver with adaptive steps.";
    DpmPp2sAncestral = "dpmpp_2s_ancestral", "DPM-Solver++(2S) with fresh noise.";
    DpmPp2sAncestralCfgPp = "dpmpp_2s_ancestral_cfg_pp", "DPM-Solver++(2S) with fresh noise and CFG++.";
    DpmPpSde = "dpmpp_sde", "DPM-Solver++, stochastic.";
    DpmPpSdeGpu = "dpmpp_sde_gpu", "As `dpmpp_sde`.";
    DpmPp2m = "dpmpp_2m", "DPM-Solver++(2M).";
    DpmPp2mCfgPp = "dpmpp_2m_cfg_pp", "DPM-Solver++(2M) with CFG++.";
    DpmPp2mSde = "dpmpp_2m_sde", "DPM-Solver++(2M), stochastic, midpoint.";
    DpmPp2mSdeGpu = "dpmpp_2m_sde_gpu", "As `dpmpp_2m_sde`.";
    DpmPp2mSdeHeun = "dpmpp_2m_sde_heun", "DPM-Solver++(2M), stochastic, Heun.";
    DpmPp2mSdeHeunGpu = "dpmpp_2m_sde_heun_gpu", "As `dpmpp_2m_sde_heun`.";
    DpmPp3mSde = "dpmpp_3m_sde", "DPM-Solver++(3M), stochastic.";
    DpmPp3mSdeGpu = "dpmpp_3m_sde_gpu", "As `dpmpp_3m_sde`.";
    Ddpm = "ddpm", "Denoising diffusion steps (Ho et al. 2020).";
    Lcm = "lcm", "Consistency steps: predict, then noise again.";
    Ipndm = "ipndm", "Improved pseudo numerical method, order four.";
    IpndmV = "ipndm_v", "The same with steps of varying length.";
    Deis = "deis", "Diffusion exponential integrator, order three.";
    ResMultistep = "res_multistep", "Refined exponential solver, two steps.";
    ResMultistepCfgPp = "res_multistep_cfg_pp", "The same with CFG++.";
    ResMultistepAncestral = "res_multistep_ancestral", "The same with fresh noise.";
    ResMultistepAncestralCfgPp = "res_multistep_ancestral_cfg_pp", "The same with fresh noise and CFG++.";
    GradientEstimation = "gradient_estimation", "Euler steps with an estimated gradient.";
    GradientEstimationCfgPp = "gradient_estimation_cfg_pp", "The same with CFG++.";
    ErSde = "er_sde", "Extended reverse-time SDE solver, three stages.";
    Seeds2 = "seeds_2", "SEEDS, two stages.";
    Seeds3 = "seeds_3", "SEEDS, three stages.";
    SaSolver = "sa_solver", "Stochastic Adams solver.";
    SaSolverPece = "sa_solver_pece", "Stochastic Adams solver that evaluates the corrected state.";
    Ddim = "ddim", "Euler steps; inpainting draws noise of its own.";
    UniPc = "uni_pc", "Unified predictor-corrector, B1.";
    UniPcBh2 = "uni_pc_bh2", "Unified predictor-corrector, B2.";
}

impl Sampler {
    /// Whether its schedule has one step more, of which the last but one level is left out.
    pub fn discards_penultimate_sigma(self) -> bool {
        matches!(self, Sampler::Dpm2 | Sampler::Dpm2Ancestral | Sampler::UniPc | Sampler::UniPcBh2)
    }

    /// Whether it steps away from the negative prediction itself (CFG++), so that every step predicts it.
    pub fn needs_negative(self) -> bool {
        matches!(
            self,
            Sampler::EulerCfgPp
                | Sampler::EulerAncestralCfgPp
                | Sampler::DpmPp2sAncestralCfgPp
                | Sampler::DpmPp2mCfgPp
                | Sampler::ResMultistepCfgPp
                | Sampler::ResMultistepAncestralCfgPp
                | Sampler::GradientEstimationCfgPp
        )
    }

    /// The level at which it ends when the schedule says zero.
    pub(crate) fn final_sigma(self) -> f32 {
        if matches!(self, Sampler::UniPc | Sampler::UniPcBh2) { uni_pc::FINAL_SIGMA } else { 0.0 }
    }
}

impl fmt::Display for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sampler {
    type Err = Error;

    fn from_str(name: &str) -> Result<Sampler, Error> {
        Sampler::ALL.iter().copied().find(|s| s.name() == name).ok_or_else(|| Error::UnknownName {
            what: "sampler",
            name: name.to_owned(),
            known: Sampler::ALL.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Numbers that stochastic samplers take; deterministic ones ignore them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// How much of each step's noise is fresh.
    pub eta: f32,
    /// A factor on fresh noise.
    pub s_noise: f32,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { eta: 1.0, s_noise: 1.0 }
    }
}

/// A run in progress: the guided model, the levels, and who watches.
pub(crate) struct Run<'a> {
    model: Guided<'a>,
    observer: &'a mut dyn Observer,
    sampling: &'a ModelSampling,
    sigmas: Vec<f32>,
    tuning: Tuning,
    seed: u64,
    shape: Vec<usize>,
    steps_done: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(model: Guided<'a>, request: &Request<'a>, observer: &'a mut dyn Observer) -> Run<'a> {
        Run {
            model,
            observer,
            sampling: request.sampling,
            sigmas: request.sigmas.clone(),
            tuning: request.tuning,
            seed: request.seed,
            shape: request.noise.shape().to_vec(),
            steps_done: 0,
        }
    }

    /// Takes `x` at the first level through all of them.
    pub(crate) fn run(&mut self, sampler: Sampler, x: Latent) -> Result<Latent, Error> {
        let flow = self.sampling.is_flow();
        match sampler {
            Sampler::Euler | Sampler::Ddim => self.euler(x),
            Sampler::EulerAncestral if flow => self.euler_ancestral_flow(x),
            Sampler::EulerAncestral => self.euler_ancestral(x),
            Sampler::EulerCfgPp => self.euler_cfg_pp(x, Tuning { eta: 0.0, s_noise: 0.0 }),
            Sampler::EulerAncestralCfgPp => self.euler_cfg_pp(x, self.tuning),
            Sampler::Heun => self.heun(x),
            Sampler::HeunPp2 => self.heunpp2(x),
            Sampler::ExpHeun2X0 => self.exp_heun(x, Tuning { eta: 0.0, s_noise: 0.0 }),
            Sampler::ExpHeun2X0Sde => self.exp_heun(x, self.tuning),
            Sampler::Dpm2 => self.dpm_2(x),
            Sampler::Dpm2Ancestral => self.dpm_2_ancestral(x),
            Sampler::Lms => self.lms(x),
            Sampler::DpmFast => self.dpm_fast(x),
            Sampler::DpmAdaptive => self.dpm_adaptive(x),
            Sampler::DpmPp2sAncestral if flow => self.dpmpp_2s_ancestral_flow(x),
            Sampler::DpmPp2sAncestral => self.dpmpp_2s_ancestral(x),
            Sampler::DpmPp2sAncestralCfgPp => self.dpmpp_2s_ancestral_cfg_pp(x),
            Sampler::DpmPpSde | Sampler::DpmPpSdeGpu => self.dpmpp_sde(x),
            Sampler::DpmPp2m => self.dpmpp_2m(x),
            Sampler::DpmPp2mCfgPp => self.dpmpp_2m_cfg_pp(x),
            Sampler::DpmPp2mSde | Sampler::DpmPp2mSdeGpu => self.dpmpp_2m_sde(x, dpmpp::Correction::Midpoint),
            Sampler::DpmPp2mSdeHeun | Sampler::DpmPp2mSdeHeunGpu => {
                self.dpmpp_2m_sde(x, dpmpp::Correction::Heun)
            }
            Sampler::DpmPp3mSde | Sampler::DpmPp3mSdeGpu => self.dpmpp_3m_sde(x),
            Sampler::Ddpm => self.ddpm(x),
            Sampler::Lcm => self.lcm(x),
            Sampler::Ipndm => self.ipndm(x),
            Sampler::IpndmV => self.ipndm_v(x),
            Sampler::Deis => self.deis(x),
            Sampler::ResMultistep => self.res_multistep(x, 0.0, false),
            Sampler::ResMultistepCfgPp => self.res_multistep(x, 0.0, true),
            Sampler::ResMultistepAncestral => self.res_multistep(x, self.tuning.eta, false),
            Sampler::ResMultistepAncestralCfgPp => self.res_multistep(x, self.tuning.eta, true),
            Sampler::GradientEstimation => self.gradient_estimation(x, false),
            Sampler::GradientEstimationCfgPp => self.gradient_estimation(x, true),
            Sampler::ErSde => self.er_sde(x),
            Sampler::Seeds2 => self.seeds_2(x),
            Sampler::Seeds3 => self.seeds_3(x),
            Sampler::SaSolver => self.sa_solver(x, false),
            Sampler::SaSolverPece => self.sa_solver(x, true),
            Sampler::UniPc => self.uni_pc(&x, uni_pc::Variant::B1),
            Sampler::UniPcBh2 => self.uni_pc(&x, uni_pc::Variant::B2),
        }
    }

    /// How many steps the levels make.
    fn steps(&self) -> usize {
        self.sigmas.len() - 1
    }

    /// The level of a step and of the next.
    fn levels(&self, step: usize) -> (f32, f32) {
        (self.sigmas[step], self.sigmas[step + 1])
    }

    /// The guided clean prediction.
    fn denoise(&mut self, x: &Latent, sigma: f32) -> Result<Latent, Error> {
        self.check_cancelled()?;
        Ok(self.model.denoise(x, sigma, false)?.0)
    }

    /// The guided clean prediction and the negative one, for CFG++.
    fn denoise_both(&mut self, x: &Latent, sigma: f32) -> Result<(Latent, Latent), Error> {
        self.check_cancelled()?;
        let (denoised, negative) = self.model.denoise(x, sigma, true)?;
        let missing = Error::NoPrediction { conditioning: Conditioning::Negative, sigma };
        Ok((denoised, negative.ok_or(missing)?))
    }

    /// The guided prediction and the one that CFG++ steps away from: the negative, or without CFG++ the same.
    fn denoise_with(&mut self, x: &Latent, sigma: f32, cfg_pp: bool) -> Result<(Latent, Latent), Error> {
        if cfg_pp {
            return self.denoise_both(x, sigma);
        }
        let denoised = self.denoise(x, sigma)?;
        Ok((denoised.clone(), denoised))
    }

    /// Tells the observer of a step.
    fn report(&mut self, index: usize, x: &Latent, denoised: &Latent) -> Result<(), Error> {
        let count = self.steps();
        self.observer.step(&Step { index, count, x, denoised });
        self.steps_done = index + 1;
        self.check_cancelled()
    }

    fn check_cancelled(&self) -> Result<(), Error> {
        if self.observer.cancelled() {
            return Err(Error::Cancelled { steps_done: self.steps_done, steps: self.steps() });
        }
        Ok(())
    }

    fn independent_noise(&self) -> Independent {
        Independent::new(self.seed, &self.shape)
    }

    /// Noise from one path over the levels above zero.
    fn brownian_noise(&self) -> BrownianTree {
        let above = self.sigmas.iter().copied().filter(|s| *s > 0.0);
        let low = above.clone().fold(f32::INFINITY, f32::min);
        let high = above.fold(0.0, f32::max);
        BrownianTree::new(self.seed, &self.shape, low.min(high), high)
    }

    /// Lowers a flow's first level from one, where the signal-to-noise ratio is zero.
    fn offset_first_sigma(&mut self) {
        if self.sigmas.len() > 1 && self.sampling.is_flow() && self.sigmas[0] >= 1.0 {
            self.sigmas[0] = self.sampling.percent_to_sigma(1e-4) as f32;
        }
    }
}

/// The level to step down to, and the noise to add, so that the step ends at `to` with a share `eta` of fresh noise.
fn ancestral_step(from: f32, to: f32, eta: f32) -> (f32, f32) {
    if eta == 0.0 {
        return (to, 0.0);
    }
    let fresh = eta * (to * to * (from * from - to * to) / (from * from)).sqrt();
    // Written so that an undefined value (from an infinite `from`) counts as all of it.
    let up = if fresh < to { fresh } else { to };
    ((to * to - up * up).sqrt(), up)
}

/// Between two numbers, from the nearer end, as PyTorch's `lerp` does.
pub(crate) fn lerp(start: f32, end: f32, weight: f32) -> f32 {
    if weight < 0.5 { start + weight * (end - start) } else { end - (end - start) * (1.0 - weight) }
}
