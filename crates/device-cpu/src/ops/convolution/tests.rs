//! Convolutions against loops in f64.

use device::op::{Convolution, Padding, Window};
use meta::{DType, Encoding, QuantFormat};

use super::geometry::Geometry;
use super::winograd;
use crate::ops::gemm::tests::{assert_near, stored};
use crate::ops::gemm::{Kernel, Stored, Target};
use crate::ops::product::tests::{Bench, same_in_every_pool};

/// A convolution to test; the sizes of one to three dimensions.
struct Case<'a> {
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    input: &'a [usize],
    kernel: &'a [usize],
    window: &'a [Window],
    padding: Padding,
    transposed: bool,
    /// Added to the smallest transposed size.
    more: usize,
}

impl Case<'_> {
    fn output(&self) -> Vec<usize> {
        let sizes = self.window.iter().zip(self.input.iter().zip(self.kernel));
        sizes
            .map(|(window, (&size, &kernel))| match self.transposed {
                true => window.transposed_size(size, kernel).unwrap() + self.more,
                false => window.output_size(size, kernel).unwrap(),
            })
            .collect()
    }

    fn weight_dims(&self) -> Vec<usize> {
        let lead = match self.transposed {
            true => [self.channels, self.filters / self.groups],
            false => [self.filters, self.channels / self.groups],
        };
        [&lead[..], self.kernel].concat()
    }

    fn call(&self, bench: &Bench, encoding: Encoding, values: [&[f32]; 2], bytes: Vec<u8>) -> Convolution {
        let out = [&[self.batch, self.filters][..], &self.output()].concat();
        Convolution {
            x: bench.tensor(&[&[self.batch, self.channels][..], self.input].concat(), values[0]),
            weight: bench.weight(&self.weight_dims(), encoding, bytes),
            bias: Some(bench.tensor(&[self.filters], values[1])),
            window: self.window.to_vec(),
            padding: self.padding,
            groups: self.groups,
            transposed: self.transposed,
            out: bench.tensor(&out, &vec![f32::NAN; out.iter().product()]),
        }
    }

    /// Adds every input value to every output value that it reaches.
    fn naive(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let (input, output) = (self.input, self.output());
        let (pixels, plane): (usize, usize) = (output.iter().product(), input.iter().product());
        let taps: usize = self.kernel.iter().product();
        let (inside, outside) = (self.channels / self.groups, self.filters / self.groups);
        let mut out = Vec::new();
        for index in 0..self.batch * self.filters * pixels {
            let (image, filter, pixel) =
                (index / self.filters / pixels, index / pixels % self.filters, index % pixels);
            let group = filter / outside;
            let mut sum = f64::from(bias[filter]);
            for tap in 0..taps {
                let Some(place) = self.source(pixel, &output, tap) else { continue };
                for channel in 0..inside {
                    let all = group * inside + channel;
                    let factor = match self.transposed {
                        true => weight[(all * outside + filter % outside) * taps + tap],
                        false => weight[(filter * inside + channel) * taps + tap],
                    };
                    sum += f64::from(factor) * f64::from(x[(image * self.channels + all) * plane + place]);
                }
            }
            out.push(sum);
        }
        out
    }

    /// The input place that an output pixel sees through a tap.
    fn source(&self, mut pixel: usize, output: &[usize], mut tap: usize) -> Option<usize> {
        let (mut place, mut step) = (0, 1);
        for d in (0..self.input.len()).rev() {
            let (at, k) = ((pixel % output[d]) as isize, (tap % self.kernel[d]) as isize);
            (pixel, tap) = (pixel / output[d], tap / self.kernel[d]);
            let Window { stride, pad_before, dilation, .. } = self.window[d];
            let (stride, pad, dilation) = (stride as isize, pad_before as isize, dilation as isize);
            let index = if self.transposed {
                let index = at + pad - k * dilation;
                if index % stride != 0 {
                    return None;
                }
                index / stride
            } else {
                at * stride - pad + k * dilation
            };
            place += step * self.padding.source(index, self.input[d])?;
            step *= self.input[d];
        }
        Some(place)
    }

    fn check(&self, encoding: Encoding) {
        let bench = Bench::new();
        let count = self.batch * self.channels * self.input.iter().product::<usize>();
        let x = testkit::random_normal(1, count);
        let (bytes, weight) = stored(encoding, 2, self.weight_dims().iter().product());
        let bias = testkit::random_normal(3, self.filters);
        let want = self.naive(&x, &weight, &bias);
        let name = format!(
            "{} to {} in {} groups, {:?} * {:?}, {:?} {:?} {encoding}",
            self.channels, self.filters, self.groups, self.input, self.kernel, self.window, self.padding
        );
        assert_near(&name, &bench.run(self.call(&bench, encoding, [&x, &bias], bytes)), &want);
    }
}

