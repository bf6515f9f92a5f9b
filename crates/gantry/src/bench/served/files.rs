//! Model files of random weights, made in seconds: a diffusion model of its released or of a small size, text encoders of
//! the widths that it takes, and a LoRA for all its matrices.
//!
//! Weights are cut from one stretch of random values per amplitude, so that making them costs no more than writing them.
//! They have the statistics of trained ones, which decide how far lossless coding shrinks them: nearly normal, in rows whose
//! scales vary by a power of two with an exponent of deviation one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use checkpoint::{NewTensor, SafetensorsHead};
use meta::{DType, Encoding, Shape};
use models::diffusion::ReleasedModel;
use testkit::{Procedural, random_trained};

use crate::bench::step;

/// Random values that weights of one amplitude are cut from.
const STRETCH: usize = 4 << 20;
/// Values of a stretch that share a scale.
const ROW: usize = 4096;
/// By how much the scales of rows vary: the deviation of their exponents of two.
const ROW_SPREAD: f32 = 1.0;
/// Bytes that a thread writes at a time.
const PART_BYTES: u64 = 16 << 20;
/// Entries of T5's and CLIP's token tables, which their tokenizers need.
const T5_TOKENS: usize = 32_128;
const CLIP_TOKENS: usize = 49_408;
/// Tokens of one chunk of CLIP's.
const CLIP_POSITIONS: usize = 77;
/// Layers of the text encoders: their time is not measured, so there are few.
const TEXT_LAYERS: usize = 2;
/// Values per head of the text encoders.
const TEXT_HEAD: usize = 64;
/// The rank of the LoRA.
pub(super) const LORA_RANK: usize = 64;

/// Where the files lie below a models folder.
pub(super) const MODEL: &str = "served-model.safetensors";
pub(super) const LORA: &str = "served-lora.safetensors";

/// A tensor to be made.
struct Made {
    name: String,
    shape: Vec<usize>,
    /// Values are random within this much of the offset.
    amplitude: f32,
    offset: f32,
}

impl Made {
    /// A matrix whose result is about as large as what it is applied to.
    fn matrix(name: impl Into<String>, out: usize, from: usize) -> Made {
        let amplitude = (3.0 / from as f32).sqrt();
        Made { name: name.into(), shape: vec![out, from], amplitude, offset: 0.0 }
    }

    fn bias(name: impl Into<String>, len: usize) -> Made {
        Made { name: name.into(), shape: vec![len], amplitude: 0.05, offset: 0.0 }
    }

    /// The factors of a normalisation.
    fn factors(name: impl Into<String>, len: usize) -> Made {
        Made { name: name.into(), shape: vec![len], amplitude: 0.1, offset: 1.0 }
    }
}

/// The name of an encoder's file.
pub(super) fn encoder_file(key: &str) -> String {
    format!("served-{key}.safetensors")
}

/// Bytes of the diffusion model.
pub(super) fn model_bytes(released: &ReleasedModel) -> u64 {
    let values = |made: &Made| made.shape.iter().product::<usize>() as u64;
    model(released).iter().map(values).sum::<u64>() * DType::BF16.bytes() as u64
}

/// Bytes of all files together, but for their heads.
pub(super) fn bytes(released: &ReleasedModel) -> u64 {
    let model = model(released);
    let mut all: Vec<Vec<Made>> = released.encoders.iter().map(|(key, width)| encoder(key, *width)).collect();
    all.extend([lora(&model), model]);
    let values = |made: &Made| made.shape.iter().product::<usize>() as u64;
    all.iter().flatten().map(values).sum::<u64>() * DType::BF16.bytes() as u64
}

