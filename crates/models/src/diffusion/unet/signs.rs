//! What gives a UNet away, and what its names and shapes tell of its family.

use crate::detect::Neighbours;

/// A tensor that UNets have under the authors' names, and control networks with the same names do not.
pub(in crate::diffusion) const NATIVE: &str = "output_blocks.0.0.in_layers.0.weight";
/// The same under diffusers' names.
pub(in crate::diffusion) const DIFFUSERS: &str = "up_blocks.0.resnets.0.time_emb_proj.weight";

/// A tensor that control networks of the UNet's kind have under the authors' names.
pub(in crate::diffusion) const CONTROL: &str = "input_hint_block.0.weight";
/// The same under diffusers' names.
pub(in crate::diffusion) const CONTROL_DIFFUSERS: &str = "controlnet_cond_embedding.conv_in.weight";

/// Values per token of the text that a control network sees, from the tensors around a sign; its layers may be changes of a
/// model's.
pub(in crate::diffusion) fn controlled_text(found: &Neighbours<'_>) -> Option<usize> {
    let is_whole = found.has("zero_convs.0.0.weight") || found.has("controlnet_down_blocks.0.weight");
    let width = |layer: &&str| {
        let name = |end: &str| format!("{layer}.transformer_blocks.0.attn2.to_k.{end}");
        let dims = found.dims(&name("weight")).or_else(|| found.dims(&name("down")));
        dims.and_then(|dims| dims.get(1)).copied()
    };
    CONTEXTS.iter().find_map(width).filter(|_| is_whole)
}

/// Where a UNet's first attention to the text may be: models differ in the levels that have one.
const CONTEXTS: [&str; 8] = [
    "middle_block.1",
    "input_blocks.1.1",
    "input_blocks.4.1",
    "input_blocks.7.1",
    "mid_block.attentions.0",
    "down_blocks.0.attentions.0",
    "down_blocks.1.attentions.0",
    "down_blocks.2.attentions.0",
];

/// What families are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::diffusion) struct Traits {
    /// Channels of what goes in.
    pub(in crate::diffusion) channels: usize,
    /// Values per token of the text.
    pub(in crate::diffusion) context: usize,
    /// Values of the vector beside the time, of models that take one.
    pub(in crate::diffusion) vector: Option<usize>,
    /// Whether it has layers over frames.
    pub(in crate::diffusion) has_frames: bool,
}

impl Traits {
    /// What the tensors around a sign tell.
    pub(in crate::diffusion) fn of(found: &Neighbours<'_>) -> Option<Traits> {
        let width = |name: &str| found.dims(name).and_then(|dims| dims.get(1)).copied();
        let either = |native: &str, diffusers: &str| width(native).or_else(|| width(diffusers));
        let context = |layer: &&str| width(&format!("{layer}.transformer_blocks.0.attn2.to_k.weight"));
        let vector = either("label_emb.0.0.weight", "add_embedding.linear_1.weight");
        Some(Traits {
            channels: either("input_blocks.0.0.weight", "conv_in.weight")?,
            context: CONTEXTS.iter().find_map(context)?,
            vector: vector.or_else(|| width("class_embedding.linear_1.weight")),
            has_frames: found.has("input_blocks.1.0.time_stack.in_layers.0.weight")
                || found.has("down_blocks.0.resnets.0.temporal_res_block.norm1.weight"),
        })
    }

    /// A name with what stands beside the latent.
    pub(in crate::diffusion) fn variant(
        &self,
        [plain, picture, mask]: [&'static str; 3],
    ) -> Option<std::borrow::Cow<'static, str>> {
        let name = match self.channels {
            4 => plain,
            8 => picture,
            9 => mask,
            _ => return None,
        };
        Some(std::borrow::Cow::Borrowed(name))
    }
}
