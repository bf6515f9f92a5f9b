//! Cases of convolutions, resizing and padding.

use meta::{DType, Encoding};
use tensor::{ConvolutionShape, Padding, ResizeMode, TransposedShape, Window};

use crate::case::{Case, Input};
use crate::naive::{self, ConvolutionSize};

pub(crate) fn cases() -> Vec<Case> {
    [convolution(), transposed(), resize(), pad()].concat()
}

const ZEROS: Padding = Padding::Constant(0.0);
const POINT: Window = Window { stride: 1, pad_before: 0, pad_after: 0, dilation: 1 };

/// A convolution case: sizes and kernel of one to three dimensions.
struct Geometry {
    variant: &'static str,
    channels: [usize; 2],
    size: Vec<usize>,
    kernel: Vec<usize>,
    window: Vec<Window>,
    padding: Padding,
    groups: usize,
    stored: DType,
}

impl Geometry {
    fn new(
        variant: &'static str,
        channels: [usize; 2],
        size: &[usize],
        kernel: &[usize],
        pad: usize,
    ) -> Geometry {
        Geometry {
            variant,
            channels,
            size: size.to_vec(),
            kernel: kernel.to_vec(),
            window: vec![Window::padded(pad); size.len()],
            padding: ZEROS,
            groups: 1,
            stored: DType::F32,
        }
    }

    fn window(self, window: Window) -> Geometry {
        Geometry { window: vec![window; self.size.len()], ..self }
    }

    fn groups(self, groups: usize) -> Geometry {
        Geometry { groups, ..self }
    }

    fn padding(self, padding: Padding) -> Geometry {
        Geometry { padding, ..self }
    }

    fn stored(self, stored: DType) -> Geometry {
        Geometry { stored, ..self }
    }

    /// The geometry in three dimensions for the plain loops.
    fn naive(&self, batch: usize, output: &[usize], transposed: bool) -> ConvolutionSize {
        let three = |sizes: &[usize]| {
            std::array::from_fn(|i| (i + sizes.len()).checked_sub(3).map_or(1, |i| sizes[i]))
        };
        let window =
            std::array::from_fn(|i| (i + self.window.len()).checked_sub(3).map_or(POINT, |i| self.window[i]));
        ConvolutionSize {
            batch,
            channels: self.channels,
            input: three(&self.size),
            kernel: three(&self.kernel),
            output: three(output),
            window,
            padding: self.padding,
            groups: self.groups,
            transposed,
        }
    }

    fn inputs(&self, batch: usize, weight: [usize; 2]) -> Vec<Input> {
        let shape = |head: [usize; 2], tail: &[usize]| {
            let dims: Vec<usize> = head.iter().chain(tail).copied().collect();
            meta::Shape::new(&dims).expect("at most five dimensions")
        };
        vec![
            Input::random(31, shape([batch, self.channels[0]], &self.size)),
            Input::weight(self.stored.into(), 32, shape(weight, &self.kernel)),
            Input::weight(Encoding::F32, 33, [self.channels[1]]),
        ]
    }
}

fn convolution() -> Vec<Case> {
    let causal = Window { stride: 1, pad_before: 2, pad_after: 0, dilation: 1 };
    let mut volume = Geometry::new("3d, causal in time", [4, 6], &[5, 7, 6], &[3, 3, 3], 1);
    volume.window[0] = causal;
    let mut held = Geometry::new("3d, causal, first frame held", [4, 6], &[5, 7, 6], &[3, 3, 3], 1)
        .padding(Padding::Replicate);
    held.window[0] = causal;
    let mut large_volume = Geometry::new("3d, causal in time, large", [16, 32], &[5, 32, 34], &[3, 3, 3], 1);
    large_volume.window[0] = causal;
    [
        Geometry::new("2d 3x3", [16, 24], &[13, 17], &[3, 3], 1),
        Geometry::new("2d 3x3, bf16 weights", [16, 24], &[20, 20], &[3, 3], 1).stored(DType::BF16),
        Geometry::new("2d 3x3, f16 weights", [64, 40], &[24, 31], &[3, 3], 1).stored(DType::F16),
        Geometry::new("2d 1x1", [32, 20], &[9, 11], &[1, 1], 0),
        Geometry::new("2d stride 2", [8, 12], &[15, 16], &[3, 3], 1)
            .window(Window { stride: 2, ..Window::padded(1) }),
        Geometry::new("2d stride 2, padded behind", [8, 12], &[16, 16], &[3, 3], 0).window(Window {
            stride: 2,
            pad_before: 0,
            pad_after: 1,
            dilation: 1,
        }),
        // Large enough for kernels of libraries.
        Geometry::new("2d 3x3, large", [32, 64], &[64, 66], &[3, 3], 1).stored(DType::BF16),
        Geometry::new("2d stride 2, padded behind, large", [32, 64], &[128, 132], &[3, 3], 0)
            .window(Window { stride: 2, pad_before: 0, pad_after: 1, dilation: 1 }),
        Geometry::new("3d 3x3x3, large", [16, 32], &[5, 32, 34], &[3, 3, 3], 1).stored(DType::BF16),
        Geometry::new("3d stride 2, padded behind, large", [16, 40], &[9, 64, 66], &[3, 3, 3], 0)
            .window(Window { stride: 2, pad_before: 0, pad_after: 1, dilation: 1 }),
        large_volume,
        Geometry::new("2d dilated", [6, 5], &[14, 12], &[3, 3], 2)
            .window(Window { dilation: 2, ..Window::padded(2) }),
        Geometry::new("2d 5x3, no padding", [5, 7], &[12, 10], &[5, 3], 0),
        Geometry::new("2d in groups", [12, 18], &[10, 10], &[3, 3], 1).groups(3),
        Geometry::new("2d depthwise", [16, 16], &[12, 11], &[3, 3], 1).groups(16),
        Geometry::new("2d reflected", [4, 6], &[9, 8], &[3, 3], 1).padding(Padding::Reflect),
        Geometry::new("2d replicated", [4, 6], &[9, 8], &[3, 3], 1).padding(Padding::Replicate),
        Geometry::new("2d circular", [4, 6], &[9, 8], &[3, 3], 1).padding(Padding::Circular),
        Geometry::new("2d patches", [3, 32], &[16, 24], &[4, 4], 0)
            .window(Window { stride: 4, ..Window::padded(0) }),
        Geometry::new("1d", [6, 10], &[40], &[5], 2),
        Geometry::new("3d", [3, 5], &[4, 6, 7], &[3, 3, 3], 1),
        volume,
        held,
    ]
    .iter()
    .map(convolution_of)
    .collect()
}

