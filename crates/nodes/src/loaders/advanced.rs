//! Checkpoints whose parts go to devices of their own, and the choice of a device as a value.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};

use super::checkpoints::load_whole;
use super::placing::{
    Asked, automatic, device_input, device_of, expert_input, float_or, follows, placing, text_or,
    usual_device, virtual_vram_input,
};
use super::variants::MODULE;
use crate::Runtime;
use crate::class::class;
use runtime::Placing;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CheckpointLoaderAdvancedMultiGPU(Arc::clone(runtime)));
    catalogue.add(CheckpointLoaderAdvancedDisTorch2MultiGPU(Arc::clone(runtime)));
    catalogue.add(DeviceSelectorMultiGPU(Arc::clone(runtime)));
}

class! {
    /// A checkpoint, each part on its device.
    CheckpointLoaderAdvancedMultiGPU in "multigpu";
    |runtime, schema| {
        let device = |name: &str| device_input(runtime, name, &usual_device(runtime));
        schema
            .input(Input::choice("ckpt_name", runtime.names("checkpoints")))
            .input(device("unet_device"))
            .input(device("clip_device"))
            .input(device("vae_device"))
            .title("Load Checkpoint, Each Part on its Device")
            .output("MODEL")
            .output("CLIP")
            .output("VAE")
            .module(MODULE)
    };
    |runtime, call| {
        let on = |input: &str| -> Result<Placing, Failure> {
            automatic(runtime, call, input)
        };
        let (model, clip, vae) = (on("unet_device")?, on("clip_device")?, on("vae_device")?);
        Ok(Outcome::values(load_whole(runtime, call, [&model, &clip, &vae])?))
    }
}

class! {
    /// A checkpoint, each part spread over devices.
    CheckpointLoaderAdvancedDisTorch2MultiGPU in "multigpu/distorch_2";
    |runtime, schema| {
        let usual = usual_device(runtime);
        schema
            .input(Input::choice("ckpt_name", runtime.names("checkpoints")))
            .input(device_input(runtime, "unet_compute_device", &usual))
            .input(virtual_vram_input("unet_virtual_vram_gb", 4.0, 128.0))
            .input(device_input(runtime, "unet_donor_device", "cpu"))
            .input(device_input(runtime, "clip_compute_device", "cpu"))
            .input(virtual_vram_input("clip_virtual_vram_gb", 2.0, 128.0))
            .input(device_input(runtime, "clip_donor_device", "cpu"))
            .input(device_input(runtime, "vae_device", &usual))
            .input(expert_input("unet_expert_mode_allocations").optional())
            .input(expert_input("clip_expert_mode_allocations").optional())
            .input(Input::boolean("high_precision_loras", true).optional())
            .input(Input::boolean("eject_models", true).optional())
            .input(Input::boolean("keep_loaded", true).optional())
            .title("Load Checkpoint, Each Part over Devices")
            .output("MODEL")
            .output("CLIP")
            .output("VAE")
            .module(MODULE)
    };
    |runtime, call| {
        let of = |part: &str| -> Result<Placing, Failure> {
            let input = |name: &str| format!("{part}_{name}");
            let expert = input("expert_mode_allocations");
            let asked = Asked {
                compute: device_of(runtime, call, &input("compute_device"))?,
                follows: follows(call, &input("compute_device")),
                virtual_vram_gb: float_or(call, &input("virtual_vram_gb"), 0.0)?,
                donors: vec![device_of(runtime, call, &input("donor_device"))?],
                expert: text_or(call, &expert, "")?,
            };
            placing(runtime, call, &asked)
        };
        let (model, clip) = (of("unet")?, of("clip")?);
        let vae = Placing {
            retention: model.retention,
            ..automatic(runtime, call, "vae_device")?
        };
        // Others leave once, before the first part is loaded, and not the parts themselves.
        let clip = Placing { eject_others: false, ..clip };
        Ok(Outcome::values(load_whole(runtime, call, [&model, &clip, &vae])?))
    }
}

class! {
    /// The name of a device.
    DeviceSelectorMultiGPU in "multigpu";
    |runtime, schema| schema
        .input(Input::choice("device", runtime.device_names()))
        .title("Device")
        .named_output("MULTIGPUDEVICE", "device")
        .module(MODULE);
    |runtime, call| Ok(Outcome::one(call.text("device")?))
}