const ZEROS: Padding = Padding::Constant(0.0);
const PLAIN: Case<'static> = Case {
    batch: 1,
    channels: 6,
    filters: 10,
    groups: 1,
    input: &[9, 11],
    kernel: &[3, 3],
    window: &[Window::padded(1); 2],
    padding: ZEROS,
    transposed: false,
    more: 0,
};

#[test]
fn three_by_three_at_many_sizes() {
    for (height, width) in [(1, 1), (2, 3), (8, 8), (7, 15), (5, 16), (4, 17), (3, 40), (20, 64), (2, 333)] {
        for (batch, channels, filters) in [(1, 3, 4), (2, 31, 13), (1, 64, 70)] {
            Case { batch, channels, filters, input: &[height, width], ..PLAIN }.check(Encoding::F32);
        }
    }
}

#[test]
fn strides_dilations_and_uneven_padding_in_every_mode() {
    let uneven = Window { stride: 1, pad_before: 2, pad_after: 1, dilation: 1 };
    let wide = Window { stride: 3, pad_before: 0, pad_after: 4, dilation: 2 };
    let down = Window { stride: 2, pad_before: 0, pad_after: 1, dilation: 1 };
    for padding in [ZEROS, Padding::Reflect, Padding::Replicate, Padding::Circular] {
        for window in [[uneven; 2], [wide; 2], [down; 2], [uneven, wide], [Window::padded(0); 2]] {
            for input in [[9, 40], [6, 7]] {
                let case = Case { input: &input, window: &window, padding, ..PLAIN };
                case.check(Encoding::F32);
                Case { channels: 4, filters: 4, groups: 4, ..case }.check(Encoding::F32);
            }
        }
    }
}

#[test]
fn three_by_three_in_tiles() {
    let uneven = Window { stride: 1, pad_before: 2, pad_after: 0, dilation: 1 };
    let none = Window::padded(0);
    // Rows of tiles longer and shorter than a piece, odd sizes, and sizes just above the least.
    for (height, width) in [(16, 24), (27, 30), (33, 31), (6, 401), (70, 25), (2, 223)] {
        for (batch, channels, filters) in [(1, 16, 24), (2, 40, 110), (1, 130, 29)] {
            Case { batch, channels, filters, input: &[height, width], ..PLAIN }.check(Encoding::F32);
        }
    }
    for padding in [ZEROS, Padding::Reflect, Padding::Replicate, Padding::Circular] {
        for window in [[Window::padded(1); 2], [uneven, Window::padded(2)], [none; 2]] {
            let case =
                Case { channels: 34, filters: 50, input: &[19, 60], window: &window, padding, ..PLAIN };
            case.check(Encoding::F32);
            Case { groups: 2, batch: 2, ..case }.check(Encoding::BF16);
        }
    }
    // Filters that are changed in several rounds.
    Case { channels: 1500, filters: 180, input: &[2, 192], ..PLAIN }.check(Encoding::F16);
}

#[test]
fn every_kernel_convolves_in_tiles() {
    let case = Case { batch: 2, channels: 21, filters: 35, input: &[23, 27], ..PLAIN };
    let (bytes, weight) = stored(Encoding::BF16, 7, case.weight_dims().iter().product());
    let x = testkit::random_normal(8, 2 * 21 * 23 * 27);
    let bias = testkit::random_normal(9, 35);
    let want = case.naive(&x, &weight, &bias);
    let bench = Bench::new();
    let call = case.call(&bench, Encoding::BF16, [&x, &bias], bytes.clone());
    let geometry = Geometry::new(&call);
    assert!(winograd::suits(&geometry));
    for kernel in Kernel::all() {
        let mut out = vec![f32::NAN; want.len()];
        // SAFETY: the output is contiguous and has two images of 35 channels.
        let target = unsafe { Target::new(out.as_mut_ptr(), 23 * 27, 35 * 23 * 27) };
        let filters = Stored { bytes: &bytes[1..], encoding: Encoding::BF16, row: 21 * 9, scaling: None };
        let image = 21 * 23 * 27;
        winograd::Winograd { geometry: &geometry, values: &x, image, filters, bias: Some(&bias) }
            .run_with(kernel, target);
        assert_near("in tiles", &out, &want);
    }
}

