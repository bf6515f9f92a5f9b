//! Manifests: what a model needs, in order of use.

use std::collections::HashMap;
use std::ops::Range;

use checkpoint::{EntryBytes, ProductMark};
use meta::{DType, Encoding, Shape};

use crate::companion::Companions;
use crate::{Error, Result};

/// One weight of a model.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Its name in the model.
    pub name: String,
    /// How it is stored.
    pub encoding: Encoding,
    /// How devices keep it: as it is stored, or cast on its way there ([`Manifest::kept_as`]).
    pub kept_as: Encoding,
    /// Its shape.
    pub shape: Shape,
    /// The shape that it is stored in, where that is filled up to whole blocks.
    pub padded: Option<Shape>,
    /// Its bytes in the mapped file.
    pub bytes: EntryBytes,
    /// What stands beside it in the file.
    pub companions: Companions,
    /// Whether patches are rounded into its 16 bits, even where computing is finer ([`Manifest::rounding_patches`]).
    pub rounds_patches: bool,
    /// Whether its products may be of 8 bits ([`Manifest::with_products`]).
    pub fp8_product: bool,
}

/// Which products round activations to 8 bits, on devices that have such products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Products {
    /// Those of weights whose file asks for it.
    #[default]
    ByFile,
    /// Those of all weights of 8 bits but the ones whose file forbids it.
    EightBits,
    /// None.
    Exact,
}

impl Products {
    /// Whether the products of a weight may be of 8 bits.
    fn allow(self, weight: &WeightSpec) -> bool {
        let is_matrix = weight.kept_as == DType::F8E4M3.into() && weight.shape.rank() == 2;
        is_matrix
            && match self {
                Products::ByFile => weight.companions.product == ProductMark::EightBits,
                Products::EightBits => weight.companions.product != ProductMark::FullPrecision,
                Products::Exact => false,
            }
    }
}

impl WeightSpec {
    /// Whether it is cast on its way from the file.
    pub fn is_cast(&self) -> bool {
        self.kept_as != self.encoding
    }

    /// The shape that it is stored in.
    pub fn stored_shape(&self) -> &Shape {
        self.padded.as_ref().unwrap_or(&self.shape)
    }

    /// Bytes that a copy of it has on a device, without what stands beside it.
    pub fn kept_bytes(&self) -> usize {
        if self.is_cast() {
            // A cast changes the size of elements, never their number.
            self.shape.count() * self.kept_as.block_bytes()
        } else {
            self.bytes.len()
        }
    }
}

/// The unit of placement: one transformer or residual block.
#[derive(Clone, Debug)]
pub struct BlockSpec {
    /// Its name, such as `double_blocks.3`.
    pub name: String,
    /// Its weights, by index in the manifest.
    pub weights: Range<usize>,
    /// Stays on the compute device whatever the plan: norms, embeddings and heads.
    pub fixed: bool,
}

/// What a model needs, in order of use.
#[derive(Clone, Debug)]
pub struct Manifest {
    name: String,
    family: String,
    weights: Vec<WeightSpec>,
    blocks: Vec<BlockSpec>,
    /// What stays in the files.
    pub(crate) tables: Vec<WeightSpec>,
    by_name: HashMap<String, usize>,
    /// Layers by their names, so that a forward pass makes no names of weights out of them.
    layers: HashMap<String, Layer>,
}

/// A layer: the weights `name.weight` and `name.bias`, by index in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

impl Manifest {
    /// Starts a manifest.
    pub fn builder(name: impl Into<String>, family: impl Into<String>) -> ManifestBuilder {
        ManifestBuilder {
            manifest: Manifest {
                name: name.into(),
                family: family.into(),
                weights: Vec::new(),
                blocks: Vec::new(),
                tables: Vec::new(),
                by_name: HashMap::new(),
                layers: HashMap::new(),
            },
        }
    }

    /// The model's name, such as its file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's family.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// The blocks in order of use.
    pub fn blocks(&self) -> &[BlockSpec] {
        &self.blocks
    }

    /// The weights of a block.
    pub fn weights_of(&self, block: usize) -> &[WeightSpec] {
        self.blocks.get(block).map_or(&[], |block| &self.weights[block.weights.clone()])
    }

