//! Node classes that were renamed or merged: `/node_replacements`, and the same applied to prompts that still have the
//! old ones.

use graph::{Catalogue, Literal, Map, Prompt};
use serde_json::{Value, json};

/// Where an input of the new class comes from.
enum From {
    /// An input of the old one.
    Old(&'static str),
    /// Always this.
    Value(&'static str),
}

/// An old class and the new one.
struct Replacement {
    old: &'static str,
    new: &'static str,
    /// The widgets of the old class in order, for files of the editor.
    widgets: &'static [&'static str],
    /// The inputs of the new class; none if they are those of the old one.
    inputs: &'static [(&'static str, From)],
}

const REPLACEMENTS: &[Replacement] = &[
    Replacement {
        old: "ResizeImagesByLongerEdge",
        new: "ImageScaleToMaxDimension",
        widgets: &["longer_edge"],
        inputs: &[
            ("image", From::Old("images")),
            ("largest_size", From::Old("longer_edge")),
            ("upscale_method", From::Value("lanczos")),
        ],
    },
    Replacement {
        old: "ImageBatch",
        new: "BatchImagesNode",
        widgets: &[],
        inputs: &[("images.image0", From::Old("image1")), ("images.image1", From::Old("image2"))],
    },
    Replacement {
        old: "ImageScaleBy",
        new: "ResizeImageMaskNode",
        widgets: &["upscale_method", "scale_by"],
        inputs: &[
            ("input", From::Old("image")),
            ("resize_type", From::Value("scale by multiplier")),
            ("resize_type.multiplier", From::Old("scale_by")),
            ("scale_method", From::Old("upscale_method")),
        ],
    },
    Replacement {
        old: "T2IAdapterLoader",
        new: "ControlNetLoader",
        widgets: &[],
        inputs: &[("control_net_name", From::Old("t2i_adapter_name"))],
    },
    Replacement {
        old: "SDV_img2vid_Conditioning",
        new: "SVD_img2vid_Conditioning",
        widgets: &[],
        inputs: &[],
    },
    Replacement { old: "ConditioningAverage ", new: "ConditioningAverage", widgets: &[], inputs: &[] },
];

/// Those that apply here: the old class is not there, the new one is.
fn applicable(catalogue: &Catalogue) -> impl Iterator<Item = &'static Replacement> {
    REPLACEMENTS.iter().filter(|replacement| {
        catalogue.get(replacement.old).is_none() && catalogue.get(replacement.new).is_some()
    })
}

/// `{old class: [replacement]}`.
pub(crate) fn shown(catalogue: &Catalogue) -> Value {
    let shown = applicable(catalogue).map(|replacement| {
        let inputs = replacement.inputs.iter().map(|(new, from)| match from {
            From::Old(old) => json!({ "new_id": new, "old_id": old }),
            From::Value(value) => json!({ "new_id": new, "set_value": value }),
        });
        let inputs: Vec<Value> = inputs.collect();
        let shape = json!({
            "new_node_id": replacement.new,
            "old_node_id": replacement.old,
            "old_widget_ids": (!replacement.widgets.is_empty()).then_some(replacement.widgets),
            "input_mapping": (!inputs.is_empty()).then_some(inputs),
            "output_mapping": null,
        });
        (replacement.old.to_owned(), json!([shape]))
    });
    Value::Object(shown.collect())
}

/// Puts new classes in the place of old ones.
pub(crate) fn apply(prompt: &mut Prompt, catalogue: &Catalogue) {
    for node in prompt.nodes.values_mut() {
        let class = node.class_type.as_deref().unwrap_or_default();
        let Some(replacement) = REPLACEMENTS.iter().find(|replacement| replacement.old == class) else {
            continue;
        };
        if catalogue.get(replacement.old).is_some() || catalogue.get(replacement.new).is_none() {
            continue;
        }
        node.class_type = Some(replacement.new.to_owned());
        if let Some(old) = node.inputs.take_if(|_| !replacement.inputs.is_empty()) {
            node.inputs = Some(mapped(replacement, &old));
        }
    }
}

fn mapped(replacement: &Replacement, old: &Map) -> Map {
    let value = |from: &From| match from {
        From::Old(name) => old.get(*name).cloned(),
        From::Value(value) => Some(Literal::Text((*value).to_owned())),
    };
    let inputs = replacement.inputs.iter();
    inputs.filter_map(|(new, from)| Some(((*new).to_owned(), value(from)?))).collect()
}

#[cfg(test)]
mod tests {
    use graph::{Call, Failure, NodeClass, Outcome, PromptNode, Schema, map};

    use super::*;

    struct Named(&'static str);

    impl NodeClass for Named {
        fn schema(&self) -> Schema {
            Schema::new(self.0, "test")
        }

        fn run(&self, _: &Call) -> Result<Outcome, Failure> {
            Ok(Outcome::default())
        }
    }

    #[test]
    fn an_old_class_becomes_the_new_one_with_its_inputs() {
        let mut catalogue = Catalogue::default();
        catalogue.add(Named("ResizeImageMaskNode"));
        catalogue.add(Named("ImageBatch"));
        catalogue.add(Named("BatchImagesNode"));
        let inputs = map([
            ("image", Literal::List(vec!["1".into(), Literal::Int(0)])),
            ("upscale_method", "area".into()),
            ("scale_by", Literal::Float(0.5)),
        ]);
        let mut prompt = Prompt::default();
        prompt.nodes.insert("2".into(), PromptNode::new("ImageScaleBy", inputs));
        prompt.nodes.insert("3".into(), PromptNode::new("ImageBatch", Map::new()));
        apply(&mut prompt, &catalogue);
        let node = &prompt.nodes["2"];
        assert_eq!(node.class_type.as_deref(), Some("ResizeImageMaskNode"));
        let inputs = node.inputs.as_ref().unwrap();
        assert_eq!(inputs["resize_type"].as_text(), Some("scale by multiplier"));
        assert_eq!(inputs["resize_type.multiplier"], Literal::Float(0.5));
        assert_eq!(inputs["scale_method"].as_text(), Some("area"));
        assert!(inputs["input"].as_list().is_some(), "links pass on");
        // What is here under its old name stays as it is.
        assert_eq!(prompt.nodes["3"].class_type.as_deref(), Some("ImageBatch"));
        let shown = shown(&catalogue);
        assert_eq!(shown.as_object().unwrap().keys().collect::<Vec<_>>(), ["ImageScaleBy"]);
        assert_eq!(shown["ImageScaleBy"][0]["new_node_id"], "ResizeImageMaskNode");
    }
}
