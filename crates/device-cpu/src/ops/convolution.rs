//! Convolutions, as matrix products whose right side is read from the image while it is packed.

mod depthwise;
mod geometry;
mod image;
#[cfg(test)]
mod tests;
mod winograd;

use device::{Result, op};

use crate::access::Access;
use crate::ops::gemm::{Bias, Epilogue, Panels, Product, Stored, Strided, Target, for_each};
use crate::ops::product::parameter;

use geometry::Geometry;
use image::{Patches, TransposedWeight};
use winograd::Winograd;

/// A convolution over one to three dimensions.
pub(crate) fn convolution(call: &op::Convolution, access: &Access<'_>) -> Result<()> {
    let geometry = Geometry::new(call);
    let x = access.values::<f32>(&call.x)?;
    let bytes = access.bytes(&call.weight)?;
    let weight = Stored { bytes, encoding: call.weight.encoding(), row: geometry.depth(), scaling: None };
    let bias = call.bias.as_ref().map(|bias| parameter(bias, access)).transpose()?;
    let out = access.output::<f32>(&call.out)?;
    if geometry.channels == 1 && !call.transposed {
        depthwise::depthwise(&geometry, x, &parameter(&call.weight, access)?, bias.as_deref(), out);
        return Ok(());
    }
    let start = Start(out.as_mut_ptr());
    for_each(geometry.groups, true, |group| {
        let bias = bias.as_deref().map(|bias| &bias[group * geometry.filters..][..geometry.filters]);
        let offset = group * geometry.filters * geometry.pixels();
        let image_stride = geometry.groups * geometry.filters * geometry.pixels();
        // SAFETY: the output is contiguous, and each group has channels of its own.
        let target = unsafe { Target::new(start.at(offset), geometry.pixels(), image_stride) };
        let part = Group { geometry: &geometry, x, weight, index: group, bias };
        if call.transposed {
            let left = TransposedWeight { geometry: &geometry, weight, group };
            part.run(&left, target);
        } else if winograd::suits(&geometry) {
            part.winograd().run(target);
        } else {
            part.run(&part.filters(), target);
        }
    });
    Ok(())
}

/// The address of an output that tasks share.
struct Start(*mut f32);

// SAFETY: tasks write at places of their own.
unsafe impl Sync for Start {}

impl Start {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// One group of channels of a convolution.
struct Group<'a> {
    geometry: &'a Geometry,
    x: &'a [f32],
    weight: Stored<'a>,
    index: usize,
    bias: Option<&'a [f32]>,
}

impl Group<'_> {
    /// The filters of this group, one in each row.
    fn filters(&self) -> Stored<'_> {
        let bytes = self.weight.bytes.len() / self.geometry.groups;
        Stored { bytes: &self.weight.bytes[self.index * bytes..][..bytes], ..self.weight }
    }

    /// This group's part of the first image and all behind it, and the distance of images.
    fn images(&self) -> (&[f32], usize) {
        let plane = self.geometry.channels * self.geometry.plane();
        (self.x.get(self.index * plane..).unwrap_or_default(), self.geometry.groups * plane)
    }

    fn winograd(&self) -> Winograd<'_> {
        let (values, image) = self.images();
        Winograd { geometry: self.geometry, values, image, filters: self.filters(), bias: self.bias }
    }

    fn run(&self, left: &dyn Panels, target: Target) {
        let geometry = self.geometry;
        let plane = geometry.plane();
        let (values, image) = self.images();
        let strided = Strided { values, line: 1, step: plane, image_lines: plane.max(1), image };
        let patches = Patches { geometry, values, image };
        let right: &dyn Panels = if geometry.is_pointwise() { &strided } else { &patches };
        let bias = self.bias.map_or(Bias::None, Bias::Rows);
        Product {
            rows: geometry.filters,
            images: geometry.batch,
            columns: geometry.pixels(),
            depth: geometry.depth(),
            left,
            right,
            epilogue: Epilogue { bias, ..Epilogue::NONE },
        }
        .run(target);
    }
}
