//! Control networks that are kept as changes of the model that they control (Stability's Control-LoRA).

use checkpoint::Checkpoint;
use meta::DType;
use patch::PatchFile;
use residency::{Manifest, Session};

use super::control::UnetControl;
use super::{Kind, Unet};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Scene};
use crate::control::{ControlNetwork, ControlRun, Controlled, HintSpec};
use crate::detect::Part;
use crate::{Error, Module, Result};

/// What a file that is a change of a model has in it.
const IS_LORA: &str = "lora_controlnet";
/// What a file has in it whose weights are differences to a model's.
const IS_DIFFERENCE: &str = "difference";

/// Reads a control network of the UNet's kind from a part of a file.
pub(in crate::diffusion) fn read_control(
    checkpoint: &Checkpoint,
    part: &Part,
    kind: &'static Kind,
    controls: &'static [&'static str],
) -> Result<Box<dyn ControlNetwork>> {
    let claims = Claims::new(checkpoint, &part.prefix, kind.family);
    if claims.is_marked(IS_DIFFERENCE) {
        return Err(Error::Input {
            what: "a control network",
            expected: "one with weights of its own".into(),
            got: format!("{}, whose weights are differences to a model's", claims.file()),
        });
    }
    if claims.is_marked(IS_LORA) {
        return Ok(Box::new(ControlLora::read(checkpoint, part, kind, controls)?));
    }
    Ok(Box::new(UnetControl::read(checkpoint, part, kind, controls)?))
}

/// A control network that is kept as a change of the model that it controls (Stability's Control-LoRA): the layers of the
/// way in are the model's with a patch, the others its own.
#[derive(Clone, Debug)]
struct ControlLora {
    prefix: String,
    kind: &'static Kind,
    controls: &'static [&'static str],
    hint_channels: usize,
    patches: PatchFile,
}

impl ControlLora {
    /// Reads what the file itself has.
    fn read(
        checkpoint: &Checkpoint,
        part: &Part,
        kind: &'static Kind,
        controls: &'static [&'static str],
    ) -> Result<ControlLora> {
        let claims = Claims::new(checkpoint, &part.prefix, kind.family);
        let [_, hint_channels, _, _] = claims.dims("input_hint_block.0.weight")?;
        let patches = PatchFile::read(checkpoint)?;
        Ok(ControlLora { prefix: part.prefix.clone(), kind, controls, hint_channels, patches })
    }

    fn needs_model<T>(&self) -> Result<T> {
        Err(Error::Input {
            what: "a Control-LoRA",
            expected: "used together with the model that it was made for".into(),
            got: "alone".into(),
        })
    }
}

impl Module for ControlLora {
    fn manifest(&self, _checkpoint: &Checkpoint) -> Result<Manifest> {
        self.needs_model()
    }

    /// It was trained in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}

impl ControlNetwork for ControlLora {
    fn controls(&self) -> &'static [&'static str] {
        self.controls
    }

    fn hint(&self) -> HintSpec {
        HintSpec::pixels(self.hint_channels)
    }

    fn latent_channels(&self) -> usize {
        self.kind.latent.channels
    }

    fn needs_base(&self) -> bool {
        true
    }

    fn on_base(&self, own: &Checkpoint, base: (&Checkpoint, &Part)) -> Result<Box<dyn ControlNetwork>> {
        let (file, part) = base;
        let model = Unet::read(file, part, self.kind)?;
        let base = model.claims(file);
        let claims = Claims::new(own, &self.prefix, self.kind.family).over(&base);
        let unet = Unet {
            config: model.config.cut_short(),
            prefix: self.prefix.clone(),
            stored: None,
            ..model.clone()
        };
        let own = (self.controls, self.hint_channels);
        Ok(Box::new(UnetControl::over_base(unet, own, &claims, self.patches.clone())?))
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, shape.tokens.max(1), 1]), None)
    }

    fn start<'a>(
        &'a self,
        _session: &'a Session,
        _controlled: &[Controlled<'_>],
        _scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        self.needs_model()
    }
}
