//! Checkpoints whose parts go to devices of their own, and the choice of a device as a value.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};

use super::checkpoints::load_whole;
use super::placing::{
    Asked, device_input, device_of, expert_input, float_or, placing, text_or, usual_device,
    virtual_vram_input,
};
use super::variants::MODULE;
use crate::Studio;
use crate::studio::{Placing, class};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    catalogue.add(CheckpointLoaderAdvancedMultiGPU(Arc::clone(studio)));
    catalogue.add(CheckpointLoaderAdvancedDisTorch2MultiGPU(Arc::clone(studio)));
    catalogue.add(DeviceSelectorMultiGPU(Arc::clone(studio)));
}

class! {
    /// A checkpoint, each part on its device.
    CheckpointLoaderAdvancedMultiGPU in "multigpu";
    |studio, schema| {
        let device = |name: &str| device_input(studio, name, &usual_device(studio));
        schema
            .input(Input::choice("ckpt_name", studio.names("checkpoints")))
            .input(device("unet_device"))
            .input(device("clip_device"))
            .input(device("vae_device"))
            .title("Load Checkpoint, Each Part on its Device")
            .output("MODEL")
            .output("CLIP")
            .output("VAE")
            .module(MODULE)
    };
    |studio, call| {
        let on = |input: &str| -> Result<Placing, Failure> {
            Ok(Placing::automatic(device_of(studio, call, input)?))
        };
        let (model, clip, vae) = (on("unet_device")?, on("clip_device")?, on("vae_device")?);
        Ok(Outcome::values(load_whole(studio, call, [&model, &clip, &vae])?))
    }
}

class! {
    /// A checkpoint, each part spread over devices.
    CheckpointLoaderAdvancedDisTorch2MultiGPU in "multigpu/distorch_2";
    |studio, schema| {
        let usual = usual_device(studio);
        schema
            .input(Input::choice("ckpt_name", studio.names("checkpoints")))
            .input(device_input(studio, "unet_compute_device", &usual))
            .input(virtual_vram_input("unet_virtual_vram_gb", 4.0, 128.0))
            .input(device_input(studio, "unet_donor_device", "cpu"))
            .input(device_input(studio, "clip_compute_device", "cpu"))
            .input(virtual_vram_input("clip_virtual_vram_gb", 2.0, 128.0))
            .input(device_input(studio, "clip_donor_device", "cpu"))
            .input(device_input(studio, "vae_device", &usual))
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
    |studio, call| {
        let of = |part: &str| -> Result<Placing, Failure> {
            let input = |name: &str| format!("{part}_{name}");
            let expert = input("expert_mode_allocations");
            let asked = Asked {
                compute: device_of(studio, call, &input("compute_device"))?,
                virtual_vram_gb: float_or(call, &input("virtual_vram_gb"), 0.0)?,
                donors: vec![device_of(studio, call, &input("donor_device"))?],
                expert: text_or(call, &expert, "")?,
            };
            placing(studio, call, &asked)
        };
        let (model, clip) = (of("unet")?, of("clip")?);
        let vae = Placing {
            retention: model.retention,
            ..Placing::automatic(device_of(studio, call, "vae_device")?)
        };
        // Others leave once, before the first part is loaded, and not the parts themselves.
        let clip = Placing { eject_others: false, ..clip };
        Ok(Outcome::values(load_whole(studio, call, [&model, &clip, &vae])?))
    }
}

class! {
    /// The name of a device.
    DeviceSelectorMultiGPU in "multigpu";
    |studio, schema| schema
        .input(Input::choice("device", studio.device_names()))
        .title("Device")
        .named_output("MULTIGPUDEVICE", "device")
        .module(MODULE);
    |studio, call| Ok(Outcome::one(call.text("device")?))
}
