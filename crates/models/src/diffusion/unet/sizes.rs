//! The tensors of a UNet of given sizes: what a released model has, for measuring without its file.

use meta::Shape;

/// The sizes of a released model.
pub(in crate::diffusion) struct Sizes {
    /// Channels of the first level.
    pub(in crate::diffusion) channels: usize,
    /// How many times as many channels each level has.
    pub(in crate::diffusion) levels: &'static [usize],
    /// Blocks of the transformers of each level; none has no transformers.
    pub(in crate::diffusion) depths: &'static [usize],
    /// Blocks of the transformer in the middle.
    pub(in crate::diffusion) middle_depth: usize,
    /// Values per token of the text.
    pub(in crate::diffusion) context: usize,
    /// Values of the vector beside the time; none for models that take none.
    pub(in crate::diffusion) vector: usize,
    /// Whether the projections of transformers are stored as convolutions.
    pub(in crate::diffusion) convolved: bool,
    /// Channels of what goes in.
    pub(in crate::diffusion) taken: usize,
    /// Whether there are layers over frames, too.
    pub(in crate::diffusion) has_frames: bool,
}

impl Sizes {
    /// Of most models with four levels, whose text has tokens of 768 values.
    pub(in crate::diffusion) const FOUR_LEVELS: Sizes = Sizes {
        channels: 320,
        levels: &[1, 2, 4, 4],
        depths: &[1, 1, 1, 0],
        middle_depth: 1,
        context: 768,
        vector: 0,
        convolved: true,
        taken: LATENT,
        has_frames: false,
    };
}

/// Residual units of each level on the way in; the way out has one more.
const RESIDUALS: usize = 2;
const LATENT: usize = 4;

/// The tensors of a model, with at most so many blocks in each transformer.
pub(in crate::diffusion) fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let time = 4 * sizes.channels;
    let mut all = Tensors { sizes, most_blocks, time, list: Vec::new() };
    all.linear("time_embed.0", time, sizes.channels);
    all.linear("time_embed.2", time, time);
    if sizes.vector > 0 {
        all.linear("label_emb.0.0", time, sizes.vector);
        all.linear("label_emb.0.2", time, time);
    }
    all.kernel("input_blocks.0.0", [sizes.channels, sizes.taken], 3);
    let (mut block, mut channels, mut kept) = (1, sizes.channels, vec![sizes.channels]);
    for (level, times) in sizes.levels.iter().enumerate() {
        for _ in 0..RESIDUALS {
            let to = times * sizes.channels;
            all.residual(&format!("input_blocks.{block}.0"), channels, to);
            all.transformer(&format!("input_blocks.{block}.1"), to, sizes.depths[level]);
            channels = to;
            kept.push(channels);
            block += 1;
        }
        if level + 1 < sizes.levels.len() {
            all.kernel(&format!("input_blocks.{block}.0.op"), [channels, channels], 3);
            kept.push(channels);
            block += 1;
        }
    }
    all.residual("middle_block.0", channels, channels);
    all.transformer("middle_block.1", channels, sizes.middle_depth);
    all.residual("middle_block.2", channels, channels);
    block = 0;
    for (level, times) in sizes.levels.iter().enumerate().rev() {
        for index in 0..=RESIDUALS {
            let to = times * sizes.channels;
            let name = format!("output_blocks.{block}");
            all.residual(&format!("{name}.0"), channels + kept.pop().unwrap_or(0), to);
            all.transformer(&format!("{name}.1"), to, sizes.depths[level]);
            channels = to;
            if level > 0 && index == RESIDUALS {
                let place = if sizes.depths[level] > 0 { 2 } else { 1 };
                all.kernel(&format!("{name}.{place}.conv"), [channels, channels], 3);
            }
            block += 1;
        }
    }
    all.norm("out.0", channels);
    all.kernel("out.2", [LATENT, channels], 3);
    all.list
}

struct Tensors<'a> {
    sizes: &'a Sizes,
    most_blocks: usize,
    time: usize,
    list: Vec<(String, Shape)>,
}

