//! A family's standard workflow, filled in: loaders, LoRAs, prompts, a sampler, a saved picture.

use anyhow::{Result, ensure};
use graph::{Literal, NodeId, Prompt, PromptNode};
use models::diffusion::DiffusionFamily;

use super::files::is_gguf;
use super::{Drawing, Place};
use crate::cli::PictureSize;

/// How the names of saved pictures begin, should the workflow run again elsewhere.
const SAVED_AS: &str = "gantry";
/// The loaders of text encoders, by the number of their files.
const ENCODER_LOADERS: [(&str, bool); 4] = [
    ("CLIPLoader", true),
    ("DualCLIPLoader", true),
    ("TripleCLIPLoader", false),
    ("QuadrupleCLIPLoader", false),
];

/// Whether a family draws pictures of a size.
pub(super) fn check_size(family: &DiffusionFamily, PictureSize { width, height }: PictureSize) -> Result<()> {
    let multiple = family.workflow.multiple;
    ensure!(
        height.is_multiple_of(multiple) && width.is_multiple_of(multiple),
        "{width}x{height} is no size for {}: both sides must be multiples of {multiple}",
        family.name
    );
    Ok(())
}

/// The workflow filled in, and which of its nodes takes the steps.
pub(super) fn fill_in(drawing: &Drawing) -> (Prompt, NodeId) {
    let standard = &drawing.files.family.workflow;
    let mut sheet = Sheet::default();
    let (mut model, clip, vae) = sheet.loaders(drawing);
    for (name, strength) in &drawing.files.loras {
        let inputs =
            [("model", model), ("lora_name", name.as_str().into()), ("strength_model", (*strength).into())];
        model = sheet.add("LoRA", "LoraLoaderModelOnly", inputs).output(0);
    }
    let inputs = [("clip", clip.clone()), ("text", drawing.prompt.as_str().into())];
    let mut positive = sheet.add("Prompt", "CLIPTextEncode", inputs).output(0);
    if let Some((class, usual)) = standard.guidance.filter(|_| drawing.files.takes_guidance) {
        let guidance = drawing.guidance.unwrap_or(usual);
        let inputs = [("conditioning", positive), ("guidance", guidance.into())];
        positive = sheet.add("Guidance", class, inputs).output(0);
    }
    let cfg = drawing.cfg.unwrap_or(standard.cfg);
    let negative = if cfg == 1.0 {
        sheet.add("No negative prompt", "ConditioningZeroOut", [("conditioning", positive.clone())])
    } else {
        let inputs = [("clip", clip), ("text", drawing.negative.as_str().into())];
        sheet.add("Negative prompt", "CLIPTextEncode", inputs)
    };
    let PictureSize { width, height } = drawing.size;
    let inputs = [("width", width.into()), ("height", height.into()), ("batch_size", 1.into())];
    let latent = sheet.add("Size and number", standard.latent, inputs).output(0);
    let inputs = [
        ("model", model),
        ("positive", positive),
        ("negative", negative.output(0)),
        ("latent_image", latent),
        ("seed", drawing.seed.into()),
        ("steps", drawing.steps.into()),
        ("cfg", cfg.into()),
        ("sampler_name", standard.sampler.into()),
        ("scheduler", standard.scheduler.into()),
        ("denoise", 1.0.into()),
    ];
    let sampler = sheet.add("Draw", "KSampler", inputs);
    let inputs = [("samples", sampler.output(0)), ("vae", vae)];
    let picture = sheet.add("Latent to picture", "VAEDecode", inputs).output(0);
    sheet.add("Save", "SaveImage", [("images", picture), ("filename_prefix", SAVED_AS.into())]);
    (sheet.prompt, sampler.0)
}

/// A prompt that grows node by node.
#[derive(Default)]
struct Sheet {
    prompt: Prompt,
}

/// A node of the sheet.
struct Node(NodeId);

impl Node {
    /// A link to one of its outputs.
    fn output(&self, slot: usize) -> Literal {
        Literal::List(vec![Literal::from(&*self.0), slot.into()])
    }
}