fn convolution_of(g: &Geometry) -> Case {
    let sizes = g.size.iter().zip(&g.kernel).zip(&g.window);
    let output: Vec<usize> =
        sizes.map(|((s, k), w)| w.output_size(*s, *k).expect("the case is valid")).collect();
    let naive_size = g.naive(2, &output, false);
    let shape = ConvolutionShape { window: g.window.clone(), padding: g.padding, groups: g.groups };
    Case::new(
        "convolution",
        g.variant,
        g.inputs(2, [g.channels[1], g.channels[0] / g.groups]),
        move |_, i| i.tensor(0).convolution(i.weight(1), Some(i.weight(2)), &shape),
        move |v| naive::convolution(naive_size, &v[0], &v[1], &v[2]),
    )
}

fn transposed() -> Vec<Case> {
    let double = Window { stride: 2, ..Window::padded(1) };
    [
        (Geometry::new("2d transposed 4x4", [6, 5], &[7, 8], &[4, 4], 1).window(double), 0),
        (Geometry::new("2d transposed 3x3, output padding", [6, 4], &[6, 5], &[3, 3], 1).window(double), 1),
        (Geometry::new("2d transposed in groups", [8, 6], &[5, 6], &[4, 4], 1).window(double).groups(2), 0),
        (Geometry::new("1d transposed", [5, 3], &[9], &[4], 1).window(double), 0),
    ]
    .into_iter()
    .map(|(g, output_padding)| {
        let sizes = g.size.iter().zip(&g.kernel).zip(&g.window);
        let output: Vec<usize> = sizes
            .map(|((s, k), w)| w.transposed_size(*s, *k).expect("the case is valid") + output_padding)
            .collect();
        let naive_size = g.naive(2, &output, true);
        let shape = TransposedShape { window: g.window.clone(), output_padding, groups: g.groups };
        Case::new(
            "convolution",
            g.variant,
            g.inputs(2, [g.channels[0], g.channels[1] / g.groups]),
            move |_, i| i.tensor(0).transposed_convolution(i.weight(1), Some(i.weight(2)), &shape),
            move |v| naive::convolution(naive_size, &v[0], &v[1], &v[2]),
        )
    })
    .collect()
}

fn resize() -> Vec<Case> {
    let sizes = [[9, 14, 18, 28], [16, 12, 7, 5], [5, 7, 13, 3], [8, 8, 8, 8]];
    let of = |mode: ResizeMode| {
        sizes.map(|[h, w, oh, ow]| {
            Case::new(
                "resize",
                format!("{mode:?} {h}x{w} to {oh}x{ow}"),
                vec![Input::random(34, [2, 3, h, w])],
                move |_, i| i.tensor(0).resize(oh, ow, mode),
                move |v| naive::resize(&v[0], [h, w], [oh, ow], mode),
            )
        })
    };
    ResizeMode::ALL.into_iter().flat_map(of).collect()
}

fn pad() -> Vec<Case> {
    let border = [(0, 0), (1, 2), (3, 1)];
    [Padding::Constant(1.5), Padding::Reflect, Padding::Replicate, Padding::Circular]
        .map(|padding| {
            let naive = move |v: &[Vec<f64>]| {
                let value = |i: usize| {
                    let (b, r, c) = (i / (9 * 12), i / 12 % 9, i % 12);
                    let row = padding.source(r as isize - 1, 6);
                    let column = padding.source(c as isize - 3, 8);
                    row.zip(column).map_or(1.5, |(r, c)| v[0][(b * 6 + r) * 8 + c])
                };
                (0..2 * 9 * 12).map(value).collect()
            };
            let run = move |_: &tensor::Lane, i: &crate::case::Inputs| i.tensor(0).pad(&border, padding);
            Case::new("pad", format!("{padding:?}"), vec![Input::random(35, [2, 6, 8])], run, naive).exact()
        })
        .into()
}
