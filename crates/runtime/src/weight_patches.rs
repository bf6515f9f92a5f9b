//! Changes of a model's weights that nodes ask for: LoRA files, other models' weights, numbers. A handle holds them in the
//! order of their nodes; they become a patch set when the model is opened, and nothing is read from other files before.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use patch::{Blend, Factor, KeyMap, OtherWeight, PatchFile, PatchSet, signature_of};
use residency::WeightSpec;

use crate::{Error, Network, Result, Source};

/// One change of a model's weights.
#[derive(Clone, Debug)]
pub enum WeightPatch {
    /// A LoRA file.
    Lora(Lora),
    /// Toward the weights of another model.
    Merge(Arc<Merging>),
    /// Some weights times numbers.
    Scale(Arc<Vec<ScaleRule>>),
}

/// A LoRA file at a strength.
#[derive(Clone, Debug)]
pub struct Lora {
    /// The file.
    pub file: Arc<PatchFile>,
    /// How much of it.
    pub strength: f64,
}

/// The weights of other networks that come into those of the same names.
#[derive(Debug)]
pub struct Merging {
    /// Where they come from: a diffusion model, or the text encoders of a set.
    others: Vec<Other>,
    /// What is patched into them.
    patches: Vec<WeightPatch>,
    shares: Shares,
}

#[derive(Debug)]
struct Other {
    source: Arc<Source>,
    signature: u64,
}

/// How much of a weight stays, and how much of the other is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// What stays.
    pub keeps: f64,
    /// What is added.
    pub adds: f64,
}

/// The shares of weights, by their names.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Where no other says something.
    pub usual: Share,
    /// For names that start so; the longest start counts.
    pub by_start: Vec<(String, Share)>,
}

/// A number for some layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// How the layer's name ends.
    pub layer: &'static str,
    /// A part that the name must have, or must not have.
    pub part: Option<(&'static str, bool)>,
    /// What weight and bias are multiplied by.
    pub by: f64,
}

impl Share {
    /// Between two models: `ratio` of the first, the rest of the second.
    #[must_use]
    pub fn between(ratio: f64) -> Share {
        Share { keeps: ratio, adds: 1.0 - ratio }
    }
}

impl Shares {
    /// The same for all weights.
    #[must_use]
    pub fn of_all(share: Share) -> Shares {
        Shares { usual: share, by_start: Vec::new() }
    }

    /// The share of a weight.
    #[must_use]
    pub fn of(&self, name: &str) -> Share {
        let starts = self.by_start.iter().filter(|(start, _)| name.starts_with(start.as_str()));
        // Of starts of one length the first counts.
        let longest = starts.fold(None::<&(String, Share)>, |best, next| match best {
            Some(known) if known.0.len() >= next.0.len() => best,
            _ => Some(next),
        });
        longest.map_or(self.usual, |(_, share)| *share)
    }
}

impl ScaleRule {
    fn is_for(&self, name: &str) -> bool {
        let layer = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias"));
        layer.is_some_and(|layer| layer.ends_with(self.layer))
            && self.part.is_none_or(|(part, has)| name.contains(part) == has)
    }
}

impl WeightPatch {
    /// The weights of other networks, patched as they are, in these shares.
    #[must_use]
    pub fn merge(others: &[Arc<Source>], patches: &[WeightPatch], shares: Shares) -> WeightPatch {
        let other = |source: &Arc<Source>| Other {
            signature: signature_of(&source.file),
            source: Arc::clone(source),
        };
        let others = others.iter().map(other).collect();
        WeightPatch::Merge(Arc::new(Merging { others, patches: patches.to_vec(), shares }))
    }

    /// Whether its files are as they were when they were opened.
    #[must_use]
    pub fn is_current(&self) -> bool {
        match self {
            WeightPatch::Lora(lora) => lora.file.is_unchanged(),
            WeightPatch::Merge(merging) => {
                merging.others.iter().all(|other| other.source.is_current())
                    && merging.patches.iter().all(WeightPatch::is_current)
            }
            WeightPatch::Scale(_) => true,
        }
    }

    /// Stands for the change while the program runs.
    pub(crate) fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.sign(&mut hasher);
        hasher.finish()
    }

    fn sign(&self, hasher: &mut DefaultHasher) {
        let share = |Share { keeps, adds }: &Share| (keeps.to_bits(), adds.to_bits());
        match self {
            WeightPatch::Lora(lora) => (0, lora.file.signature(), lora.strength.to_bits()).hash(hasher),
            WeightPatch::Merge(merging) => {
                1.hash(hasher);
                merging.others.iter().for_each(|other| other.signature.hash(hasher));
                merging.patches.iter().for_each(|patch| patch.sign(hasher));
                share(&merging.shares.usual).hash(hasher);
                for (start, of) in &merging.shares.by_start {
                    (start, share(of)).hash(hasher);
                }
            }
            WeightPatch::Scale(rules) => {
                2.hash(hasher);
                rules.iter().for_each(|rule| (rule.layer, rule.part, rule.by.to_bits()).hash(hasher));
            }
        }
    }
}

/// What stands for all that is patched into a network: what it brings itself, then what was added to it. One that was only
/// registered has nothing in it yet.
pub(crate) fn signatures(source: &Source, patches: &[WeightPatch]) -> Vec<u64> {
    let own = match &*source.network {
        Network::Control(control) => control.patches().map(PatchFile::signature),
        _ => None,
    };
    own.into_iter().chain(patches.iter().map(WeightPatch::signature)).collect()
}