impl Sheet {
    fn add<'a>(
        &mut self,
        title: &str,
        class: &str,
        inputs: impl IntoIterator<Item = (&'a str, Literal)>,
    ) -> Node {
        let id = NodeId::from((self.prompt.nodes.len() + 1).to_string());
        let mut node = PromptNode::new(class, graph::map(inputs));
        node.rest = graph::map([("_meta", graph::map([("title", title.into())]).into())]);
        self.prompt.nodes.insert(NodeId::clone(&id), node);
        Node(id)
    }

    /// The loaders: links to the diffusion model, the text encoders and the autoencoder. Plain ones put everything
    /// where the runtime computes; where a device or an allocation is said, their variants say it, too.
    fn loaders(&mut self, drawing: &Drawing) -> (Literal, Literal, Literal) {
        let (files, place) = (&drawing.files, &drawing.place);
        let mut whole = None;
        let (model, clip) = match &files.encoders {
            Some(encoders) => {
                let kind = files.family.workflow.text.name;
                (self.model(&files.model, place), self.encoders(encoders, kind, place))
            }
            None => {
                let checkpoint = whole.insert(self.checkpoint(&files.model, place));
                (checkpoint.output(0), checkpoint.output(1))
            }
        };
        let vae = match (&files.autoencoder, whole) {
            (None, Some(checkpoint)) => checkpoint.output(2),
            (name, _) => self.autoencoder(name.as_ref().unwrap_or(&files.model), place),
        };
        (model, clip, vae)
    }

    fn model(&mut self, name: &str, place: &Place) -> Literal {
        let mut inputs = vec![("unet_name", name.into())];
        let mut class = "UnetLoaderGGUF".to_owned();
        if !is_gguf(name) {
            inputs.push(("weight_dtype", "default".into()));
            class = "UNETLoader".to_owned();
        }
        if let Some(said) = &place.said {
            inputs.extend([
                ("compute_device", device_of(place)),
                // The text says it all, so no number moves anything.
                ("virtual_vram_gb", 0.0.into()),
                ("donor_device", "cpu".into()),
                ("expert_mode_allocations", said.as_str().into()),
            ]);
            class += "DisTorch2MultiGPU";
        }
        self.add("Diffusion model", &class, inputs).output(0)
    }

    fn encoders(&mut self, files: &[String], kind: &str, place: &Place) -> Literal {
        let numbered = ["clip_name1", "clip_name2", "clip_name3", "clip_name4"];
        let names: &[&str] = if files.len() == 1 { &["clip_name"] } else { &numbered };
        let mut inputs: Vec<(&str, Literal)> =
            names.iter().copied().zip(files.iter().map(|file| file.as_str().into())).collect();
        // There is at least one file, and no family has more than four encoders.
        let (class, has_kind) = ENCODER_LOADERS[files.len().clamp(1, ENCODER_LOADERS.len()) - 1];
        if has_kind {
            inputs.push(("type", kind.into()));
        }
        let mut class = class.to_owned();
        if files.iter().any(|file| is_gguf(file)) {
            class += "GGUF";
        }
        if place.said.is_some() {
            inputs.push(("device", device_of(place)));
            class += "MultiGPU";
        }
        self.add("Text encoders", &class, inputs).output(0)
    }

    fn autoencoder(&mut self, name: &str, place: &Place) -> Literal {
        let mut inputs = vec![("vae_name", name.into())];
        let mut class = "VAELoader".to_owned();
        if place.said.is_some() {
            inputs.push(("device", device_of(place)));
            class += "MultiGPU";
        }
        self.add("Autoencoder", &class, inputs).output(0)
    }

    /// A file with all parts. The allocation is the diffusion model's; the others are where that computes.
    fn checkpoint(&mut self, name: &str, place: &Place) -> Node {
        let (title, name_input) = ("Checkpoint", ("ckpt_name", name.into()));
        let Some(said) = &place.said else {
            return self.add(title, "CheckpointLoaderSimple", [name_input]);
        };
        let inputs = [
            name_input,
            ("unet_compute_device", device_of(place)),
            ("unet_virtual_vram_gb", 0.0.into()),
            ("unet_donor_device", "cpu".into()),
            ("unet_expert_mode_allocations", said.as_str().into()),
            ("clip_compute_device", device_of(place)),
            ("clip_virtual_vram_gb", 0.0.into()),
            ("clip_donor_device", "cpu".into()),
            ("vae_device", device_of(place)),
        ];
        self.add(title, "CheckpointLoaderAdvancedDisTorch2MultiGPU", inputs)
    }
}

