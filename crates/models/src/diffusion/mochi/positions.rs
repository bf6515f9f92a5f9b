//! Where the tokens of a video stand: its frames are counted, rows and columns are spread around the middle over an area
//! that is the same for all sizes. Every head turns by its own angles.

use device::op::UnaryKind;
use meta::DeviceId;
use tensor::{Lane, Tensor};

use super::Config;
use crate::Result;
use crate::diffusion::known::Known;

/// Places over which the rows and columns of a frame are spread.
const AREA: f64 = 36_864.0;

/// The angles of the tokens, as tables on the devices that asked for them.
pub(super) struct TokenAngles {
    size: [usize; 3],
    /// For each axis the angles of its places, `[places, hidden / 2]`.
    axes: [Vec<f32>; 3],
    pairs: usize,
    on: Known<DeviceId, Rotation>,
}

/// Cosines and sines on a device, `[1, tokens, hidden / 2]`.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

impl TokenAngles {
    pub(super) fn new(config: &Config, size: [usize; 3]) -> TokenAngles {
        let [frames, rows, columns] = size;
        let spread = (AREA / (rows * columns) as f64).sqrt();
        let centred = |count: usize| {
            let middle = count as f64 / 2.0;
            (0..count).map(|at| ((at as f64 + 0.5 - middle) * spread) as f32).collect::<Vec<_>>()
        };
        let places = [(0..frames).map(|at| at as f32).collect(), centred(rows), centred(columns)];
        let angles = |axis: usize| {
            let frequencies = &config.frequencies[axis];
            places[axis].iter().flat_map(|place| frequencies.iter().map(move |f| f * place)).collect()
        };
        let axes = [angles(0), angles(1), angles(2)];
        TokenAngles { size, axes, pairs: config.hidden / 2, on: Known::default() }
    }

    /// The tables on a lane's device, which adds the angles of the axes itself. They are sent there once.
    pub(super) fn on(&self, lane: &Lane) -> Result<Rotation> {
        self.on.of(&lane.device().id(), || {
            let axis = |axis: usize| {
                let mut shape = [1, 1, 1, self.pairs];
                shape[axis] = self.size[axis];
                lane.tensor_f32(shape, &self.axes[axis])
            };
            let all = axis(0)?.add(&axis(1)?)?.add(&axis(2)?)?;
            let all = all.reshape([1, self.size.iter().product(), self.pairs])?;
            Ok(Rotation { cos: all.unary(UnaryKind::Cos)?, sin: all.unary(UnaryKind::Sin)? })
        })
    }
}
