//! The schedules that stand alone as nodes: formulas with their own inputs, and published tables.

use super::{Scheduler, beta as beta_distribution, check_steps, last, linspace};
use crate::{Error, ModelSampling};

/// A scheduler's levels at a denoise strength, with every level kept.
pub fn basic(
    sampling: &ModelSampling,
    scheduler: Scheduler,
    steps: usize,
    denoise: f64,
) -> Result<Vec<f32>, Error> {
    if denoise.is_nan() || denoise <= 0.0 {
        return Ok(Vec::new());
    }
    let total = if denoise < 1.0 { (steps as f64 / denoise) as usize } else { steps };
    Ok(last(scheduler.sigmas(sampling, total)?, steps + 1))
}

/// Karras et al. 2022: evenly spaced roots of order `rho`.
pub fn karras(steps: usize, sigma_max: f64, sigma_min: f64, rho: f64) -> Result<Vec<f32>, Error> {
    check_steps("karras", steps)?;
    let (high, low) = (sigma_max.powf(1.0 / rho), sigma_min.powf(1.0 / rho));
    let (top, difference, rho) = (high as f32, (low - high) as f32, rho as f32);
    let levels = linspace(0.0, 1.0, steps).into_iter().map(|t| (top + t * difference).powf(rho));
    Ok(levels.chain([0.0]).collect())
}

/// Evenly spaced logarithms.
pub fn exponential(steps: usize, sigma_max: f64, sigma_min: f64) -> Result<Vec<f32>, Error> {
    check_steps("exponential", steps)?;
    let levels = linspace(sigma_max.ln() as f32, sigma_min.ln() as f32, steps).into_iter().map(f32::exp);
    Ok(levels.chain([0.0]).collect())
}

/// Logarithms spaced by a power of the position.
pub fn polyexponential(steps: usize, sigma_max: f64, sigma_min: f64, rho: f64) -> Result<Vec<f32>, Error> {
    check_steps("polyexponential", steps)?;
    let (range, low, rho) = ((sigma_max.ln() - sigma_min.ln()) as f32, sigma_min.ln() as f32, rho as f32);
    let levels = linspace(1.0, 0.0, steps).into_iter().map(|t| (t.powf(rho) * range + low).exp());
    Ok(levels.chain([0.0]).collect())
}

/// Levels whose logarithms follow a Laplace distribution; without a final zero.
pub fn laplace(steps: usize, bounds: (f64, f64), mu: f64, beta: f64) -> Result<Vec<f32>, Error> {
    check_steps("laplace", steps)?;
    let (high, low) = (bounds.0 as f32, bounds.1 as f32);
    let (mu, beta) = (mu as f32, beta as f32);
    let level = |t: f32| {
        let side = 0.5 - t;
        let sign = if side == 0.0 { 0.0 } else { side.signum() };
        let lambda = mu - beta * sign * (1.0 - 2.0 * side.abs() + 1e-5).ln();
        lambda.exp().max(low).min(high)
    };
    Ok(linspace(0.0, 1.0, steps).into_iter().map(level).collect())
}

/// The continuous variance-preserving schedule of Song et al.
pub fn vp(steps: usize, beta_d: f64, beta_min: f64, eps_s: f64) -> Result<Vec<f32>, Error> {
    check_steps("vp", steps)?;
    let (beta_d, beta_min) = (beta_d as f32, beta_min as f32);
    let level = |t: f32| (beta_d * (t * t) / 2.0 + beta_min * t).exp_m1().sqrt();
    Ok(linspace(1.0, eps_s as f32, steps).into_iter().map(level).chain([0.0]).collect())
}

/// Levels at the quantiles of a beta distribution over the model's table; repeated levels are left out.
pub fn beta(sampling: &ModelSampling, steps: usize, alpha: f64, beta: f64) -> Result<Vec<f32>, Error> {
    check_steps("beta", steps)?;
    for (input, value) in [("alpha", alpha), ("beta", beta)] {
        if !(value > 0.0 && value.is_finite()) {
            let (schedule, expected) = ("beta", "greater than 0");
            return Err(Error::ScheduleInput { schedule, input, got: value.to_string(), expected });
        }
    }
    let table = sampling.sigmas();
    let top = (table.len() - 1) as f64;
    let spacing = 1.0 / steps as f64;
    let mut positions: Vec<usize> = (0..steps)
        .map(|i| {
            let p = 1.0 - i as f64 * spacing;
            (beta_distribution::quantile(p, alpha, beta) * top).round_ties_even() as usize
        })
        .collect();
    positions.dedup();
    Ok(positions.into_iter().map(|at| table[at]).chain([0.0]).collect())
}