fn device_of(place: &Place) -> Literal {
    place.compute.to_string().into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use meta::DeviceId;
    use runtime::Folders;
    use runtime::Settings;

    use super::super::files::{ModelFiles, Offer};
    use super::*;
    use crate::machine::Machine;
    use crate::serving;

    /// A drawing by files that are only names.
    fn drawing(offers: &[(&'static str, &str)], whole: bool, said: Option<&str>) -> Drawing {
        let name = |at: usize| offers[at].1.to_owned();
        let offer = |(key, name): &(&'static str, &str)| Offer {
            key,
            name: (*name).to_owned(),
            path: PathBuf::from(*name),
        };
        let files = ModelFiles {
            model: name(0),
            family: models::diffusion::FAMILIES[0],
            encoders: (!whole).then(|| vec![name(1), name(2)]),
            autoencoder: (!whole).then(|| name(3)),
            loras: vec![(name(4), 0.5), (name(4), -1.0)],
            takes_guidance: true,
            offers: offers.iter().map(offer).collect(),
        };
        let place = Place { compute: DeviceId::sim(0), said: said.map(str::to_owned) };
        let size = PictureSize { width: 64, height: 32 };
        Drawing {
            prompt: "x".to_owned(),
            size,
            steps: 3,
            seed: u64::MAX,
            guidance: None,
            cfg: None,
            negative: String::new(),
            files,
            place,
        }
    }

    #[test]
    fn every_form_of_the_workflow_is_valid_and_leaves_nothing_to_chance() {
        let machine = Machine::for_tests();
        let (clip, t5, vae, lora) =
            (("text_encoders", "c.safetensors"), ("text_encoders", "t"), ("vae", "v"), ("loras", "l"));
        let plain = [("diffusion_models", "m.sft"), clip, t5, vae, lora];
        let packed = [("unet_gguf", "m.gguf"), clip, ("clip_gguf", "t.GGUF"), vae, lora];
        let whole = [("checkpoints", "all"), clip, t5, vae, lora];
        for (offers, is_whole) in [(&plain, false), (&packed, false), (&whole, true)] {
            for said in [None, Some(""), Some("sim:0,1mb;cpu,*"), Some("#sim:0;0.5;sim:1,cpu")] {
                let drawing = drawing(offers, is_whole, said);
                let compute = Some(drawing.place.compute);
                let folders = Folders::default();
                let mut runtime =
                    serving::open_runtime(&machine, folders, compute, Settings::default()).unwrap();
                for file in &drawing.files.offers {
                    runtime.offer(file.key, &file.name, &file.path);
                }
                let catalogue = nodes::catalogue(&Arc::new(runtime));
                let (mut prompt, sampler) = fill_in(&drawing);
                let accepted = graph::validate(&catalogue, &mut prompt, None);
                let accepted =
                    accepted.unwrap_or_else(|rejected| panic!("{offers:?} {said:?}: {rejected:?}"));
                assert_eq!((accepted.outputs.len(), accepted.node_errors.len()), (1, 0));
                assert_eq!(prompt.nodes[&sampler].class_type.as_deref(), Some("KSampler"));
                let text = serde_json::to_string(&prompt.to_literal()).unwrap();
                assert_eq!(text.contains("\"sim:0\""), said.is_some(), "{text}");
                assert_eq!(text.matches("LoraLoaderModelOnly").count(), 2, "{text}");
            }
        }
    }

    #[test]
    fn sizes_that_no_patches_fill_are_refused() {
        assert!(check_size(models::diffusion::FAMILIES[0], PictureSize { width: 48, height: 1024 }).is_ok());
        let family = models::diffusion::FAMILIES[0];
        let error = check_size(family, PictureSize { width: 100, height: 64 }).unwrap_err().to_string();
        assert_eq!(error, "100x64 is no size for FLUX.1: both sides must be multiples of 16");
    }
}
