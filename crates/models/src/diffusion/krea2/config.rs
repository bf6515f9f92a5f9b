//! The sizes of a Krea 2 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Krea 2";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 1000.0;
/// The first block, and the first of those that the states of the text encoder pass.
const FIRST: &str = "blocks.0";
const FIRST_TEXT: &str = "txtfusion.layerwise_blocks.0";

/// The sizes of a Krea 2 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
    /// Values per head.
    pub head_size: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Blocks.
    pub blocks: usize,
    /// The text's side.
    pub text: TextConfig,
    /// Values of a head that turn with the index of the image, the row and the column.
    pub axes: [usize; 3],
}

/// The sizes of the text's side.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Values of a token in one state of the text encoder.
    pub width: usize,
    /// States of the text encoder per token.
    pub taps: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
    /// Values per head.
    pub head_size: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Blocks over the states of each token, and blocks over the tokens.
    pub blocks: [usize; 2],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, columns] = claims.dims("first.weight")?;
        let [_, taps] = claims.dims("txtfusion.projector.weight")?;
        let [width] = claims.dims(&format!("{FIRST_TEXT}.prenorm.scale"))?;
        let (sizes, mlp) = heads(claims, FIRST)?;
        let (text, text_mlp) = heads(claims, FIRST_TEXT)?;
        let misfit = |name: &str, expected: String| Err(claims.misfit(name, expected));
        if sizes.size % 16 != 0 {
            return misfit(&format!("{FIRST}.attn.qknorm.qnorm.scale"), "a multiple of 16".into());
        }
        if columns % (PATCH * PATCH) != 0 {
            return misfit("first.weight", format!("[{hidden}, a multiple of {}]", PATCH * PATCH));
        }
        let plane = 6 * (sizes.size / 16);
        let count = |stack: &str| claims.count(|i| format!("{stack}.{i}.attn.wq.weight"));
        Ok(Config {
            channels: columns / (PATCH * PATCH),
            hidden,
            heads: sizes.heads,
            groups: sizes.groups,
            head_size: sizes.size,
            mlp,
            blocks: count("blocks"),
            text: TextConfig {
                width,
                taps,
                heads: text.heads,
                groups: text.groups,
                head_size: text.size,
                mlp: text_mlp,
                blocks: [count("txtfusion.layerwise_blocks"), count("txtfusion.refiner_blocks")],
            },
            axes: [sizes.size - 2 * plane, plane, plane],
        })
    }

    /// Values of a token of the text, all its states side by side.
    pub(super) fn context_width(&self) -> usize {
        self.text.taps * self.text.width
    }

    /// The width, the heads and the inner width of a block.
    pub(super) fn block(&self) -> BlockSizes {
        let heads = HeadSizes { heads: self.heads, groups: self.groups, size: self.head_size };
        BlockSizes { hidden: self.hidden, heads, mlp: self.mlp }
    }

    /// The same of a block of the text's side.
    pub(super) fn text_block(&self) -> BlockSizes {
        let TextConfig { width, heads, groups, head_size, mlp, .. } = self.text;
        BlockSizes { hidden: width, heads: HeadSizes { heads, groups, size: head_size }, mlp }
    }
}

/// The sizes of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizes {
    pub(super) hidden: usize,
    pub(super) heads: HeadSizes,
    pub(super) mlp: usize,
}

/// The heads of a block, and the inner width of its feed-forward layers.
fn heads(claims: &Claims<'_>, block: &str) -> Result<(HeadSizes, usize)> {
    let [size] = claims.dims(&format!("{block}.attn.qknorm.qnorm.scale"))?;
    let query = format!("{block}.attn.wq.weight");
    let ([queries, _], [keys, _]) =
        (claims.dims::<2>(&query)?, claims.dims::<2>(&format!("{block}.attn.wk.weight"))?);
    let (heads, groups) = (queries / size, keys / size);
    if queries % size != 0 || keys % size != 0 || groups == 0 || heads % groups != 0 {
        return Err(claims.misfit(&query, format!("a multiple of {keys} rows, which are one of {size}")));
    }
    let [mlp, _] = claims.dims(&format!("{block}.mlp.up.weight"))?;
    Ok((HeadSizes { heads, groups, size }, mlp))
}
