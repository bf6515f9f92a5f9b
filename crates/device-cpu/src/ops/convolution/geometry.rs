//! Which input value each output value sees through each tap of the kernel.

use std::ops::Range;

use device::op::{Convolution, Window};

/// No input value stands there; the padding is 0.
pub(super) const OUTSIDE: i32 = -1;

/// Sizes of a convolution, always with three dimensions: missing ones in front have size 1.
pub(super) struct Geometry {
    /// Images.
    pub(super) batch: usize,
    /// Groups of channels that do not mix.
    pub(super) groups: usize,
    /// Input channels of a group.
    pub(super) channels: usize,
    /// Output channels of a group.
    pub(super) filters: usize,
    /// Input sizes.
    pub(super) input: [usize; 3],
    /// Output sizes.
    pub(super) output: [usize; 3],
    /// Kernel sizes.
    pub(super) kernel: [usize; 3],
    /// The kernel indices of each tap: divisions would cost as much as copying its pixels.
    tap_indices: Vec<[usize; 3]>,
    /// For each dimension, `[tap][output index]`: the input index, or [`OUTSIDE`].
    sources: [Vec<i32>; 3],
    /// For each tap of the last dimension, the longest run of outputs that see inputs side by side.
    runs: Vec<Range<usize>>,
    /// For each tap of the last dimension, whether all other outputs see no input.
    alone: Vec<bool>,
    /// Whether neighbouring outputs and neighbouring taps see neighbouring inputs.
    dense: bool,
}

impl Geometry {
    /// The geometry of a valid call.
    pub(super) fn new(call: &Convolution) -> Geometry {
        let pad = 5 - call.x.rank();
        let size = |dims: &[usize], i: usize| if i < pad { 1 } else { dims[i - pad + 2] };
        let sizes = |dims: &[usize]| [0, 1, 2].map(|i| size(dims, i));
        let (input, output) = (sizes(call.x.dims()), sizes(call.out.dims()));
        let kernel = sizes(call.weight.dims());
        let window = [0, 1, 2].map(|i| if i < pad { Window::padded(0) } else { call.window[i - pad] });
        let sources: [Vec<i32>; 3] = [0, 1, 2].map(|i| {
            let source = |tap: usize, at: usize| {
                if call.transposed {
                    transposed_source(&window[i], tap, at, input[i])
                } else {
                    let index = (at * window[i].stride + tap * window[i].dilation) as isize;
                    call.padding.source(index - window[i].pad_before as isize, input[i])
                }
            };
            let taps = (0..kernel[i]).flat_map(|tap| (0..output[i]).map(move |at| (tap, at)));
            taps.map(|(tap, at)| source(tap, at).map_or(OUTSIDE, |index| index as i32)).collect()
        });
        let places = || sources[2].chunks_exact(output[2].max(1));
        let runs: Vec<Range<usize>> = places().map(longest_run).collect();
        let beyond = |(run, places): (&Range<usize>, &[i32])| {
            places.iter().enumerate().all(|(i, &place)| run.contains(&i) || place == OUTSIDE)
        };
        Geometry {
            alone: runs.iter().zip(places()).map(beyond).collect(),
            runs,
            tap_indices: tap_indices(kernel),
            dense: !call.transposed && window.iter().all(|it| it.stride == 1 && it.dilation == 1),
            batch: call.x.dim(0),
            groups: call.groups,
            channels: call.x.dim(1) / call.groups,
            filters: call.channels_out() / call.groups,
            input,
            output,
            kernel,
            sources,
        }
    }

    /// Values in one channel of the input.
    pub(super) fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Values in one channel of the output.
    pub(super) fn pixels(&self) -> usize {
        self.output.iter().product()
    }

    /// Values of the kernel for one channel.
    pub(super) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Values summed for each output value.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.taps()
    }

    /// Whether each output pixel sees just the input pixel at the same place.
    pub(super) fn is_pointwise(&self) -> bool {
        let same = |sources: &Vec<i32>| sources.iter().enumerate().all(|(i, &source)| source == i as i32);
        self.taps() == 1 && self.input == self.output && self.sources.iter().all(same)
    }

    /// Whether neighbouring outputs and neighbouring taps see neighbouring inputs.
    pub(super) fn is_dense(&self) -> bool {
        self.dense
    }

    /// The kernel index of a tap in each dimension.
    pub(super) fn tap(&self, tap: usize) -> [usize; 3] {
        self.tap_indices[tap]
    }

    /// For one kernel index of a dimension, the input index that each output index sees.
    pub(super) fn sources(&self, dimension: usize, tap: usize) -> &[i32] {
        let len = self.output[dimension];
        &self.sources[dimension][tap * len..][..len]
    }

    /// For one kernel index of the last dimension, the longest run of outputs that see inputs side by
    /// side.
    pub(super) fn run(&self, tap: usize) -> Range<usize> {
        self.runs[tap].clone()
    }

    /// Whether outputs beyond that run see no input at all.
    pub(super) fn is_alone(&self, tap: usize) -> bool {
        self.alone[tap]
    }
}

/// The kernel indices of all taps, in the order of the weight.
fn tap_indices([depth, height, width]: [usize; 3]) -> Vec<[usize; 3]> {
    let taps = 0..depth * height * width;
    taps.map(|tap| [tap / (height * width), tap / width % height, tap % width]).collect()
}

/// The longest run of outputs whose inputs stand side by side.
pub(super) fn longest_run(places: &[i32]) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for end in 1..=places.len() {
        if end - start > longest.len() && places[start] != OUTSIDE {
            longest = start..end;
        }
        // Outside counts as -1, which would seem to stand before 0.
        let broken = |last: i32, next: i32| last == OUTSIDE || next != last + 1;
        if end < places.len() && broken(places[end - 1], places[end]) {
            start = end;
        }
    }
    longest
}

/// The input that reaches an output through a tap of the transposed convolution.
fn transposed_source(window: &Window, tap: usize, at: usize, size: usize) -> Option<usize> {
    let index = (at + window.pad_before).checked_sub(tap * window.dilation)?;
    let source = index / window.stride;
    (index.is_multiple_of(window.stride) && source < size).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_leave_out_what_is_outside_or_mirrored() {
        assert_eq!(longest_run(&[OUTSIDE, 0, 1, 2, OUTSIDE]), 1..4);
        assert_eq!(longest_run(&[2, 1, 0, 1, 2, 3, 3]), 2..6);
        assert_eq!(longest_run(&[3, 0, 1, 2, 3, 0]), 1..5);
        assert_eq!(longest_run(&[OUTSIDE, OUTSIDE]), 0..0);
        assert_eq!(longest_run(&[]), 0..0);
    }
}