/// SD Turbo: every hundredth timestep from the top, at most ten.
pub fn sd_turbo(sampling: &ModelSampling, steps: usize, denoise: f64) -> Result<Vec<f32>, Error> {
    check_steps("sd_turbo", steps)?;
    let skipped = 10 - (10.0 * denoise.clamp(0.0, 1.0)) as usize;
    let timesteps = (1..=10u16).rev().map(|i| f32::from(i * 100 - 1));
    Ok(timesteps.skip(skipped).take(steps).map(|t| sampling.sigma(t)).chain([0.0]).collect())
}

/// The logarithm of LTX-Video's shift for a number of latent positions: `base` at 1024, `max` at 4096, linear between and
/// beyond.
pub fn ltxv_shift(max_shift: f64, base_shift: f64, tokens: usize) -> f64 {
    let slope = (max_shift - base_shift) / (4096.0 - 1024.0);
    tokens as f64 * slope + (base_shift - slope * 1024.0)
}

/// LTX-Video: a flow whose shift grows with the number of latent positions (4096 when unknown).
///
/// `terminal`, where given, stretches the levels so that the last above zero is that.
pub fn ltxv(
    steps: usize,
    max_shift: f64,
    base_shift: f64,
    terminal: Option<f64>,
    tokens: usize,
) -> Result<Vec<f32>, Error> {
    check_steps("ltxv", steps)?;
    let shift = ltxv_shift(max_shift, base_shift, tokens).exp() as f32;
    let mut sigmas = linspace(1.0, 0.0, steps + 1);
    for sigma in sigmas.iter_mut().filter(|s| **s != 0.0) {
        *sigma = shift * (1.0 / (shift + (1.0 / *sigma - 1.0)));
    }
    if let Some(terminal) = terminal {
        let lowest = sigmas.iter().rev().find(|s| **s != 0.0).copied().unwrap_or(0.0);
        let scale = (1.0 - lowest) / (1.0 - terminal) as f32;
        for sigma in sigmas.iter_mut().filter(|s| **s != 0.0) {
            *sigma = 1.0 - (1.0 - *sigma) / scale;
        }
    }
    Ok(sigmas)
}

/// FLUX.2: a flow whose shift was fitted to image size and number of steps.
pub fn size_dependent_flow(steps: usize, width: usize, height: usize) -> Result<Vec<f32>, Error> {
    check_steps("the size-dependent flow", steps)?;
    let tokens = (width as f64 * height as f64 / 256.0).round_ties_even();
    let many = 0.00016927 * tokens + 0.45666666;
    let mu = if tokens > 4300.0 {
        many
    } else {
        let few = 8.73809524e-05 * tokens + 1.89833333;
        let slope = (many - few) / 190.0;
        slope * steps as f64 + (many - 200.0 * slope)
    };
    let shift = mu.exp() as f32;
    let level = |t: f32| shift * (1.0 / (shift + (1.0 / t - 1.0)));
    Ok(linspace(1.0, 0.0, steps + 1).into_iter().map(level).collect())
}

/// Align Your Steps (Sabour et al. 2024): levels optimised for a model type.
pub fn align_your_steps(model_type: &str, steps: usize, denoise: f64) -> Result<Vec<f32>, Error> {
    const TABLES: [(&str, &[f64]); 3] = [
        (
            "SD1",
            &[
                14.6146412293,
                6.4745760956,
                3.8636745985,
                2.6946151520,
                1.8841921177,
                1.3943805092,
                0.9642583904,
                0.6523686016,
                0.3977456272,
                0.1515232662,
                0.0291671582,
            ],
        ),
        (
            "SDXL",
            &[
                14.6146412293,
                6.3184485287,
                3.7681790315,
                2.1811480769,
                1.3405244945,
                0.8620721141,
                0.5550693289,
                0.3798540708,
                0.2332364134,
                0.1114188177,
                0.0291671582,
            ],
        ),
        ("SVD", &[700.00, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002]),
    ];
    from_tables("align_your_steps", &TABLES, model_type, steps, denoise)
}

