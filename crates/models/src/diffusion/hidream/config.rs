//! The sizes of a HiDream model, read from the shapes of its tensors.

use checkpoint::Metadata;

use super::experts::EXPERTS;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::BlockGroup;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;
use crate::diffusion::told;

/// What errors call the family.
pub(super) const FAMILY: &str = "HiDream";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 10_000.0;
/// Values per head in every model of the family, and of those that turn with the index, the row and the column.
pub(super) const HEAD: usize = 128;
pub(super) const AXES: [usize; 3] = [64, 32, 32];
/// The last of the states of the language model that blocks read; later blocks read it, too.
const LAST_STATE: usize = 31;

/// The sizes of a HiDream model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Width of T5's tokens.
    pub context_width: usize,
    /// Width of the states of the language model.
    pub state_width: usize,
    /// Width of the pooled text.
    pub pooled_width: usize,
    /// Inner width of an expert.
    pub expert: usize,
    /// Inner width of the expert that all share.
    pub shared: usize,
    /// Blocks that keep image and text apart.
    pub double_blocks: usize,
    /// Blocks over both.
    pub single_blocks: usize,
    /// Which state of the language model each block reads.
    pub states: Vec<usize>,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let [hidden, columns] = claims.dims("x_embedder.proj.weight")?;
        let [_, pooled_width] = claims.dims("p_embedder.pooled_embedder.linear_1.weight")?;
        let [expert, _] = claims.dims("double_stream_blocks.0.block.ff_i.experts.0.w1.weight")?;
        let [shared, _] = claims.dims("double_stream_blocks.0.block.ff_i.shared_experts.w1.weight")?;
        let [experts, _] = claims.dims("double_stream_blocks.0.block.ff_i.gate.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if columns % (PATCH * PATCH) != 0 || hidden % HEAD != 0 {
            let expected = format!("[a multiple of {HEAD}, a multiple of {}]", PATCH * PATCH);
            wrong("x_embedder.proj.weight", expected)?;
        }
        if experts != EXPERTS {
            let expected = format!("[{EXPERTS}, {hidden}]");
            wrong("double_stream_blocks.0.block.ff_i.gate.weight", expected)?;
        }
        let double_blocks = claims.count(|i| format!("double_stream_blocks.{i}.block.attn1.to_q.weight"));
        let single_blocks = claims.count(|i| format!("single_stream_blocks.{i}.block.attn1.to_q.weight"));
        let blocks = double_blocks + single_blocks;
        let [_, state_width] = claims.dims("caption_projection.0.linear.weight")?;
        let [_, context_width] = claims.dims(&format!("caption_projection.{blocks}.linear.weight"))?;
        let told = told::numbers(metadata, "llama_layers");
        let states = if told.len() == blocks {
            told.into_iter().map(|state| state as usize).collect()
        } else {
            (0..blocks).map(|block| block.min(LAST_STATE)).collect()
        };
        Ok(Config {
            channels: columns / (PATCH * PATCH),
            hidden,
            context_width,
            state_width,
            pooled_width,
            expert,
            shared,
            double_blocks,
            single_blocks,
            states,
        })
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.hidden / HEAD, HEAD)
    }

    /// Blocks of both kinds.
    pub(super) fn blocks(&self) -> usize {
        self.double_blocks + self.single_blocks
    }

    /// The kind of a block of the manifest, and its number among its kind.
    pub(super) fn kind_of(&self, block: usize) -> (BlockGroup, usize) {
        match (block - 1).checked_sub(self.double_blocks) {
            None => (BlockGroup::Double, block - 1),
            Some(index) => (BlockGroup::Single, index),
        }
    }

    /// What the names of a block's weights begin with.
    pub(super) fn block_name(&self, block: usize) -> String {
        match self.kind_of(block) {
            (BlockGroup::Double, index) => format!("double_stream_blocks.{index}.block"),
            (BlockGroup::Single, index) => format!("single_stream_blocks.{index}.block"),
        }
    }
}
