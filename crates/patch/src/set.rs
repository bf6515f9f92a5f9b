//! Patch sets: what happens to each of a model's weights, in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use checkpoint::EntryBytes;
use meta::Shape;

use crate::factor::flat;
use crate::file::Change;
use crate::keys::{KeyMap, Rows, Target};
use crate::signature::Signature;
use crate::{Adapter, Delta, Error, OtherWeight, PatchFile, Result};

/// A change to one weight at one strength.
#[derive(Clone, Debug)]
pub struct Patch {
    key: Arc<str>,
    file_signature: u64,
    adapter: Arc<Adapter>,
    shape: Shape,
    rows: Option<Rows>,
    halves_swapped: bool,
    strength: f64,
    /// How much of the weight stays before the change is added.
    keeps: f64,
}

/// A change of one weight toward another model's: so much of it stays, and so much of the other is added.
#[derive(Clone, Debug)]
pub struct Blend {
    /// The share of the weight that stays.
    pub keeps: f64,
    /// The other weight, and how much of it is added.
    pub other: Option<(OtherWeight, f64)>,
    /// Stands for the file that the other is from.
    pub file_signature: u64,
}

impl Patch {
    /// The layer's name in the file.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What the file says.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The shape of the whole weight.
    pub fn weight_shape(&self) -> &Shape {
        &self.shape
    }

    /// The rows that change; all of them if there is no such.
    pub fn rows(&self) -> Option<Rows> {
        self.rows
    }

    /// Whether the file has the two halves of the rows in the other order.
    pub fn halves_swapped(&self) -> bool {
        self.halves_swapped
    }

    /// How much of the weight stays before the change is added; 1 for all that patch files say.
    pub fn keeps(&self) -> f64 {
        self.keeps
    }

    /// Whether the result depends on the weight's own values, so that it cannot be added to a layer's output without
    /// them.
    pub fn needs_weight(&self) -> bool {
        self.keeps != 1.0 || self.adapter.needs_weight()
    }

    /// How much of it is applied. Never 0.
    pub fn strength(&self) -> f64 {
        self.strength
    }

    /// The shape of what changes: the weight's, or that of its rows.
    pub fn target_shape(&self) -> Shape {
        target_shape(&self.shape, self.rows)
    }

    /// What multiplies the change: strength times alpha over rank.
    pub fn scale(&self) -> f64 {
        self.strength * self.adapter.delta.factor(&self.target_shape())
    }

    /// Stored bytes of the patch's tensors.
    pub fn bytes(&self) -> u64 {
        self.adapter.bytes()
    }

    /// Additions and multiplications to apply it to the weight, roughly.
    pub fn merge_flops(&self) -> u64 {
        self.adapter.merge_flops(&self.target_shape())
    }

    /// Additions and multiplications to run it beside the layer on this many rows of input, roughly.
    pub fn beside_flops(&self, inputs: usize) -> u64 {
        let (rows, columns) = flat(&self.target_shape());
        let per_input = match &self.adapter.delta {
            Delta::Lora { down, mid: None, .. } if !self.needs_weight() => {
                down.flat().0 as u64 * (rows as u64 + columns as u64)
            }
            _ => rows as u64 * columns as u64,
        };
        2 * per_input * inputs as u64
    }

    /// Values in f32 that there are at a time, at most, while it is computed beside a weight.
    pub(crate) fn values_at_once(&self) -> usize {
        // How many arrays of the changed rows' size, and whether the factors are smaller than those.
        let (arrays, factored) = match &self.adapter.delta {
            Delta::Lora { .. } | Delta::Lokr { .. } => (1, true),
            Delta::Loha { .. } => (3, true),
            Delta::Glora { .. } => (5, true),
            Delta::Oft(_) => (2, true),
            Delta::Difference(_) => (2, false),
            Delta::Replacement(_) | Delta::Nothing => (1, false),
            Delta::Weight(other) => (3 + 2 * usize::from(!other.patches.is_empty()), false),
        };
        let nested = match &self.adapter.delta {
            Delta::Weight(other) => other.patches.iter().map(Patch::values_at_once).max().unwrap_or(0),
            _ => 0,
        };
        let decomposed = if self.adapter.dora.is_some() { 5 } else { 0 };
        let swapped = 2 * usize::from(self.halves_swapped);
        let factors: usize = self.adapter.factors().iter().map(|factor| factor.shape().count()).sum();
        let factors = if factored { 2 * factors } else { 0 };
        (arrays + decomposed + swapped) * self.target_shape().count() + factors + nested
    }