/// OptimalSteps (Pei et al. 2025): levels searched for a flow model.
pub fn optimal_steps(model_type: &str, steps: usize, denoise: f64) -> Result<Vec<f32>, Error> {
    const TABLES: [(&str, &[f64]); 3] = [
        ("FLUX", &[0.9968, 0.9886, 0.9819, 0.975, 0.966, 0.9471, 0.9158, 0.8287, 0.5512, 0.2808, 0.001]),
        (
            "Wan",
            &[
                1.0, 0.997, 0.995, 0.993, 0.991, 0.989, 0.987, 0.985, 0.98, 0.975, 0.973, 0.968, 0.96, 0.946,
                0.927, 0.902, 0.864, 0.776, 0.539, 0.208, 0.001,
            ],
        ),
        (
            "Chroma",
            &[
                0.992, 0.99, 0.988, 0.985, 0.982, 0.978, 0.973, 0.968, 0.961, 0.953, 0.943, 0.931, 0.917,
                0.9, 0.881, 0.858, 0.832, 0.802, 0.769, 0.731, 0.69, 0.646, 0.599, 0.55, 0.501, 0.451, 0.402,
                0.355, 0.311, 0.27, 0.232, 0.199, 0.169, 0.143, 0.12, 0.101, 0.084, 0.07, 0.058, 0.048,
                0.001,
            ],
        ),
    ];
    from_tables("optimal_steps", &TABLES, model_type, steps, denoise)
}

/// GITS (Chen et al. 2024): levels searched along the trajectory, by a coefficient of 0.80 to 1.50.
pub fn gits(coeff: f64, steps: usize, denoise: f64) -> Result<Vec<f32>, Error> {
    // One block per coefficient, one line for each number of steps from 2 to 20.
    const TABLE: &str = include_str!("gits.txt");
    check_steps("gits", steps)?;
    let head = format!("coeff {coeff:.2}");
    let mut lines = TABLE.lines().skip_while(|line| **line != *head);
    if lines.next().is_none() {
        let expected = "0.80 to 1.50 in steps of 0.05";
        return Err(Error::ScheduleInput {
            schedule: "gits",
            input: "coeff",
            got: coeff.to_string(),
            expected,
        });
    }
    let line = lines.nth(steps.clamp(2, 20) - 2).unwrap_or_default();
    let mut levels: Vec<f64> = line.split(' ').filter_map(|v| v.parse().ok()).collect();
    if steps + 1 != levels.len() {
        levels = log_interpolate(&levels, steps + 1);
    }
    Ok(strength(&levels, steps, denoise))
}

fn from_tables(
    schedule: &'static str,
    tables: &[(&str, &[f64])],
    model_type: &str,
    steps: usize,
    denoise: f64,
) -> Result<Vec<f32>, Error> {
    check_steps(schedule, steps)?;
    let Some((_, table)) = tables.iter().find(|(name, _)| *name == model_type) else {
        let known = tables.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(Error::UnknownName { what: "model type", name: model_type.to_owned(), known });
    };
    let levels = if steps + 1 == table.len() { table.to_vec() } else { log_interpolate(table, steps + 1) };
    Ok(strength(&levels, steps, denoise))
}

/// The end of a table for a denoise strength, its last level zero.
fn strength(levels: &[f64], steps: usize, denoise: f64) -> Vec<f32> {
    if denoise.is_nan() || denoise <= 0.0 {
        return Vec::new();
    }
    let taken = if denoise < 1.0 { (steps as f64 * denoise).round_ties_even() as usize } else { steps };
    let mut sigmas = last(levels.iter().map(|v| *v as f32).collect(), taken + 1);
    if let Some(end) = sigmas.last_mut() {
        *end = 0.0;
    }
    sigmas
}

/// A falling table read at `count` places, linear in the logarithm.
fn log_interpolate(table: &[f64], count: usize) -> Vec<f64> {
    let logs: Vec<f64> = table.iter().map(|v| v.ln()).collect();
    let end = logs.len() - 1;
    (0..count)
        .map(|i| {
            let at = i as f64 / (count - 1).max(1) as f64 * end as f64;
            let low = (at as usize).min(end.saturating_sub(1));
            (logs[low] + (logs[low + 1] - logs[low]) * (at - low as f64)).exp()
        })
        .collect()
}
