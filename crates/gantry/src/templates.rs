//! The examples that run at once on the demo model, as templates of the front end.

use server::files::Template;

macro_rules! template {
    ($name:literal, $title:literal, $description:literal) => {
        Template {
            name: concat!("gantry-", $name),
            title: $title,
            description: $description,
            workflow: include_bytes!(concat!("../../../examples/editor/", $name, ".json")),
            picture: include_bytes!(concat!("../../../assets/templates/", $name, ".png")),
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
];
