//! Normal noise, made on the host: the operation promises the same bits on every device.

use device::{Result, noise::NormalGenerator, op};

use crate::kernel::Launch;

pub(crate) fn normal_noise(call: &op::NormalNoise, launch: &Launch<'_>) -> Result<()> {
    let mut values = vec![0f32; call.out.count()];
    NormalGenerator::new(call.seed).fill(&mut values);
    let context = &launch.runtime.context;
    let target = launch.pointer(&call.out)?;
    context.enter()?;
    let bytes = size_of_val(values.as_slice());
    // SAFETY: the values live until the stream has been waited for below; the output is contiguous f32
    // memory of this count.
    let queued =
        unsafe { context.driver().copy_up(target, values.as_ptr().cast(), bytes, launch.queue.raw()) };
    context.check("copying noise to the device", queued)?;
    launch.queue.synchronize()
}