    /// Whether another patch is the same change of the same weight, at whatever strength.
    pub fn is_same_change(&self, other: &Patch) -> bool {
        let names = |patch: &Patch| -> Vec<String> {
            patch.adapter.factors().iter().map(|factor| factor.name().to_owned()).collect()
        };
        let same_tensors = Arc::ptr_eq(&self.adapter, &other.adapter) || names(self) == names(other);
        self.file_signature == other.file_signature
            && self.key == other.key
            && (self.shape, self.rows, self.halves_swapped) == (other.shape, other.rows, other.halves_swapped)
            && same_tensors
            && self.keeps.to_bits() == other.keeps.to_bits()
            && self.nested_signature() == other.nested_signature()
    }

    fn sign(&self, signature: &mut Signature) {
        signature.number(self.file_signature).bytes(self.key.as_bytes()).number(self.strength.to_bits());
        let Rows { start, len } = self.rows.unwrap_or(Rows { start: 0, len: usize::MAX });
        signature.number(start as u64).number(len as u64);
        if self.keeps != 1.0 {
            signature.number(self.keeps.to_bits());
        }
        signature.number(self.nested_signature());
    }

    /// Stands for the patches of another model's weight; 0 if there are none.
    fn nested_signature(&self) -> u64 {
        match &self.adapter.delta {
            Delta::Weight(other) => signature_of_all(&other.patches),
            _ => 0,
        }
    }
}

/// What happens to a model's weights: patches by weight name, each list in the order of application.
#[derive(Clone, Debug, Default)]
pub struct PatchSet {
    weights: BTreeMap<String, Vec<Patch>>,
    unmatched: Vec<String>,
}

impl PatchSet {
    /// No patches.
    pub fn new() -> PatchSet {
        PatchSet::default()
    }

    /// Adds a file's changes to the weights of `keys`, after those that are there. Tensors that mean none of these
    /// weights are added to [`PatchSet::unmatched`]; one that does not fit its weight is an error, and then nothing
    /// is added. A strength of 0 changes nothing.
    pub fn add(&mut self, file: &PatchFile, keys: &KeyMap, strength: f64) -> Result<()> {
        if !strength.is_finite() {
            return Err(Error::Strength { strength });
        }
        let mut patches = Vec::new();
        let mut unmatched = file.unrecognised().to_vec();
        for change in file.changes() {
            let Some(target) = keys.find(&change.key) else {
                unmatched.extend_from_slice(&change.names);
                continue;
            };
            let place = Place { file, change, keys, strength };
            for adapter in &change.weight {
                patches.push(place.patch(adapter, target)?);
            }
            match (&change.bias, keys.bias_of(target)) {
                (Some(adapter), Some(target)) => patches.push(place.patch(adapter, &target)?),
                (Some(adapter), None) => {
                    unmatched.extend(adapter.factors().iter().map(|factor| factor.name().to_owned()));
                }
                (None, _) => {}
            }
        }
        self.unmatched.extend(unmatched);
        for (weight, patch) in patches.into_iter().filter(|_| strength != 0.0) {
            self.weights.entry(weight).or_default().push(patch);
        }
        Ok(())
    }

    /// Blends one weight with another model's, after what is there. Nothing is added where all of it stays and nothing
    /// comes.
    pub fn blend(&mut self, weight: &str, shape: Shape, blend: Blend) -> Result<()> {
        let Blend { keeps, other, file_signature } = blend;
        let strength = other.as_ref().map_or(1.0, |(_, strength)| *strength);
        if !strength.is_finite() || !keeps.is_finite() {
            return Err(Error::Strength { strength: if keeps.is_finite() { strength } else { keeps } });
        }
        let other = other.filter(|(_, strength)| *strength != 0.0);
        if other.is_none() && keeps == 1.0 {
            return Ok(());
        }
        let (delta, strength) = match other {
            Some((other, strength)) => (Delta::Weight(Box::new(other)), strength),
            None => (Delta::Nothing, 1.0),
        };
        let adapter = Adapter { delta, dora: None };
        adapter.check(&shape).map_err(|(expected, got)| Error::Shape {
            file: "the other model".to_owned(),
            key: weight.to_owned(),
            weight: weight.to_owned(),
            expected: expected.into(),
            got: got.into(),
        })?;
        let patch = Patch {
            key: weight.into(),
            file_signature,
            adapter: Arc::new(adapter),
            shape,
            rows: None,
            halves_swapped: false,
            strength,
            keeps,
        };
        self.weights.entry(weight.to_owned()).or_default().push(patch);
        Ok(())
    }

