//! The examples that run at once on the demo model, and text to picture by models that people download, as templates of
//! the front end.

use server::files::Template;

macro_rules! template {
    ($name:literal, $title:literal, $description:literal) => {
        Template {
            name: concat!("gantry-", $name),
            title: $title,
            description: $description,
            workflow: include_bytes!(concat!("../../../examples/editor/", $name, ".json")),
            picture: include_bytes!(concat!("../../../assets/templates/", $name, ".png")),
            pull: None,
        }
    };
}

macro_rules! family {
    ($name:literal, $title:literal, $pull:literal, $description:literal) => {
        Template {
            name: concat!("gantry-", $name),
            title: $title,
            description: $description,
            workflow: include_bytes!(concat!("../../../examples/families/", $name, ".json")),
            picture: include_bytes!(concat!("../../../assets/templates/", $name, ".png")),
            pull: Some($pull),
        }
    };
}

/// The templates, the plainest first.
pub(crate) const TEMPLATES: &[Template] = &[
    template!(
        "text-to-image",
        "Text to picture",
        "The plain way, on the small model that comes with Gantry: press Run."
    ),
    template!("lora", "With a LoRA", "A LoRA that draws outlines, at a strength."),
    template!("two-passes", "Two passes", "A second, larger pass over an enlarged latent."),
    template!(
        "custom-sampler",
        "Sampler as nodes",
        "Noise, guider, sampler and schedule as nodes of their own."
    ),
    family!("sd15", "Stable Diffusion 1.5", "sd15", "Text to picture at 512 by 512, with a negative prompt."),
    family!(
        "sdxl",
        "Stable Diffusion XL",
        "sdxl",
        "Text to picture at 1024 by 1024, with a negative prompt."
    ),
    family!(
        "qwen-image",
        "Qwen-Image",
        "qwen-image",
        "Text to picture by Qwen-Image, which writes words well."
    ),
    family!("z-image", "Z-Image turbo", "z-image-turbo", "Text to picture in eight steps."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::TEMPLATES;

    #[test]
    fn what_a_template_needs_is_what_pull_gets() {
        let sets: Vec<_> = models::downloads::all().collect();
        let mut checked = 0;
        for template in TEMPLATES {
            let Some(name) = template.pull else { continue };
            let set = sets.iter().find(|set| set.name == name).unwrap();
            let gets = set.files.iter().map(|file| file.address.rsplit('/').next().unwrap());
            let gets: BTreeSet<&str> = gets.collect();
            let workflow: serde_json::Value = serde_json::from_slice(template.workflow).unwrap();
            // A note names them, too, for people.
            let nodes = workflow["nodes"].as_array().unwrap().iter().filter(|node| node["type"] != "Note");
            let values = nodes.flat_map(|node| node["widgets_values"].as_array().unwrap());
            let names = values.filter_map(serde_json::Value::as_str);
            let names: BTreeSet<&str> = names.filter(|name| name.ends_with(".safetensors")).collect();
            assert_eq!(names, gets, "{name}");
            checked += 1;
        }
        assert_eq!(checked, 4);
    }
}
