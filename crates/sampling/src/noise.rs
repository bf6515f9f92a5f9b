//! Noise: the start of a run, and what stochastic samplers add on their way.

mod brownian;
mod seed_sequence;

pub use brownian::BrownianTree;

use device::noise::NormalGenerator;

use crate::{Error, Latent};

/// Initial noise of this shape, equal to PyTorch's CPU generator to the bit.
///
/// With `batch_indices`, item `i` of the result is the noise that item `batch_indices[i]` of a larger
/// batch would get when drawn item by item; repeated indices give equal noise.
pub fn prepare_noise(seed: u64, shape: &[usize], batch_indices: Option<&[usize]>) -> Result<Latent, Error> {
    prepare_noise_while(seed, shape, batch_indices, || true)
}

/// The same for as long as it is `wanted`, which is asked every few milliseconds; else [`Error::Cancelled`].
pub fn prepare_noise_while(
    seed: u64,
    shape: &[usize],
    batch_indices: Option<&[usize]>,
    wanted: impl Fn() -> bool,
) -> Result<Latent, Error> {
    let mut generator = NormalGenerator::new(seed);
    let mut noise = Latent::zeros(shape);
    let mut fill = |values: &mut [f32]| match generator.fill_while(values, &wanted) {
        true => Ok(()),
        false => Err(Error::Cancelled { steps_done: 0, steps: 0 }),
    };
    let Some(indices) = batch_indices else {
        fill(noise.values_mut())?;
        return Ok(noise);
    };
    let item_len: usize = shape.iter().skip(1).product();
    if shape.first() != Some(&indices.len()) {
        let mut expected = shape.to_vec();
        expected[..1.min(shape.len())].fill(indices.len());
        return Err(Error::Shape { what: "the noise for batch indices", expected, got: shape.to_vec() });
    }
    let mut item = vec![0.0; item_len];
    for drawn in 0..=indices.iter().copied().max().unwrap_or(0) {
        fill(&mut item)?;
        for (at, _) in indices.iter().enumerate().filter(|(_, wanted)| **wanted == drawn) {
            noise.values_mut()[at * item_len..][..item_len].copy_from_slice(&item);
        }
    }
    Ok(noise)
}

/// Where a stochastic sampler's noise for a step from one level to another comes from.
pub trait NoiseSource {
    /// Noise of unit variance for the step `sigma` → `sigma_next`.
    fn draw(&mut self, sigma: f32, sigma_next: f32) -> Latent;
}

/// Independent noise: a generator of its own, seeded with the run's seed plus one.
pub struct Independent {
    generator: NormalGenerator,
    shape: Vec<usize>,
}

impl Independent {
    /// The source for a run with this seed and latent shape.
    pub fn new(seed: u64, shape: &[usize]) -> Independent {
        Independent { generator: NormalGenerator::new(seed.wrapping_add(1)), shape: shape.to_vec() }
    }
}

impl NoiseSource for Independent {
    fn draw(&mut self, _: f32, _: f32) -> Latent {
        let mut noise = Latent::zeros(&self.shape);
        self.generator.fill(noise.values_mut());
        noise
    }
}