    /// The patches of a weight, in the order of application.
    pub fn patches(&self, weight: &str) -> &[Patch] {
        self.weights.get(weight).map_or(&[], Vec::as_slice)
    }

    /// Every weight that changes, by name, with its patches.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Patch])> {
        self.weights.iter().map(|(name, patches)| (name.as_str(), patches.as_slice()))
    }

    /// Number of weights that change.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether no weight changes.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Tensors of the files that mean none of the model's weights.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Stored bytes of all patches.
    pub fn bytes(&self) -> u64 {
        self.weights.values().flatten().map(Patch::bytes).sum()
    }

    /// Some bytes of each file that patches come from.
    pub fn files(&self) -> Vec<EntryBytes> {
        let adapters = self.weights.values().flatten().map(|patch| &patch.adapter);
        let factors: Vec<_> = adapters.flat_map(|adapter| adapter.factors()).collect();
        EntryBytes::one_of_each_file(factors.iter().map(|factor| factor.bytes()))
    }

    /// Stands for the whole set, the same in every run: two sets with the same signature change a model in the same
    /// way. The empty set's is 0.
    pub fn signature(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut all = Signature::new();
        for weight in self.weights.keys() {
            all.bytes(weight.as_bytes()).number(self.weight_signature(weight));
        }
        all.finish()
    }

    /// Stands for what happens to one weight; 0 if nothing does. A copy of the weight that carries this number is
    /// current.
    pub fn weight_signature(&self, weight: &str) -> u64 {
        signature_of_all(self.patches(weight))
    }

    /// The weights that must be staged again when this set takes the place of `other`, by name.
    pub fn changed_since<'a>(&'a self, other: &'a PatchSet) -> impl Iterator<Item = &'a str> {
        let only_before = other.weights.keys().filter(|weight| !self.weights.contains_key(*weight));
        let now = self.weights.keys().filter(|w| self.weight_signature(w) != other.weight_signature(w));
        now.chain(only_before).map(String::as_str)
    }
}

/// Stands for patches in their order; 0 if there are none.
fn signature_of_all(patches: &[Patch]) -> u64 {
    if patches.is_empty() {
        return 0;
    }
    let mut all = Signature::new();
    patches.iter().for_each(|patch| patch.sign(&mut all));
    all.finish()
}

/// Tensors that none of the sets has a weight for: of a file that was added to a diffusion model and to its text
/// encoders, what is left over.
pub fn unclaimed<'a>(sets: &[&'a PatchSet]) -> Vec<&'a str> {
    let Some((first, others)) = sets.split_first() else { return Vec::new() };
    let others: Vec<HashSet<&String>> = others.iter().map(|set| set.unmatched.iter().collect()).collect();
    let left = first.unmatched.iter().filter(|name| others.iter().all(|names| names.contains(name)));
    left.map(String::as_str).collect()
}

/// Where a change of a file goes.
struct Place<'a> {
    file: &'a PatchFile,
    change: &'a Change,
    keys: &'a KeyMap,
    strength: f64,
}

impl Place<'_> {
    fn patch(&self, adapter: &Arc<Adapter>, target: &Target) -> Result<(String, Patch)> {
        let shape =
            *self.keys.shape(&target.weight).expect("every target of a key map is one of its weights");
        adapter.check(&target_shape(&shape, target.rows)).map_err(|(expected, got)| Error::Shape {
            file: self.file.name().to_owned(),
            key: self.change.key.to_string(),
            weight: target.weight.clone(),
            expected: expected.into(),
            got: got.into(),
        })?;
        let patch = Patch {
            key: Arc::clone(&self.change.key),
            file_signature: self.file.signature(),
            adapter: Arc::clone(adapter),
            shape,
            rows: target.rows,
            halves_swapped: target.halves_swapped,
            strength: self.strength,
            keeps: 1.0,
        };
        Ok((target.weight.clone(), patch))
    }
}

fn target_shape(shape: &Shape, rows: Option<Rows>) -> Shape {
    rows.map_or(*shape, |rows| shape.with(0, rows.len))
}