/// What patches do to a network that stands alone or among others.
pub fn patch_set(source: &Source, beside: &[Arc<Source>], patches: &[WeightPatch]) -> Result<PatchSet> {
    let mut set = PatchSet::new();
    if let Network::Control(control) = &*source.network
        && let Some(own) = control.patches()
    {
        set.add(own, &key_map(source, beside)?, 1.0)?;
    }
    for patch in patches {
        match patch {
            WeightPatch::Lora(lora) => set.add(&lora.file, &key_map(source, beside)?, lora.strength)?,
            WeightPatch::Merge(merging) => merging.add_to(&mut set, source)?,
            WeightPatch::Scale(rules) => scale(&mut set, source, rules)?,
        }
    }
    Ok(set)
}

/// What patch files call the layers of a network.
fn key_map(source: &Source, beside: &[Arc<Source>]) -> Result<KeyMap> {
    let weights = source.weights()?.iter().map(|(name, shape)| (name.as_str(), shape));
    Ok(match &*source.network {
        Network::Diffusion(model, _) => model.patch_keys(source.weights()?),
        Network::Text(text) => {
            let all: Vec<&str> = beside.iter().filter_map(|source| source.encoder_key()).collect();
            KeyMap::for_text_encoder(weights, text.encoder.key(), &all)
        }
        Network::Control(control) => control.patch_keys(source.weights()?),
        Network::Autoencoder(_)
        | Network::Vision(_)
        | Network::Audio(_)
        | Network::ModelPatch(_)
        | Network::Upscale(_)
        | Network::LatentUpscale(_) => KeyMap::native(weights),
    })
}

impl Merging {
    /// Adds what comes into the weights of a network. A weight that the other does not have, or has in another shape, stays.
    fn add_to(&self, set: &mut PatchSet, source: &Source) -> Result<()> {
        let Some(other) = self.others.iter().find(|other| other.fits(source)) else { return Ok(()) };
        let beside: Vec<Arc<Source>> = self.others.iter().map(|other| Arc::clone(&other.source)).collect();
        let nested = patch_set(&other.source, &beside, &self.patches)?;
        let manifest = other.source.manifest()?;
        let (mut merged, mut left) = (0, Vec::new());
        for (name, shape) in source.weights()? {
            let spec = manifest.index_of(name).map(|index| &manifest.weights()[index]);
            let Some(spec) = spec.filter(|spec| spec.shape == *shape) else {
                left.push(name.as_str());
                continue;
            };
            if let Some(scheme) = spec.encoding.scheme() {
                return Err(Error::Told(format!(
                    "{}: {name} is stored as {scheme}, which cannot be merged into another model: merge with a file in \
                     bf16, fp8 or GGUF",
                    other.source.name(),
                )));
            }
            let Share { keeps, adds } = self.shares.of(name);
            let weight = OtherWeight {
                values: Factor::of_weight(name, spec.bytes.clone(), spec.encoding, spec.shape),
                scale: scale_of(spec),
                patches: nested.patches(name).to_vec(),
            };
            let blend = Blend { keeps, other: Some((weight, adds)), file_signature: other.signature };
            set.blend(name, *shape, blend)?;
            merged += 1;
        }
        if merged == 0 {
            return Err(Error::Told(format!(
                "no weight of {} has the name and shape of one of {}: merge models of one family and size",
                source.name(),
                other.source.name(),
            )));
        }
        if let Some(first) = left.first() {
            let (name, count) = (other.source.name(), left.len());
            tracing::warn!(
                "{name} has nothing for {count} weights, which stay as they are, {first} among them"
            );
        }
        Ok(())
    }
}

impl Other {
    /// Whether it is of the kind that merges with a network: a text encoder with the encoder of the same name.
    fn fits(&self, source: &Source) -> bool {
        self.source.encoder_key() == source.encoder_key()
    }
}

/// What multiplies a stored weight.
fn scale_of(spec: &WeightSpec) -> Option<f32> {
    let bytes: [u8; 4] = (*spec.companions.scale.as_ref()?.bytes).try_into().ok()?;
    Some(f32::from_le_bytes(bytes))
}

/// Adds numbers for the layers that rules name; of several rules for a layer the first counts.
fn scale(set: &mut PatchSet, source: &Source, rules: &[ScaleRule]) -> Result<()> {
    for (name, shape) in source.weights()? {
        if let Some(rule) = rules.iter().find(|rule| rule.is_for(name)) {
            set.blend(name, *shape, Blend { keeps: rule.by, other: None, file_signature: 0 })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_start_of_a_name_counts() {
        let share = Share::between;
        let by_start = [("out", 0.25), ("output_blocks.1.", 0.5), ("input", 0.75)];
        let by_start = by_start.map(|(start, ratio)| (start.to_owned(), share(ratio))).to_vec();
        let shares = Shares { usual: share(1.0), by_start };
        let of = |name: &str| shares.of(name).keeps;
        assert_eq!(
            ["input_blocks.0", "out.0", "output_blocks.1.0", "output_blocks.10.0", "time_embed.0"].map(of),
            [0.75, 0.25, 0.5, 0.25, 1.0]
        );
        assert_eq!(share(0.25), Share { keeps: 0.25, adds: 0.75 });
    }

    #[test]
    fn rules_name_layers_by_their_ends() {
        let rule = ScaleRule { layer: "attn1.to_q", part: Some((".time_stack.", false)), by: 2.0 };
        let names = [
            "a.attn1.to_q.weight",
            "a.attn1.to_q.bias",
            "a.attn1.to_k.weight",
            "a.time_stack.attn1.to_q.weight",
        ];
        assert_eq!(names.map(|name| rule.is_for(name)), [true, true, false, false]);
    }
}