/// Writes the text encoders of a model below a models folder.
pub(super) fn write_encoders(models: &Path, released: &ReleasedModel) -> Result<()> {
    let folder = models.join("text_encoders");
    std::fs::create_dir_all(&folder)?;
    for (key, width) in released.encoders {
        let name = encoder_file(key);
        write(&folder.join(&name), &encoder(key, *width)).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

/// Writes all files below a models folder; the bytes of the model.
pub(super) fn write_all(models: &Path, released: &ReleasedModel) -> Result<u64> {
    let write = |folder: &str, name: &str, tensors: &[Made]| -> Result<u64> {
        let folder = models.join(folder);
        std::fs::create_dir_all(&folder)?;
        write(&folder.join(name), tensors).with_context(|| format!("writing {name}"))
    };
    write_encoders(models, released)?;
    let model = model(released);
    write("loras", LORA, &lora(&model))?;
    write("diffusion_models", MODEL, &model)
}

/// The tensors of the diffusion model.
fn model(released: &ReleasedModel) -> Vec<Made> {
    all_made((released.tensors)(usize::MAX))
}

fn all_made(tensors: Vec<(String, Shape)>) -> Vec<Made> {
    let made = |(name, shape): (String, Shape)| {
        let (amplitude, offset) = step::amplitude(&name, shape.dims());
        Made { name, shape: shape.dims().to_vec(), amplitude: amplitude as f32, offset: offset as f32 }
    };
    tensors.into_iter().map(made).collect()
}

/// The tensors of a text encoder.
fn encoder(key: &str, width: usize) -> Vec<Made> {
    if key.starts_with("clip") {
        return clip(width);
    }
    t5(&T5Sizes { width, inner: 2 * TEXT_HEAD, mlp: TEXT_HEAD, layers: TEXT_LAYERS })
}

/// A LoRA for every matrix of a model.
fn lora(model: &[Made]) -> Vec<Made> {
    let matrices = model.iter().filter_map(|tensor| {
        let layer = tensor.name.strip_suffix(".weight")?;
        let [out, from] = *tensor.shape.as_slice() else { return None };
        Some((layer, out, from))
    });
    let pair = |(layer, out, from): (&str, usize, usize)| {
        let up = Made::matrix(format!("diffusion_model.{layer}.lora_B.weight"), out, LORA_RANK);
        // The change is a small one, as a trained LoRA's is.
        let up = Made { amplitude: up.amplitude / 20.0, ..up };
        [Made::matrix(format!("diffusion_model.{layer}.lora_A.weight"), LORA_RANK, from), up]
    };
    matrices.flat_map(pair).collect()
}

/// Writes a diffusion model of its released size.
pub(in crate::bench) fn write_released(path: &Path, released: &ReleasedModel) -> Result<u64> {
    write(path, &model(released))
}

/// Writes a network of these tensors.
pub(in crate::bench) fn write_network(path: &Path, tensors: Vec<(String, Shape)>) -> Result<u64> {
    write(path, &all_made(tensors))
}

/// Writes a language model of the size of Qwen2.5-VL 7B, without the tower by which that looks at pictures.
pub(in crate::bench) fn write_qwen25_7b(path: &Path) -> Result<u64> {
    let (width, groups, mlp) = (3584, 512, 18_944);
    let mut tensors =
        vec![Made { shape: vec![152_064, width], ..Made::matrix("model.embed_tokens.weight", 152_064, 12) }];
    for layer in 0..28 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, out) in [("q", width), ("k", groups), ("v", groups)] {
            tensors.push(Made::matrix(name(&format!("self_attn.{part}_proj.weight")), out, width));
            tensors.push(Made::bias(name(&format!("self_attn.{part}_proj.bias")), out));
        }
        tensors.push(Made::matrix(name("self_attn.o_proj.weight"), width, width));
        tensors.push(Made::matrix(name("mlp.gate_proj.weight"), mlp, width));
        tensors.push(Made::matrix(name("mlp.up_proj.weight"), mlp, width));
        tensors.push(Made::matrix(name("mlp.down_proj.weight"), width, mlp));
        tensors.push(Made::factors(name("input_layernorm.weight"), width));
        tensors.push(Made::factors(name("post_attention_layernorm.weight"), width));
    }
    tensors.push(Made::factors("model.norm.weight", width));
    write(path, &tensors)
}

/// Writes a text encoder of the size of T5-XXL.
pub(in crate::bench) fn write_t5_xxl(path: &Path) -> Result<u64> {
    write(path, &t5(&T5Sizes { width: 4096, inner: 4096, mlp: 10240, layers: 24 }))
}

/// The sizes of a T5 encoder.
struct T5Sizes {
    width: usize,
    inner: usize,
    mlp: usize,
    layers: usize,
}