#[test]
fn one_and_three_dimensions() {
    let causal = Window { stride: 1, pad_before: 2, pad_after: 0, dilation: 1 };
    let half = Window { stride: 2, ..Window::padded(1) };
    Case { input: &[50], kernel: &[5], window: &[causal], ..PLAIN }.check(Encoding::F32);
    Case { input: &[33], kernel: &[4], window: &[half], groups: 2, batch: 3, ..PLAIN }.check(Encoding::BF16);
    let cube = [causal, Window::padded(1), Window::padded(1)];
    for padding in [ZEROS, Padding::Replicate] {
        let case = Case { input: &[5, 6, 18], kernel: &[3, 3, 3], window: &cube, padding, ..PLAIN };
        case.check(Encoding::F32);
        Case { window: &[causal, half, half], ..case }.check(Encoding::F16);
    }
}

#[test]
fn pointwise_and_patch_embedding() {
    let whole = Window { stride: 4, ..Window::padded(0) };
    for encoding in [Encoding::F32, Encoding::BF16, DType::F8E4M3.into()] {
        let case = Case { kernel: &[1, 1], window: &[Window::padded(0); 2], batch: 2, ..PLAIN };
        case.check(encoding);
        Case { channels: 40, filters: 50, input: &[33, 35], ..case }.check(encoding);
        Case { kernel: &[4, 4], window: &[whole; 2], input: &[16, 28], ..PLAIN }.check(encoding);
        Case { kernel: &[1, 1], window: &[Window { stride: 2, ..Window::padded(0) }; 2], ..PLAIN }
            .check(encoding);
    }
    let padded = Case { kernel: &[1, 1], window: &[Window::padded(1); 2], ..PLAIN };
    padded.check(Encoding::F32);
    let quantised = Case { kernel: &[32], input: &[70], window: &[Window::padded(3)], ..PLAIN };
    quantised.check(QuantFormat::Q8_0.into());
}

#[test]
fn groups_and_depthwise() {
    for (channels, filters, groups) in [(8, 8, 8), (6, 12, 6), (8, 12, 4), (9, 3, 3), (1, 5, 1)] {
        let case = Case { channels, filters, groups, batch: 2, input: &[9, 37], ..PLAIN };
        case.check(Encoding::F32);
        Case { input: &[30], kernel: &[7], window: &[Window::padded(3)], ..case }.check(Encoding::BF16);
    }
}

#[test]
fn transposed_with_output_padding() {
    let double = Window { stride: 2, ..Window::padded(1) };
    let odd = Window { stride: 3, pad_before: 2, pad_after: 0, dilation: 2 };
    for (groups, window, more) in [(1, double, 0), (2, double, 1), (1, odd, 2), (2, Window::padded(1), 0)] {
        let case =
            Case { window: &[window; 2], kernel: &[4, 3], groups, more, transposed: true, batch: 2, ..PLAIN };
        case.check(Encoding::F32);
        Case { channels: 70, filters: 18, input: &[6, 20], ..case }.check(Encoding::BF16);
        Case { input: &[13], kernel: &[4], window: &[window], ..case }.check(Encoding::F32);
        Case { input: &[3, 4, 5], kernel: &[2, 3, 2], window: &[window; 3], ..case }.check(Encoding::F32);
    }
    let quantised = Case { kernel: &[32], input: &[20], window: &[double], transposed: true, ..PLAIN };
    quantised.check(QuantFormat::Q4_0.into());
}

#[test]
fn convolutions_do_not_depend_on_threads() {
    let bench = Bench::new();
    for case in [
        Case { channels: 60, filters: 50, input: &[40, 50], batch: 2, ..PLAIN },
        Case { channels: 16, filters: 16, groups: 16, input: &[60, 70], ..PLAIN },
        Case { channels: 64, filters: 64, groups: 4, input: &[30, 40], ..PLAIN },
        Case { channels: 100, filters: 120, groups: 2, input: &[31, 80], batch: 2, ..PLAIN },
    ] {
        let x = testkit::random_normal(4, case.batch * case.channels * case.input.iter().product::<usize>());
        let (bytes, _) = stored(Encoding::BF16, 5, case.weight_dims().iter().product());
        let bias = testkit::random_normal(6, case.filters);
        same_in_every_pool(|| bench.run(case.call(&bench, Encoding::BF16, [&x, &bias], bytes.clone())));
    }
}
