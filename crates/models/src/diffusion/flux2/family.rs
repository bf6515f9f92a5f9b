//! What the rest of the program asks of FLUX.2: how its files are recognised, its latents, its texts, its workflow and its
//! released sizes.

use meta::Shape;
use sampling::{LatentSpec, Scaling};

use super::Flux2;
use super::text::{KLEIN_8B_TEXT, KLEIN_TEXT, TEXT};
use crate::detect::{Role, Sign};
use crate::diffusion::stream_weights::{ReleasedStreams, linear};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// FLUX.2.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "FLUX.2 dev and klein",
    key: "flux2",
    signs: &[Sign::native("double_stream_modulation_img.lin.weight", |found| {
        let hidden = found.dim(1).unwrap_or(0);
        Some(super::named(hidden, found.has("guidance_in.in_layer.weight")))
    })],
    read: |checkpoint, part| Ok(Box::new(Flux2::read(checkpoint, part)?)),
    text: &[&TEXT, &KLEIN_TEXT, &KLEIN_8B_TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "FLUX.2 dev",
        tensors: |most_blocks| tensors(&DEV, most_blocks),
        pixels: 1024,
        encoders: &[("mistral3_24b", 5120)],
        tokens: 512,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of FLUX.2",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 256,
        encoders: &[("mistral3_24b", 128)],
        tokens: 512,
        cfg: 1.0,
    },
};

/// What each channel of the autoencoder adds to red, green and blue, as the community fitted it to decoded pictures.
const COLOURS: [[f32; 3]; 32] = [
    [0.0058, 0.0113, 0.0073],
    [0.0495, 0.0443, 0.0836],
    [-0.0099, 0.0096, 0.0644],
    [0.2144, 0.3009, 0.3652],
    [0.0166, -0.0039, -0.0054],
    [0.0157, 0.0103, -0.016],
    [-0.0398, 0.0902, -0.0235],
    [-0.0052, 0.0095, 0.0109],
    [-0.3527, -0.2712, -0.1666],
    [-0.0301, -0.0356, -0.018],
    [-0.0107, 0.0078, 0.0013],
    [0.0746, 0.009, -0.0941],
    [0.0156, 0.0169, 0.007],
    [-0.0034, -0.004, -0.0114],
    [0.0032, 0.0181, 0.008],
    [-0.0939, -0.0008, 0.0186],
    [0.0018, 0.0043, 0.0104],
    [0.0284, 0.0056, -0.0127],
    [-0.0024, -0.0022, -0.003],
    [0.1207, -0.0026, 0.0065],
    [0.0128, 0.0101, 0.0142],
    [0.0137, -0.0072, -0.0007],
    [0.0095, 0.0092, -0.0059],
    [0.0, -0.0077, -0.0049],
    [-0.0465, -0.0204, -0.0312],
    [0.0095, 0.0012, -0.0066],
    [0.029, -0.0034, 0.0025],
    [0.022, 0.0169, -0.0048],
    [-0.0332, -0.0457, -0.0468],
    [-0.0085, 0.0389, 0.0609],
    [-0.0076, 0.0003, -0.0043],
    [-0.0111, -0.046, -0.0614],
];

/// Values of the autoencoder in one patch.
const PATCH_VALUES: usize = 4;

/// The same for each value of a patch: a preview has one point for it, the mean of its values.
const PATCH_COLOURS: [[f32; 3]; 32 * PATCH_VALUES] = {
    let mut all = [[0.0; 3]; 32 * PATCH_VALUES];
    let mut at = 0;
    while at < all.len() {
        let [red, green, blue] = COLOURS[at / PATCH_VALUES];
        let share = 1.0 / PATCH_VALUES as f32;
        all[at] = [red * share, green * share, blue * share];
        at += 1;
    }
    all
};

/// Its latents: patches of two by two values of 32 channels, which the autoencoder normalises itself.
pub const LATENT: LatentSpec = LatentSpec {
    name: "FLUX.2",
    channels: 128,
    scaling: Scaling::Uniform { scale: 1.0, shift: 0.0 },
    pixels_per_value: 16,
    frames_per_value: None,
    colours: &PATCH_COLOURS,
    background: [-0.0329, -0.0718, -0.0851],
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "flux2_dev_fp8mixed.safetensors, flux2-dev.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the Mistral 3 text encoder",
            "--mistral",
            |part| part.role == Role::Text && part.name.starts_with("Mistral"),
            "mistral_3_small_flux2_bf16.safetensors or mistral_3_small_flux2_fp8.safetensors",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 32 channels in patches",
            "flux2-vae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: Some(("FluxGuidance", 4.0)),
    latent: "EmptyFlux2LatentImage",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The sizes of a released model.
struct Sizes {
    streams: ReleasedStreams,
    context: usize,
}

const DEV: Sizes = Sizes {
    streams: ReleasedStreams {
        hidden: 6144,
        head: 128,
        mlp: 18_432,
        mlp_rows: 36_864,
        blocks: [8, 48],
        has_bias: false,
        is_modulated: false,
    },
    context: 15_360,
};

const SMALL: Sizes = Sizes {
    streams: ReleasedStreams {
        hidden: 256,
        head: 64,
        mlp: 768,
        mlp_rows: 1536,
        blocks: [2, 6],
        has_bias: false,
        is_modulated: false,
    },
    context: 384,
};

/// The tensors of a model with guidance; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { streams, context } = sizes;
    let hidden = streams.hidden;
    let mut all = Vec::new();
    let layers = [
        ("img_in", hidden, LATENT.channels),
        ("txt_in", hidden, *context),
        ("time_in.in_layer", hidden, 256),
        ("time_in.out_layer", hidden, hidden),
        ("guidance_in.in_layer", hidden, 256),
        ("guidance_in.out_layer", hidden, hidden),
        ("double_stream_modulation_img.lin", 6 * hidden, hidden),
        ("double_stream_modulation_txt.lin", 6 * hidden, hidden),
        ("single_stream_modulation.lin", 3 * hidden, hidden),
        ("final_layer.linear", LATENT.channels, hidden),
        ("final_layer.adaLN_modulation.1", 2 * hidden, hidden),
    ];
    for (name, out, from) in layers {
        linear(&mut all, name, [out, from], false);
    }
    streams.add_blocks(&mut all, most_blocks);
    all
}
