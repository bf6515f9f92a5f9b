//! The sizes of an autoencoder of LTX-Video: its blocks as the file says them, or those of the released files that do not.

use checkpoint::Metadata;
use serde_json::Value;

use crate::claims::Claims;
use crate::{Error, Result, file_config};

/// What errors call the family.
pub(super) const FAMILY: &str = "the autoencoder of LTX-Video";
/// The most blocks of one half, and residual blocks of one of them.
const MOST: u64 = 64;

/// The sizes of an autoencoder of LTX-Video.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Pixels along one side that are folded into channels.
    pub patch: usize,
    /// The decoder's blocks in order of use.
    pub up: Vec<Stage>,
    /// The encoder's; none if the file does not have that half.
    pub down: Vec<Stage>,
    /// Whether the decoder looks back in time only.
    pub is_causal: bool,
    /// Whether a border mirrors what is inside of it, in the decoder and in the encoder; zeros without.
    pub mirrors: [bool; 2],
    /// What a decoder that is told of noise multiplies its time with.
    pub time_scale: Option<f32>,
}

/// One block of a half.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name in the file.
    pub name: String,
    /// Channels that come in.
    pub from: usize,
    /// Channels that leave.
    pub to: usize,
    /// What it does.
    pub kind: StageKind,
}

/// What a block does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StageKind {
    /// So many residual blocks of one width; noise may be added in them.
    Residuals(usize, bool),
    /// One residual block to another width; noise may be added in it.
    Widening(bool),
    /// A convolution with steps, in time and along the sides.
    Strided([usize; 2]),
    /// Channels that become places or the reverse, in time and along the sides; what came in may be added.
    Folding([usize; 2], bool),
}

/// A block as a file describes it.
#[derive(Clone, Debug)]
struct Described {
    name: String,
    layers: usize,
    multiplier: Option<usize>,
    is_residual: bool,
    has_noise: bool,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let said = file_config::of_part(metadata, "vae").unwrap_or_else(|| released(claims));
        let number = |key: &str, usual: usize| {
            said[key].as_u64().and_then(|value| usize::try_from(value).ok()).unwrap_or(usual)
        };
        if said["norm_layer"].as_str().is_some_and(|norm| norm != "pixel_norm") {
            return Err(unknown(claims, &format!("normalises by {}", said["norm_layer"])));
        }
        let [_, latent_channels, _, _, _] = claims.dims("decoder.conv_in.conv.weight")?;
        let [folded, last, _, _, _] = claims.dims("decoder.conv_out.conv.weight")?;
        let patch = number("patch_size", 1).max(1);
        let blocks = |key: &str| described(claims, said.get(key).or_else(|| said.get("blocks")));
        let mirrors = |usual: &str| said["spatial_padding_mode"].as_str().unwrap_or(usual) == "reflect";
        let mut up = blocks("decoder_blocks")?;
        up.reverse();
        let mut down = Vec::new();
        if claims.find("encoder.conv_in.conv.weight").is_some() {
            let [first, _, _, _, _] = claims.dims("encoder.conv_in.conv.weight")?;
            down = stages(claims, &blocks("encoder_blocks")?, ("encoder.down_blocks", first))?;
        }
        // Widths are known from the far end: files say how they shrink toward it.
        let grown: usize = up.iter().map(Described::shrinks).product();
        let config = Config {
            latent_channels,
            channels: folded / (patch * patch),
            patch,
            up: stages(claims, &up, ("decoder.up_blocks", last * grown))?,
            down,
            is_causal: said["causal_decoder"].as_bool().unwrap_or(false),
            mirrors: [mirrors("reflect"), mirrors("zeros")],
            time_scale: said["timestep_conditioning"]
                .as_bool()
                .unwrap_or(false)
                .then(|| claims.number("decoder.timestep_scale_multiplier").unwrap_or(1000.0) as f32),
        };
        Ok(config)
    }

    /// Pixels per latent value along one dimension.
    pub fn factor(&self) -> usize {
        self.patch * self.up.iter().map(|stage| stage.factors()[1]).product::<usize>()
    }

    /// Frames of a video behind the first that one frame of a latent stands for.
    pub fn frames_per_value(&self) -> usize {
        self.up.iter().map(|stage| stage.factors()[0]).product()
    }
}

impl Stage {
    /// How a video grows or shrinks in it, in time and along the sides.
    fn factors(&self) -> [usize; 2] {
        match self.kind {
            StageKind::Residuals(..) | StageKind::Widening(_) => [1, 1],
            StageKind::Strided(factors) | StageKind::Folding(factors, _) => factors,
        }
    }
}

impl Described {
    /// How much less channels leave a block of the decoder.
    fn shrinks(&self) -> usize {
        match self.name.as_str() {
            "res_x_y" => self.multiplier.unwrap_or(2),
            "compress_all" => self.multiplier.unwrap_or(1),
            _ => 1,
        }
    }
}

/// The blocks that a list says: a name with a number of layers, or with an object.
fn described(claims: &Claims<'_>, list: Option<&Value>) -> Result<Vec<Described>> {
    let list = list.and_then(Value::as_array).filter(|list| list.len() as u64 <= MOST);
    let list = list.ok_or_else(|| unknown(claims, "does not say its blocks"))?;
    let block = |block: &Value| {
        let (name, said) = (block[0].as_str()?.to_owned(), &block[1]);
        let number = |key: &str| said[key].as_u64().filter(|count| (1..=MOST).contains(count));
        let layers = said.as_u64().filter(|count| *count <= MOST).or_else(|| number("num_layers"));
        Some(Described {
            name,
            layers: usize::try_from(layers.unwrap_or(1)).ok()?,
            multiplier: number("multiplier").and_then(|by| usize::try_from(by).ok()),
            is_residual: said["residual"].as_bool().unwrap_or(false),
            has_noise: said["inject_noise"].as_bool().unwrap_or(false),
        })
    };
    let blocks: Option<Vec<Described>> = list.iter().map(block).collect();
    blocks.ok_or_else(|| unknown(claims, "says its blocks in a way that is not known here"))
}

