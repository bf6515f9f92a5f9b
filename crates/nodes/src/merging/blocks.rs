//! Models merged block by block: one class for every kind of model, whose inputs are the starts of its weights' names.

use graph::{Call, Catalogue, Failure, NodeClass, Outcome, Schema};
use runtime::{Share, Shares};

use super::{MODULE, merged_models, ratio_input, two};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue) {
    CLASSES.iter().for_each(|class| catalogue.add(ModelMergeBlocks(class)));
}

/// A class: its name, and the starts of names that have a ratio of their own.
struct Class {
    name: &'static str,
    about: &'static str,
    starts: &'static [Start],
}

/// Starts of names.
enum Start {
    /// One.
    One(&'static str),
    /// One for each of so many blocks: what stands before and behind the number.
    Each(&'static str, usize, &'static str),
}

use Start::{Each, One};

const UNET: &[Start] = &[
    One("time_embed."),
    One("label_emb."),
    Each("input_blocks.", 12, "."),
    Each("middle_block.", 3, "."),
    Each("output_blocks.", 12, "."),
    One("out."),
];
const LARGER_UNET: &[Start] = &[
    One("time_embed."),
    One("label_emb."),
    Each("input_blocks.", 9, ""),
    Each("middle_block.", 3, ""),
    Each("output_blocks.", 9, ""),
    One("out."),
];

/// The embedders and blocks of a transformer whose blocks are joint.
macro_rules! joint {
    ($blocks:literal) => {
        &[
            One("pos_embed."),
            One("x_embedder."),
            One("context_embedder."),
            One("y_embedder."),
            One("t_embedder."),
            Each("joint_blocks.", $blocks, "."),
            One("final_layer."),
        ]
    };
}

/// Those of Cosmos.
macro_rules! cosmos {
    ($blocks:literal) => {
        &[
            One("pos_embedder."),
            One("extra_pos_embedder."),
            One("x_embedder."),
            One("t_embedder."),
            One("affline_norm."),
            Each("blocks.block", $blocks, "."),
            One("final_layer."),
        ]
    };
}

/// Those of its second generation.
macro_rules! cosmos_predict2 {
    ($blocks:literal) => {
        &[
            One("pos_embedder."),
            One("x_embedder."),
            One("t_embedder."),
            One("t_embedding_norm."),
            Each("blocks.", $blocks, "."),
            One("final_layer."),
        ]
    };
}

const fn class(name: &'static str, starts: &'static [Start]) -> Class {
    Class { name, about: "", starts }
}

const CLASSES: &[Class] = &[
    class("ModelMergeBlocks", &[One("input"), One("middle"), One("out")]),
    class("ModelMergeSD1", UNET),
    class("ModelMergeSD2", UNET),
    class("ModelMergeSDXL", LARGER_UNET),
    class("ModelMergeSD3_2B", joint!(24)),
    class("ModelMergeSD35_Large", joint!(38)),
    class(
        "ModelMergeAuraflow",
        &[
            One("init_x_linear."),
            One("positional_encoding"),
            One("cond_seq_linear."),
            One("register_tokens"),
            One("t_embedder."),
            Each("double_layers.", 4, "."),
            Each("single_layers.", 32, "."),
            One("modF."),
            One("final_linear."),
        ],
    ),
    class(
        "ModelMergeFlux1",
        &[
            One("img_in."),
            One("time_in."),
            One("guidance_in"),
            One("vector_in."),
            One("txt_in."),
            Each("double_blocks.", 19, "."),
            Each("single_blocks.", 38, "."),
            One("final_layer."),
        ],
    ),
    class(
        "ModelMergeMochiPreview",
        &[
            One("pos_frequencies."),
            One("t_embedder."),
            One("t5_y_embedder."),
            One("t5_yproj."),
            Each("blocks.", 48, "."),
            One("final_layer."),
        ],
    ),
    class(
        "ModelMergeLTXV",
        &[
            One("patchify_proj."),
            One("adaln_single."),
            One("caption_projection."),
            Each("transformer_blocks.", 28, "."),
            One("scale_shift_table"),
            One("proj_out."),
        ],
    ),
    class("ModelMergeCosmos7B", cosmos!(28)),
    class("ModelMergeCosmos14B", cosmos!(36)),
    Class {
        name: "ModelMergeWAN2_1",
        about: "The models of 1.3 billion weights have 30 blocks, those of 14 billion have 40; img_emb is in those that \
                start from a picture.",
        starts: &[
            One("patch_embedding."),
            One("time_embedding."),
            One("time_projection."),
            One("text_embedding."),
            One("img_emb."),
            Each("blocks.", 40, "."),
            One("head."),
        ],
    },
    class("ModelMergeCosmosPredict2_2B", cosmos_predict2!(28)),
    class("ModelMergeCosmosPredict2_14B", cosmos_predict2!(36)),
    class(
        "ModelMergeQwenImage",
        &[
            One("pos_embeds."),
            One("img_in."),
            One("txt_norm."),
            One("txt_in."),
            One("time_text_embed."),
            Each("transformer_blocks.", 60, "."),
            One("proj_out."),
        ],
    ),
];

impl Class {
    /// The names of the inputs.
    fn inputs(&self) -> impl Iterator<Item = String> {
        self.starts.iter().flat_map(|start| match *start {
            One(start) => vec![start.to_owned()],
            Each(before, count, behind) => {
                (0..count).map(|index| format!("{before}{index}{behind}")).collect()
            }
        })
    }
}

/// Between two models, with a ratio for each part.
struct ModelMergeBlocks(&'static Class);

impl NodeClass for ModelMergeBlocks {
    fn schema(&self) -> Schema {
        let general = self.0.name == "ModelMergeBlocks";
        let category =
            if general { "advanced/model_merging" } else { "advanced/model_merging/model_specific" };
        let schema = two(Schema::new(self.0.name, category), "MODEL").about(self.0.about);
        let module = if general { MODULE } else { "comfy_extras.nodes_model_merging_model_specific" };
        self.0.inputs().fold(schema, |schema, name| schema.input(ratio_input(&name))).module(module)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let share = |start: String| -> Result<(String, Share), Failure> {
            let ratio = call.float(&start)?;
            Ok((start, Share::between(ratio)))
        };
        let by_start = self.0.inputs().map(share).collect::<Result<Vec<_>, _>>()?;
        // What none of them names has the ratio of the first.
        let usual = by_start.first().map_or(Share::between(1.0), |(_, share)| *share);
        merged_models(call, Shares { usual, by_start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_starts_of_names_in_order() {
        let inputs = |name: &str| {
            let class = CLASSES.iter().find(|class| class.name == name).unwrap();
            let schema = ModelMergeBlocks(class).schema();
            schema.inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(inputs("ModelMergeBlocks"), ["model1", "model2", "input", "middle", "out"]);
        let larger = inputs("ModelMergeSDXL");
        assert_eq!((larger.len(), larger[4].as_str()), (26, "input_blocks.0"));
        assert_eq!(inputs("ModelMergeSD1").len(), 32);
        assert_eq!(inputs("ModelMergeSD3_2B").last().unwrap(), "final_layer.");
    }
}