impl Tensors<'_> {
    fn residual(&mut self, name: &str, from: usize, to: usize) {
        self.norm(&format!("{name}.in_layers.0"), from);
        self.kernel(&format!("{name}.in_layers.2"), [to, from], 3);
        self.linear(&format!("{name}.emb_layers.1"), to, self.time);
        self.norm(&format!("{name}.out_layers.0"), to);
        self.kernel(&format!("{name}.out_layers.3"), [to, to], 3);
        if from != to {
            self.kernel(&format!("{name}.skip_connection"), [to, from], 1);
        }
        if self.sizes.has_frames {
            let layer = |part: &str| format!("{name}.time_stack.{part}");
            for (norm, kernel) in [("in_layers.0", "in_layers.2"), ("out_layers.0", "out_layers.3")] {
                self.norm(&layer(norm), to);
                self.list.push((format!("{}.weight", layer(kernel)), Shape::from([to, to, 3, 1, 1])));
                self.list.push((format!("{}.bias", layer(kernel)), Shape::from([to])));
            }
            self.linear(&layer("emb_layers.1"), to, self.time);
            self.list.push((format!("{name}.time_mixer.mix_factor"), Shape::from([1])));
        }
    }

    fn transformer(&mut self, name: &str, channels: usize, depth: usize) {
        let depth = depth.min(self.most_blocks.max(1));
        if depth == 0 {
            return;
        }
        self.norm(&format!("{name}.norm"), channels);
        self.projection(&format!("{name}.proj_in"), channels);
        for block in 0..depth {
            self.block(&format!("{name}.transformer_blocks.{block}"), channels);
            if self.sizes.has_frames {
                let stack = format!("{name}.time_stack.{block}");
                self.norm(&format!("{stack}.norm_in"), channels);
                self.feed_forward(&format!("{stack}.ff_in"), channels);
                self.block(&stack, channels);
            }
        }
        if self.sizes.has_frames {
            self.linear(&format!("{name}.time_pos_embed.0"), 4 * channels, channels);
            self.linear(&format!("{name}.time_pos_embed.2"), channels, 4 * channels);
            self.list.push((format!("{name}.time_mixer.mix_factor"), Shape::from([1])));
        }
        self.projection(&format!("{name}.proj_out"), channels);
    }

    fn block(&mut self, block: &str, channels: usize) {
        for (attention, seen) in [("attn1", channels), ("attn2", self.sizes.context)] {
            for (part, from) in [("to_q", channels), ("to_k", seen), ("to_v", seen)] {
                let weight = format!("{block}.{attention}.{part}.weight");
                self.list.push((weight, Shape::from([channels, from])));
            }
            self.linear(&format!("{block}.{attention}.to_out.0"), channels, channels);
        }
        for norm in ["norm1", "norm2", "norm3"] {
            self.norm(&format!("{block}.{norm}"), channels);
        }
        self.feed_forward(&format!("{block}.ff"), channels);
    }

    fn feed_forward(&mut self, name: &str, channels: usize) {
        self.linear(&format!("{name}.net.0.proj"), 8 * channels, channels);
        self.linear(&format!("{name}.net.2"), channels, 4 * channels);
    }

    fn projection(&mut self, name: &str, channels: usize) {
        if self.sizes.convolved {
            self.kernel(name, [channels, channels], 1);
        } else {
            self.linear(name, channels, channels);
        }
    }

    fn linear(&mut self, name: &str, to: usize, from: usize) {
        self.list.push((format!("{name}.weight"), Shape::from([to, from])));
        self.list.push((format!("{name}.bias"), Shape::from([to])));
    }

    fn kernel(&mut self, name: &str, [to, from]: [usize; 2], side: usize) {
        self.list.push((format!("{name}.weight"), Shape::from([to, from, side, side])));
        self.list.push((format!("{name}.bias"), Shape::from([to])));
    }

    fn norm(&mut self, name: &str, channels: usize) {
        self.list.push((format!("{name}.weight"), Shape::from([channels])));
        self.list.push((format!("{name}.bias"), Shape::from([channels])));
    }
}