fn t5(sizes: &T5Sizes) -> Vec<Made> {
    let T5Sizes { width, inner, mlp, layers } = *sizes;
    let mut tensors = vec![Made::matrix("shared.weight", T5_TOKENS, 12)];
    tensors[0].shape = vec![T5_TOKENS, width];
    for block in 0..layers {
        let name = |part: &str| format!("encoder.block.{block}.layer.{part}.weight");
        for part in ["q", "k", "v"] {
            tensors.push(Made::matrix(name(&format!("0.SelfAttention.{part}")), inner, width));
        }
        tensors.push(Made::matrix(name("0.SelfAttention.o"), width, inner));
        if block == 0 {
            let heads = Made::matrix(name("0.SelfAttention.relative_attention_bias"), 32, inner / TEXT_HEAD);
            tensors.push(heads);
        }
        tensors.push(Made::factors(name("0.layer_norm"), width));
        tensors.push(Made::matrix(name("1.DenseReluDense.wi_0"), mlp, width));
        tensors.push(Made::matrix(name("1.DenseReluDense.wi_1"), mlp, width));
        tensors.push(Made::matrix(name("1.DenseReluDense.wo"), width, mlp));
        tensors.push(Made::factors(name("1.layer_norm"), width));
    }
    tensors.push(Made::factors("encoder.final_layer_norm.weight", width));
    tensors
}

fn clip(width: usize) -> Vec<Made> {
    let name = |part: &str| format!("text_model.{part}");
    let table = |part: &str, rows: usize| Made {
        shape: vec![rows, width],
        ..Made::matrix(name(&format!("embeddings.{part}.weight")), rows, 12)
    };
    let mut tensors =
        vec![table("token_embedding", CLIP_TOKENS), table("position_embedding", CLIP_POSITIONS)];
    for layer in 0..TEXT_LAYERS {
        let name = |part: &str| format!("text_model.encoder.layers.{layer}.{part}");
        let mut linear = |part: &str, out: usize, from: usize| {
            tensors.push(Made::matrix(name(&format!("{part}.weight")), out, from));
            tensors.push(Made::bias(name(&format!("{part}.bias")), out));
        };
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            linear(&format!("self_attn.{part}"), width, width);
        }
        linear("mlp.fc1", 4 * width, width);
        linear("mlp.fc2", width, 4 * width);
        for part in ["layer_norm1", "layer_norm2"] {
            tensors.push(Made::factors(name(&format!("{part}.weight")), width));
            tensors.push(Made::bias(name(&format!("{part}.bias")), width));
        }
    }
    tensors.push(Made::factors(name("final_layer_norm.weight"), width));
    tensors.push(Made::bias(name("final_layer_norm.bias"), width));
    tensors.push(Made::matrix("text_projection.weight", width, width));
    tensors
}

/// Writes tensors in bf16, from all threads; the bytes of the file.
fn write(path: &Path, tensors: &[Made]) -> Result<u64> {
    let described: Vec<NewTensor> = tensors
        .iter()
        .map(|made| {
            Ok(NewTensor { name: made.name.clone(), dtype: DType::BF16, shape: Shape::new(&made.shape)? })
        })
        .collect::<Result<_>>()?;
    let head = SafetensorsHead::new(path, &[], &described)?;
    let draft = disk::Draft::beside(path)?;
    let mut file = draft.file();
    file.write_all(head.bytes())?;
    file.set_len(head.file_bytes())?;
    let stretches = stretches(tensors)?;
    let parts: Vec<Part<'_>> = tensors
        .iter()
        .zip(head.places())
        .flat_map(|(made, place)| {
            let stretch = &stretches[&key(made)][..];
            (place.start..place.end).step_by(PART_BYTES as usize).map(move |start| Part {
                start,
                bytes: PART_BYTES.min(place.end - start) as usize,
                stretch,
            })
        })
        .collect();
    from_all_threads(draft.path(), &parts, |file, part| Ok(part.write(file)?))?;
    draft.replace(path)?;
    Ok(head.file_bytes())
}

/// A piece of a file: so many bytes from somewhere in a stretch of random values, again and again.
struct Part<'a> {
    start: u64,
    bytes: usize,
    stretch: &'a [u8],
}

impl Part<'_> {
    fn write(&self, file: &mut File) -> std::io::Result<()> {
        file.seek(SeekFrom::Start(self.start))?;
        // Another place of the stretch for each part, so that no two matrices are the same. Values have two bytes.
        let mut at = (self.start as usize).wrapping_mul(0x9E37_79B1) % (self.stretch.len() / 4) * 2;
        let mut left = self.bytes;
        while left > 0 {
            let len = left.min(self.stretch.len() - at);
            file.write_all(&self.stretch[at..at + len])?;
            (left, at) = (left - len, 0);
        }
        Ok(())
    }
}

/// Writes something of each item into a file, from all threads.
pub(in crate::bench) fn from_all_threads<T: Sync>(
    path: &Path,
    items: &[T],
    write: impl Fn(&mut File, &T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut file = File::options().write(true).open(path)?;
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            write(&mut file, item)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(written) => written,
            Err(_) => Err(anyhow!("a thread that writes failed")),
        })
    })
}

