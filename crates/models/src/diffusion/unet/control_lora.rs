//! Control networks that are kept as changes of the model that they control: patches of its layers (Stability's
//! Control-LoRA), or what the layers have more than the model's (kohya's differences).

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
    let form = if claims.is_marked(IS_DIFFERENCE) {
        Some(Form::Difference)
    } else if claims.is_marked(IS_LORA) {
        Some(Form::Lora(PatchFile::read(checkpoint)?))
    } else {
        None
    };
    if let Some(form) = form {
        let [_, hint_channels, _, _] = claims.dims("input_hint_block.0.weight")?;
        let prefix = part.prefix.clone();
        return Ok(Box::new(ControlChange { prefix, kind, controls, hint_channels, form }));
    }
    Ok(Box::new(UnetControl::read(checkpoint, part, kind, controls)?))
}

/// A control network that is kept as a change of the model that it controls: the layers of the way in are the model's,
/// changed, the others its own.
#[derive(Clone, Debug)]
struct ControlChange {
    prefix: String,
    kind: &'static Kind,
    controls: &'static [&'static str],
    hint_channels: usize,
    form: Form,
}

/// How the model's layers are changed.
#[derive(Clone, Debug)]
enum Form {
    /// By patches.
    Lora(PatchFile),
    /// By tensors of the model's names that are added to it.
    Difference,
}

impl ControlChange {
    fn needs_model<T>(&self) -> Result<T> {
        Err(Error::Input {
            what: "a control network that is a change of a model",
            expected: "used together with the model that it was made for".into(),
            got: "alone".into(),
        })
    }
}

impl Module for ControlChange {
    fn manifest(&self, _checkpoint: &Checkpoint) -> Result<Manifest> {
        self.needs_model()
    }

    /// It was trained in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}

impl ControlNetwork for ControlChange {
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
        let claims = Claims::new(own, &self.prefix, self.kind.family);
        let (claims, patches) = match &self.form {
            Form::Lora(patches) => (claims.over(&base), patches.clone()),
            Form::Difference => {
                let is_of_model = |name: &str| base.find(name).is_some();
                (claims.under(&base), PatchFile::of_differences(own, &self.prefix, is_of_model)?)
            }
        };
        let unet = Unet {
            config: model.config.cut_short(),
            prefix: self.prefix.clone(),
            stored: None,
            ..model.clone()
        };
        let own = (self.controls, self.hint_channels);
        Ok(Box::new(UnetControl::over_base(unet, own, &claims, patches)?))
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
