//! Normal noise, made on the host: the operation promises the same bits on every device.

use device::{Result, noise::NormalGenerator, op};

use crate::kernel::Launch;

pub(crate) fn normal_noise(call: &op::NormalNoise, launch: &Launch<'_>) -> Result<()> {
    let mut values = vec![0f32; call.out.count()];
    if !NormalGenerator::new(call.seed).fill_while(&mut values, || !launch.cancel.is_cancelled()) {
        return launch.cancel.check();
    }
    let target = launch.pointer(&call.out)?;
    let bytes = (values.as_ptr().cast(), size_of_val(values.as_slice()));
    // SAFETY: the values live until all of them have left, and the output is contiguous f32 memory of this count, which
    // the stream has touched.
    unsafe { launch.runtime.uploader.copy(launch.queue, target, bytes, launch.cancel) }
}