    /// All weights in order of use.
    pub fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }

    /// The index of a weight.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The weights of the layer of this name; none if there is no weight `name.weight`.
    pub(crate) fn layer(&self, name: &str) -> Option<Layer> {
        self.layers.get(name).copied()
    }

    /// The block that a weight is in.
    pub fn block_of(&self, weight: usize) -> Option<usize> {
        self.blocks.iter().position(|block| block.weights.contains(&weight))
    }

    /// Bytes of a block as it is kept.
    pub fn block_bytes(&self, block: usize) -> u64 {
        let bytes = |weight: &WeightSpec| {
            let beside = weight.pieces().skip(1).map(|bytes| bytes.len()).sum::<usize>();
            (weight.kept_bytes() + beside) as u64
        };
        self.weights_of(block).iter().map(bytes).sum()
    }

    /// Whether weights of a block are cast on their way from the file.
    pub fn is_cast(&self, block: usize) -> bool {
        self.weights_of(block).iter().any(WeightSpec::is_cast)
    }

    /// The same model with its weights of 16 and 32 bits cast to another type when they are staged: rounded to nearest
    /// even, as PyTorch converts. A model whose weights have scales beside them is narrow already and stays as it is, and
    /// so do weights of 8 bits.
    pub fn kept_as(mut self, dtype: DType) -> Result<Manifest> {
        if self.weights.iter().any(|weight| weight.companions.scale.is_some()) {
            return Ok(self);
        }
        for weight in &mut self.weights {
            match weight.encoding {
                Encoding::Plain(DType::F32 | DType::F16 | DType::BF16) => weight.kept_as = dtype.into(),
                Encoding::Plain(DType::F8E4M3 | DType::F8E5M2) => {}
                encoding => {
                    let (name, weight) = (self.name.clone(), weight.name.clone());
                    return Err(Error::CannotCast { name, weight, encoding, to: dtype });
                }
            }
        }
        Ok(self)
    }

    /// The same model, into whose weights of 16 bits patches are merged and rounded whatever it is computed in. The
    /// reference does so with text encoders, which it keeps as their files have them.
    #[must_use]
    pub fn rounding_patches(mut self) -> Manifest {
        self.weights.iter_mut().for_each(|weight| weight.rounds_patches = true);
        self
    }

    /// The same model with products of 8 bits where they are asked for. A device that has none of them does exact ones.
    #[must_use]
    pub fn with_products(mut self, products: Products) -> Manifest {
        self.weights.iter_mut().for_each(|weight| weight.fp8_product = products.allow(weight));
        self
    }

    /// How many weights have products of 8 bits, and their bytes.
    pub fn fp8_products(&self) -> (usize, u64) {
        let weights = self.weights.iter().filter(|weight| weight.fp8_product);
        weights.fold((0, 0), |(count, bytes), weight| (count + 1, bytes + weight.kept_bytes() as u64))
    }

    /// Bytes of the model as it is kept.
    pub fn bytes(&self) -> u64 {
        (0..self.blocks.len()).map(|block| self.block_bytes(block)).sum()
    }

    /// An error if a file is not as it was when it was opened.
    pub(crate) fn verify(&self) -> Result<()> {
        Manifest::files_of(self.weights.iter().chain(&self.tables))
            .iter()
            .try_for_each(|bytes| self.verify_file(bytes))
    }

    /// Whether nobody found a file changed or damaged so far.
    pub(crate) fn is_intact(&self) -> bool {
        Manifest::files_of(self.weights.iter().chain(&self.tables))
            .iter()
            .all(|bytes| bytes.check_intact().is_ok())
    }

    /// An error if the file of these bytes is not as it was when it was opened.
    pub(crate) fn verify_file(&self, bytes: &EntryBytes) -> Result<()> {
        bytes.verify().map_err(|source| Error::File { name: self.name.clone(), source })
    }

    /// One weight's bytes of each file that has some of these weights.
    pub(crate) fn files_of<'a>(weights: impl IntoIterator<Item = &'a WeightSpec>) -> Vec<EntryBytes> {
        EntryBytes::one_of_each_file(weights.into_iter().map(|weight| &weight.bytes))
    }
}

/// Builds a manifest block by block.
#[derive(Debug)]
pub struct ManifestBuilder {
    manifest: Manifest,
}

impl ManifestBuilder {
    /// Adds the next block in order of use.
    pub fn block(
        mut self,
        name: impl Into<String>,
        fixed: bool,
        weights: Vec<WeightSpec>,
    ) -> ManifestBuilder {
        let start = self.manifest.weights.len();
        self.manifest.weights.extend(weights);
        let weights = start..self.manifest.weights.len();
        self.manifest.blocks.push(BlockSpec { name: name.into(), weights, fixed });
        self
    }

    /// Adds a table that stays in its file, and of which only rows travel ([`Session::rows`](crate::Session::rows)).
    pub fn table(mut self, table: WeightSpec) -> ManifestBuilder {
        self.manifest.tables.push(table);
        self
    }

    /// The manifest, if every weight has its own name and as many bytes as its shape needs.
    pub fn finish(self) -> Result<Manifest> {
        let mut manifest = self.manifest;
        let fault = |reason: String| Error::Manifest { name: manifest.name.clone(), reason };
        let mut by_name = HashMap::new();
        for (index, weight) in manifest.weights.iter().chain(&manifest.tables).enumerate() {
            let have = weight.bytes.as_ref().len() as u64;
            let want = weight.encoding.bytes(weight.stored_shape()).map_err(device::Error::from)?;
            if have != want {
                return Err(fault(format!("{} has {have} bytes, its shape needs {want}", weight.name)));
            }
            let scale = weight.companions.scale.as_ref().map(|scale| scale.bytes.len());
            if weight.encoding.scheme().is_none() && scale.is_some_and(|bytes| bytes != 4) {
                return Err(fault(format!("the scale of {} is not one f32", weight.name)));
            }
            if by_name.insert(weight.name.clone(), index).is_some() {
                return Err(fault(format!("{} occurs twice", weight.name)));
            }
        }
        // Tables are in no block, so that nothing leases or patches them.
        by_name.retain(|_, index| *index < manifest.weights.len());
        manifest.layers = layers(&by_name);
        manifest.by_name = by_name;
        Ok(manifest)
    }
}

/// The layers that weights of these names make.
fn layers(by_name: &HashMap<String, usize>) -> HashMap<String, Layer> {
    let layer = |(name, &weight): (&String, &usize)| {
        let name = name.strip_suffix(".weight")?;
        let bias = by_name.get(&format!("{name}.bias")).copied();
        Some((name.to_owned(), Layer { weight, bias }))
    };
    by_name.iter().filter_map(layer).collect()
}