/// The blocks of a half with their widths, from the first width on.
fn stages(claims: &Claims<'_>, blocks: &[Described], (half, first): (&str, usize)) -> Result<Vec<Stage>> {
    let is_decoder = half.starts_with("decoder");
    let mut from = first;
    let mut stages = Vec::with_capacity(blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        let factors = match block.name.split('_').nth(1) {
            Some("time") => [2, 1],
            Some("space") => [1, 2],
            _ => [2, 2],
        };
        let grown = from * block.multiplier.unwrap_or(2);
        let (kind, to) = match (block.name.as_str(), is_decoder) {
            ("res_x", _) => (StageKind::Residuals(block.layers, block.has_noise), from),
            ("res_x_y", true) => (StageKind::Widening(block.has_noise), from / block.shrinks()),
            ("res_x_y", false) => (StageKind::Widening(block.has_noise), grown),
            ("compress_time" | "compress_space" | "compress_all", true) => {
                (StageKind::Folding(factors, block.is_residual), from / block.shrinks())
            }
            ("compress_time" | "compress_space" | "compress_all", false) => {
                (StageKind::Strided(factors), from)
            }
            ("compress_all_x_y", false) => (StageKind::Strided(factors), grown),
            ("compress_all_res" | "compress_space_res" | "compress_time_res", false) => {
                (StageKind::Folding(factors, true), grown)
            }
            (other, _) => return Err(unknown(claims, &format!("has blocks called {other}"))),
        };
        stages.push(Stage { name: format!("{half}.{i}"), from, to, kind });
        from = to;
    }
    Ok(stages)
}

/// What released files have that do not say it: those of versions 0.9.0, 0.9.1 and 0.9.5.
fn released(claims: &Claims<'_>) -> Value {
    let residuals = |layers: usize| serde_json::json!(["res_x", layers]);
    let noisy = |layers: usize| serde_json::json!(["res_x", {"num_layers": layers, "inject_noise": true}]);
    let by_two = |name: &str| serde_json::json!([name, {"residual": true, "multiplier": 2}]);
    let (plain, wider) = (serde_json::json!(["compress_all", 1]), serde_json::json!(["res_x_y", 1]));
    let first = [
        residuals(4),
        plain.clone(),
        wider.clone(),
        residuals(3),
        plain.clone(),
        wider,
        residuals(3),
        plain,
        residuals(3),
        residuals(4),
    ];
    if claims.find("decoder.timestep_scale_multiplier").is_none() {
        return serde_json::json!({"patch_size": 4, "blocks": first});
    }
    let up = || by_two("compress_all");
    if claims.find("encoder.down_blocks.1.conv.conv.weight").is_none() {
        let last = [noisy(5), up(), noisy(6), up(), noisy(7), up(), residuals(8)];
        return serde_json::json!({
            "patch_size": 4, "encoder_blocks": first, "decoder_blocks": last, "timestep_conditioning": true
        });
    }
    let encoder = [
        residuals(4),
        by_two("compress_space_res"),
        residuals(6),
        by_two("compress_time_res"),
        residuals(6),
        by_two("compress_all_res"),
        residuals(2),
        by_two("compress_all_res"),
        residuals(2),
    ];
    let decoder = [residuals(5), up(), residuals(5), up(), residuals(5), up(), residuals(5)];
    serde_json::json!({
        "patch_size": 4, "encoder_blocks": encoder, "decoder_blocks": decoder, "timestep_conditioning": true
    })
}

fn unknown(claims: &Claims<'_>, reason: &str) -> Error {
    Error::Settings { file: claims.file(), reason: format!("its autoencoder {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::Checkpoint;

    fn claims_of(checkpoint: &Checkpoint) -> Claims<'_> {
        Claims::new(checkpoint, "", FAMILY)
    }

    #[test]
    fn blocks_are_read_as_they_are_said() {
        let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(&[0; 4]);
        let checkpoint = Checkpoint::from_memory(("a.safetensors", bytes.into()), Vec::new()).unwrap();
        let claims = claims_of(&checkpoint);
        let list = serde_json::json!([
            ["res_x", {"num_layers": 5, "inject_noise": true}],
            ["compress_all", {"residual": true, "multiplier": 2}],
            ["compress_time", {}],
            ["res_x_y", 1]
        ]);
        let blocks = described(&claims, Some(&list)).unwrap();
        let all = stages(&claims, &blocks, ("decoder.up_blocks", 64)).unwrap();
        let kinds: Vec<(StageKind, usize)> = all.iter().map(|stage| (stage.kind, stage.to)).collect();
        let expected = [
            (StageKind::Residuals(5, true), 64),
            (StageKind::Folding([2, 2], true), 32),
            (StageKind::Folding([2, 1], false), 32),
            (StageKind::Widening(false), 16),
        ];
        assert_eq!(kinds, expected);
        let other = described(&claims, Some(&serde_json::json!([["attn_x", 1]]))).unwrap();
        let error = stages(&claims, &other, ("decoder.up_blocks", 64)).unwrap_err().to_string();
        assert!(error.contains("attn_x"), "{error}");
        assert!(described(&claims, None).is_err());
    }
}
