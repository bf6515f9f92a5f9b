//! Model files of random weights, made in seconds: a FLUX model of the published or of a small size, text encoders of the
//! widths that it takes, and a LoRA for all its matrices.
//!
//! Weights are cut from one stretch of random values per amplitude, so that making them costs no more than writing them;
//! which values they are does not matter to the time of a step, only that they are not all the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use checkpoint::{NewTensor, SafetensorsHead};
use meta::{DType, Encoding, Shape};
use testkit::Procedural;

/// Random values that weights of one amplitude are cut from.
const STRETCH: usize = 4 << 20;
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
pub(super) const MODEL: &str = "served-flux.safetensors";
pub(super) const CLIP: &str = "served-clip-l.safetensors";
pub(super) const T5: &str = "served-t5.safetensors";
pub(super) const LORA: &str = "served-lora.safetensors";

/// The sizes of a FLUX model and of what it draws.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) hidden: usize,
    pub(super) head: usize,
    pub(super) double_blocks: usize,
    pub(super) single_blocks: usize,
    /// Width of T5's and of CLIP's results.
    pub(super) context: usize,
    pub(super) pooled: usize,
    /// Width and height of the picture.
    pub(super) pixels: usize,
    /// Text tokens of a prompt.
    pub(super) text: usize,
}

impl Sizes {
    /// FLUX.1 as it was published, at its usual picture.
    pub(super) const FULL: Sizes = Sizes {
        hidden: 3072,
        head: 128,
        double_blocks: 19,
        single_blocks: 38,
        context: 4096,
        pooled: 768,
        pixels: 1024,
        text: 512,
    };
    /// A model that two CPU cores can run.
    pub(super) const SMALL: Sizes = Sizes {
        hidden: 256,
        head: 64,
        double_blocks: 4,
        single_blocks: 8,
        context: 128,
        pooled: 128,
        pixels: 128,
        text: 256,
    };
}

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

/// Bytes of all files together, but for their heads.
pub(super) fn bytes(sizes: &Sizes) -> u64 {
    let model = flux(sizes);
    let all = [clip(sizes.pooled), t5(sizes.context), lora(&model), model];
    let values = |made: &Made| made.shape.iter().product::<usize>() as u64;
    all.iter().flatten().map(values).sum::<u64>() * DType::BF16.bytes() as u64
}

/// Writes all files below a models folder; the bytes of the model.
pub(super) fn write_all(models: &Path, sizes: &Sizes) -> Result<u64> {
    let write = |folder: &str, name: &str, tensors: &[Made]| -> Result<u64> {
        let folder = models.join(folder);
        std::fs::create_dir_all(&folder)?;
        write(&folder.join(name), tensors).with_context(|| format!("writing {name}"))
    };
    write("text_encoders", CLIP, &clip(sizes.pooled))?;
    write("text_encoders", T5, &t5(sizes.context))?;
    let model = flux(sizes);
    write("loras", LORA, &lora(&model))?;
    write("diffusion_models", MODEL, &model)
}

/// The tensors of a FLUX model, with guidance as dev has it.
fn flux(sizes: &Sizes) -> Vec<Made> {
    let Sizes { hidden, head, context, pooled, .. } = *sizes;
    let mut tensors = Vec::new();
    let mut linear = |name: String, out: usize, from: usize| {
        tensors.push(Made::matrix(format!("{name}.weight"), out, from));
        tensors.push(Made::bias(format!("{name}.bias"), out));
    };
    linear("img_in".to_owned(), hidden, 64);
    for (name, width) in [("time_in", 256), ("vector_in", pooled), ("guidance_in", 256)] {
        linear(format!("{name}.in_layer"), hidden, width);
        linear(format!("{name}.out_layer"), hidden, hidden);
    }
    linear("txt_in".to_owned(), hidden, context);
    for block in 0..sizes.double_blocks {
        for side in ["img", "txt"] {
            let name = |part: &str| format!("double_blocks.{block}.{side}_{part}");
            linear(name("mod.lin"), 6 * hidden, hidden);
            linear(name("attn.qkv"), 3 * hidden, hidden);
            linear(name("attn.proj"), hidden, hidden);
            linear(name("mlp.0"), 4 * hidden, hidden);
            linear(name("mlp.2"), hidden, 4 * hidden);
        }
    }
    for block in 0..sizes.single_blocks {
        let name = |part: &str| format!("single_blocks.{block}.{part}");
        linear(name("linear1"), 7 * hidden, hidden);
        linear(name("linear2"), hidden, 5 * hidden);
        linear(name("modulation.lin"), 3 * hidden, hidden);
    }
    linear("final_layer.linear".to_owned(), 64, hidden);
    linear("final_layer.adaLN_modulation.1".to_owned(), 2 * hidden, hidden);
    for kind in ["query_norm", "key_norm"] {
        for block in 0..sizes.double_blocks {
            for side in ["img", "txt"] {
                let name = format!("double_blocks.{block}.{side}_attn.norm.{kind}.scale");
                tensors.push(Made::factors(name, head));
            }
        }
        for block in 0..sizes.single_blocks {
            tensors.push(Made::factors(format!("single_blocks.{block}.norm.{kind}.scale"), head));
        }
    }
    // Published files have blocks one after the other.
    tensors.sort_by_cached_key(|tensor| place_of(&tensor.name));
    tensors
}