/// What tells the stretch that a tensor is cut from.
fn key(made: &Made) -> [u32; 2] {
    [made.amplitude.to_bits(), made.offset.to_bits()]
}

/// Random values for every amplitude that occurs.
fn stretches(tensors: &[Made]) -> Result<BTreeMap<[u32; 2], Vec<u8>>> {
    let trained = trained();
    let mut stretches = BTreeMap::new();
    for made in tensors {
        if let std::collections::btree_map::Entry::Vacant(place) = stretches.entry(key(made)) {
            place.insert(match made.offset {
                0.0 => trained.iter().flat_map(|v| bf16_bytes(v * made.amplitude)).collect(),
                offset => {
                    Procedural::new(&made.name, made.amplitude, offset).encoded(Encoding::BF16, STRETCH)?
                }
            });
        }
    }
    Ok(stretches)
}

/// A value in bf16, cut off instead of rounded, which makes no difference to random ones.
fn bf16_bytes(value: f32) -> [u8; 2] {
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}

/// Values like those of trained matrices, as large on the whole as those that are uniform from -1 to 1.
fn trained() -> Vec<f32> {
    let values = random_trained(7, [STRETCH / ROW, ROW], ROW_SPREAD);
    let mean_square = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
    let factor = (1.0 / 3.0 / mean_square).sqrt() as f32;
    values.iter().map(|v| v * factor).collect()
}

#[cfg(test)]
mod tests {
    use checkpoint::Checkpoint;
    use models::detect::{Role, detect};
    use models::diffusion::FAMILIES;

    use super::*;

    #[test]
    fn what_is_written_is_what_its_name_says() {
        let dir = testkit::ScratchDir::new().unwrap();
        let small = &FAMILIES[0].small;
        let model_bytes = write_all(dir.path(), small).unwrap();
        let open = |folder: &str, name: &str| Checkpoint::open(dir.path().join(folder).join(name)).unwrap();
        let model = open("diffusion_models", MODEL);
        assert_eq!(std::fs::metadata(model.path()).unwrap().len(), model_bytes);
        let found = detect(&model);
        let part = found.part(Role::Diffusion, "a model").unwrap();
        assert!(part.is_read_by(FAMILIES[0].name), "{part}");
        (FAMILIES[0].read)(&model, part).unwrap().manifest(&model).unwrap();
        let encoders: Vec<String> = small.encoders.iter().map(|(key, _)| encoder_file(key)).collect();
        for name in &encoders {
            let encoder = open("text_encoders", name);
            let found = detect(&encoder);
            assert!(found.part(Role::Text, "an encoder").is_ok(), "{name}");
        }
        let mut files = vec![("diffusion_models", MODEL), ("loras", LORA)];
        files.extend(encoders.iter().map(|name| ("text_encoders", name.as_str())));
        let tensors: u64 = files.iter().map(|(folder, name)| open(folder, name).tensor_bytes()).sum();
        assert_eq!(tensors, bytes(small));
        // A pair for every matrix, in the names of the model.
        let lora = open("loras", LORA);
        let matrices = model.entries().iter().filter(|entry| entry.shape().dims().len() == 2).count();
        assert_eq!(lora.entries().len(), 2 * matrices);
        let file = patch::PatchFile::read(&lora).unwrap();
        assert_eq!(file.changes().len(), matrices);
        assert!(file.unrecognised().is_empty());
    }

    #[test]
    fn the_published_model_has_its_size() {
        let values: u64 =
            model(&FAMILIES[0].released).iter().map(|made| made.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(values, 11_901_408_320);
    }

    #[test]
    fn weights_are_random_and_no_two_matrices_the_same() {
        let dir = testkit::ScratchDir::new().unwrap();
        let path = dir.path().join("a.safetensors");
        let tensors = ["a", "b"].map(|name| Made::matrix(name, 512, 512));
        write(&path, &tensors).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        let [a, b] = ["a", "b"].map(|name| file.bytes(file.entry(name).unwrap()));
        assert_ne!(a, b);
        let values = testkit::decode(Encoding::BF16, a).unwrap();
        let deviation = (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt();
        // Rows differ in scale, so the few of a small matrix are not as large as all are together.
        assert!((0.5..2.0).contains(&(deviation * 512f32.sqrt())), "{deviation}");
    }
}
