//! The network that gives every modulation, from the time, the guidance and the number of the modulation.

use residency::Lease;
use tensor::{Lane, Tensor};

use super::config::Config;
use crate::diffusion::modulation::{embed, waves};
use crate::{Probe, Result};

/// Modulations that the network was trained to give: three for each single block, six for each side of a double block, two
/// for the last layer.
pub(super) const ROWS: usize = 344;
/// Values for the time, and as many for the guidance.
const TIME_VALUES: usize = 16;
/// Values for the number of a modulation.
const NUMBER_VALUES: usize = 32;
/// Values that the network is given.
pub(super) const INPUTS: usize = 2 * TIME_VALUES + NUMBER_VALUES;
/// What the numbers are multiplied with, as times are.
const SCALE: f32 = 1000.0;

/// What the network is given beside the time, `[1, rows, values]`: the guidance, and the number of each modulation.
pub(super) fn beside_time(lane: &Lane, guidance: f32) -> Result<Tensor> {
    let guidance = waves(SCALE * guidance, TIME_VALUES);
    let row = |number: usize| [guidance.clone(), waves(SCALE * number as f32, NUMBER_VALUES)].concat();
    let rows: Vec<f32> = (0..ROWS).flat_map(row).collect();
    Ok(lane.tensor([1, ROWS, TIME_VALUES + NUMBER_VALUES], &rows)?)
}

/// Every modulation at a time, `[1, rows, hidden]`.
pub(super) fn changes(
    config: &Config,
    lease: &Lease<'_>,
    (time, beside): (f32, &Tensor),
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let time = lease.lane().tensor([1, 1, TIME_VALUES], &waves(SCALE * time, TIME_VALUES))?;
    let time = time.broadcast([1, ROWS, TIME_VALUES])?;
    let mut x = Tensor::concat(&[&time, &lease.bring(beside)?], 2)?;
    x = lease.linear("distilled_guidance_layer.in_proj", &x)?;
    for i in 0..config.approximator_layers {
        let weight = lease.weight(&format!("distilled_guidance_layer.norms.{i}.scale"))?;
        let normed = x.rms_norm(Some(&weight), 1e-6)?;
        let name = format!("distilled_guidance_layer.layers.{i}");
        x = x.add(&embed(lease, (&name, ["in_layer", "out_layer"]), &normed, probe)?)?;
    }
    let out = lease.linear("distilled_guidance_layer.out_proj", &x)?;
    probe.show(format_args!("distilled_guidance_layer"), &out);
    Ok(out)
}