/// The part of the model that a tensor is in, and its number there.
fn place_of(name: &str) -> (usize, usize) {
    let mut parts = name.split('.');
    let part = ["double_blocks", "single_blocks", "final_layer"];
    let part = parts.next().and_then(|first| part.iter().position(|known| *known == first));
    let number = parts.next().and_then(|number| number.parse().ok());
    (part.map_or(0, |part| part + 1), number.unwrap_or(0))
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

fn t5(width: usize) -> Vec<Made> {
    let (inner, mlp) = (2 * TEXT_HEAD, TEXT_HEAD);
    let mut tensors = vec![Made::matrix("shared.weight", T5_TOKENS, 12)];
    tensors[0].shape = vec![T5_TOKENS, width];
    for block in 0..TEXT_LAYERS {
        let name = |part: &str| format!("encoder.block.{block}.layer.{part}.weight");
        for part in ["q", "k", "v"] {
            tensors.push(Made::matrix(name(&format!("0.SelfAttention.{part}")), inner, width));
        }
        tensors.push(Made::matrix(name("0.SelfAttention.o"), width, inner));
        if block == 0 {
            tensors.push(Made::matrix(name("0.SelfAttention.relative_attention_bias"), 32, 2));
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
    write_parts(draft.path(), &parts)?;
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

fn write_parts(path: &Path, parts: &[Part<'_>]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        let mut file = File::options().write(true).open(path)?;
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            part.write(&mut file)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(parts.len().max(1));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(written) => Ok(written?),
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
    let mut stretches = BTreeMap::new();
    for made in tensors {
        if let std::collections::btree_map::Entry::Vacant(place) = stretches.entry(key(made)) {
            let rule = Procedural::new(&made.name, made.amplitude, made.offset);
            place.insert(rule.encoded(Encoding::BF16, STRETCH)?);
        }
    }
    Ok(stretches)
}

#[cfg(test)]
mod tests {
    use checkpoint::Checkpoint;
    use models::detect::{Family, FluxVariant, Role, detect};
    use models::diffusion::flux::Flux;

    use super::*;

    #[test]
    fn what_is_written_is_what_its_name_says() {
        let dir = testkit::ScratchDir::new().unwrap();
        let model_bytes = write_all(dir.path(), &Sizes::SMALL).unwrap();
        let open = |folder: &str, name: &str| Checkpoint::open(dir.path().join(folder).join(name)).unwrap();
        let model = open("diffusion_models", MODEL);
        assert_eq!(std::fs::metadata(model.path()).unwrap().len(), model_bytes);
        let found = detect(&model);
        assert_eq!(found.part(Role::Diffusion, "a model").unwrap().family, Family::Flux(FluxVariant::Dev));
        let flux = Flux::read(&model, &found).unwrap();
        assert_eq!((flux.config().double_blocks, flux.config().single_blocks), (4, 8));
        flux.manifest(&model).unwrap();
        for name in [CLIP, T5] {
            let encoder = open("text_encoders", name);
            let found = detect(&encoder);
            assert!(found.part(Role::Text, "an encoder").is_ok(), "{name}");
        }
        let files =
            [("diffusion_models", MODEL), ("text_encoders", CLIP), ("text_encoders", T5), ("loras", LORA)];
        let tensors: u64 = files.iter().map(|(folder, name)| open(folder, name).tensor_bytes()).sum();
        assert_eq!(tensors, bytes(&Sizes::SMALL));
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
            flux(&Sizes::FULL).iter().map(|made| made.shape.iter().product::<usize>() as u64).sum();
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
        assert!((deviation * 512f32.sqrt() - 1.0).abs() < 0.05, "{deviation}");
    }
}
