//! Text encoders from every kind of file that people have, on every placement: small encoders whose values are
//! known, under each set of tensor names and in each encoding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;

use checkpoint::Checkpoint;
use meta::{DType, DeviceId, Encoding, QuantFormat, Shape};
use models::text::{
    Embeddings, EncodeOptions, Encoded, Frame, Layer, PromptOptions, Symbol, T5Tokenizer, TextEncoder,
    TextModel, Token, Tokens,
};
use models::{Error, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use support::{checkpoint, machine, open, open_on_cpu, plan};
use testkit::{
    GgufValue, GgufWriter, SafetensorsWriter, ScratchDir, assert_close, decode, encode, random_normal,
};

type Tensors = Vec<(String, Shape, Vec<f32>)>;

/// Adds a tensor of random values of this size.
fn add(tensors: &mut Tensors, name: impl Into<String>, shape: impl Into<Shape>, scale: f32, offset: f32) {
    let shape = shape.into();
    let values = random_normal(tensors.len() as u64, shape.count());
    tensors.push((name.into(), shape, values.iter().map(|v| v * scale + offset).collect()));
}

/// A T5 of two layers: 64 wide, 2 heads, 96 tokens.
fn small_t5() -> Tensors {
    let mut tensors = Vec::new();
    add(&mut tensors, "shared.weight", [96, 64], 1.0, 0.0);
    for i in 0..2 {
        let name = |module: &str| format!("encoder.block.{i}.layer.{module}.weight");
        for module in ["q", "k", "v", "o"] {
            add(&mut tensors, name(&format!("0.SelfAttention.{module}")), [64, 64], 0.1, 0.0);
        }
        if i == 0 {
            add(&mut tensors, name("0.SelfAttention.relative_attention_bias"), [32, 2], 1.0, 0.0);
        }
        add(&mut tensors, name("0.layer_norm"), [64], 0.1, 1.0);
        add(&mut tensors, name("1.layer_norm"), [64], 0.1, 1.0);
        add(&mut tensors, name("1.DenseReluDense.wi_0"), [128, 64], 0.1, 0.0);
        add(&mut tensors, name("1.DenseReluDense.wi_1"), [128, 64], 0.1, 0.0);
        add(&mut tensors, name("1.DenseReluDense.wo"), [64, 128], 0.1, 0.0);
    }
    add(&mut tensors, "encoder.final_layer_norm.weight", [64], 0.1, 1.0);
    tensors
}

/// A CLIP of two layers, wide enough for the plain GELU, which OpenCLIP's models all use.
fn small_clip(width: usize) -> Tensors {
    let mut tensors = Vec::new();
    add(&mut tensors, "text_model.embeddings.token_embedding.weight", [50, width], 1.0, 0.0);
    add(&mut tensors, "text_model.embeddings.position_embedding.weight", [16, width], 0.1, 0.0);
    for i in 0..2 {
        let mut layer = |module: &str, rows: usize, columns: usize| {
            let name = format!("text_model.encoder.layers.{i}.{module}");
            match columns {
                0 => add(&mut tensors, format!("{name}.weight"), [rows], 0.1, 1.0),
                _ => add(&mut tensors, format!("{name}.weight"), [rows, columns], 0.03, 0.0),
            }
            add(&mut tensors, format!("{name}.bias"), [rows], 0.1, 0.0);
        };
        layer("layer_norm1", width, 0);
        for module in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            layer(&format!("self_attn.{module}"), width, width);
        }
        layer("layer_norm2", width, 0);
        layer("mlp.fc1", 96, width);
        layer("mlp.fc2", width, 96);
    }
    add(&mut tensors, "text_model.final_layer_norm.weight", [width], 0.1, 1.0);
    add(&mut tensors, "text_model.final_layer_norm.bias", [width], 0.1, 0.0);
    add(&mut tensors, "text_projection.weight", [width, width], 0.03, 0.0);
    tensors
}

fn in_memory(name: &'static str, bytes: Vec<u8>) -> Checkpoint {
    Checkpoint::from_memory((name, bytes.into()), Vec::new()).unwrap()
}

fn safetensors(tensors: &Tensors, encoding: Encoding) -> Checkpoint {
    let add = |writer: SafetensorsWriter<'static>, (name, shape, values): &(String, Shape, Vec<f32>)| {
        writer.values(name.clone(), encoding, *shape, values).unwrap()
    };
    in_memory("small.safetensors", tensors.iter().fold(SafetensorsWriter::new(), add).finish().unwrap())
}

/// The name that language model converters give a tensor of T5.
fn converters_name(name: &str) -> String {
    let outer = [
        ("shared.weight", "token_embd.weight"),
        ("encoder.final_layer_norm.weight", "enc.output_norm.weight"),
        ("encoder.block.", "enc.blk."),
        ("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
        ("layer.0.SelfAttention.", "attn_"),
        ("layer.0.layer_norm", "attn_norm"),
        ("layer.1.layer_norm", "ffn_norm"),
        ("layer.1.DenseReluDense.wi_0", "ffn_gate"),
        ("layer.1.DenseReluDense.wi_1", "ffn_up"),
        ("layer.1.DenseReluDense.wo", "ffn_down"),
    ];
    outer.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

fn gguf(tensors: &Tensors, encoding: Encoding, writer: GgufWriter<'static>) -> Checkpoint {
    let add = |writer: GgufWriter<'static>, (name, shape, values): &(String, Shape, Vec<f32>)| {
        let matrix = shape.rank() == 2 && !name.contains("relative_attention_bias");
        let encoding = if matrix { encoding } else { Encoding::F32 };
        writer.values(converters_name(name), encoding, *shape, values).unwrap()
    };
    in_memory("small.gguf", tensors.iter().fold(writer, add).finish().unwrap())
}

fn read(checkpoint: &Checkpoint) -> Box<dyn TextEncoder> {
    read_model(checkpoint).encoder
}

fn read_model(checkpoint: &Checkpoint) -> TextModel {
    TextModel::read_all(checkpoint, &detect(checkpoint)).unwrap().remove(0)
}

/// Two chunks of 12 tokens, some of them weighted.
fn tokens() -> Tokens {
    let frame = Frame { start: Some(2), end: Some(1), pad: 0, max_len: Some(12), min_len: 12 };
    let token = |id: u32, weight: f32| Token { symbol: Symbol::Id(id), weight };
    let chunk = |first: u32| {
        let mut chunk = frame.empty(12);
        for i in 0..7 {
            chunk[1 + i] = token(first + i as u32 * 3, if i == 4 { 1.3 } else { 1.0 });
        }
        chunk[8] = token(1, 1.0);
        chunk
    };
    Tokens { chunks: vec![chunk(7), chunk(20)], missing: Vec::new(), frame }
}

fn encode_with(checkpoint: &Checkpoint, options: EncodeOptions<'_>) -> Encoded {
    let encoder = read(checkpoint);
    let session = open_on_cpu(encoder.manifest(checkpoint).unwrap());
    encoder.encode(&session, &tokens(), options).unwrap()
}

fn values(checkpoint: &Checkpoint) -> Vec<f32> {
    encode_with(checkpoint, EncodeOptions::default()).cond.to_vec().unwrap()
}

#[test]
fn t5_under_the_names_of_converters() {
    let tensors = small_t5();
    let plain = values(&safetensors(&tensors, Encoding::F32));
    assert_eq!(plain, values(&gguf(&tensors, Encoding::F32, GgufWriter::new())));
    let quantised = values(&gguf(&tensors, QuantFormat::Q8_0.into(), GgufWriter::new()));
    assert_close("Q8_0", &quantised, &plain, 0.05);
    assert_ne!(quantised, plain);
}

#[test]
fn every_encoding_is_read_as_its_values() {
    let tensors = small_t5();
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        let rounded: Tensors = tensors
            .iter()
            .map(|(name, shape, values)| {
                let values = decode(dtype.into(), &encode(dtype.into(), values).unwrap()).unwrap();
                (name.clone(), *shape, values)
            })
            .collect();
        let expected = values(&safetensors(&rounded, Encoding::F32));
        assert_close(dtype.name(), &values(&safetensors(&tensors, dtype.into())), &expected, 1e-6);
    }
}

#[test]
fn scaled_weights_are_multiplied() {
    let fp8 = Encoding::from(DType::F8E4M3);
    let (mut writer, mut expected) = (SafetensorsWriter::new(), Vec::new());
    writer = writer.values("scaled_fp8", fp8, Shape::from([0]), &[]).unwrap();
    for (i, (name, shape, values)) in small_t5().into_iter().enumerate() {
        if shape.rank() < 2 {
            writer = writer.values(name.clone(), Encoding::F32, shape, &values).unwrap();
            expected.push((name, shape, values));
            continue;
        }
        let scale = 0.25 + i as f32 / 16.0;
        let stored = decode(fp8, &encode(fp8, &values).unwrap()).unwrap();
        writer = writer.values(name.clone(), fp8, shape, &values).unwrap();
        let scale_name = name.replace(".weight", ".scale_weight");
        writer = writer.values(scale_name, Encoding::F32, Shape::scalar(), &[scale]).unwrap();
        expected.push((name, shape, stored.iter().map(|v| v * scale).collect()));
    }
    let scaled = in_memory("scaled.safetensors", writer.finish().unwrap());
    assert_close("scaled", &values(&scaled), &values(&safetensors(&expected, Encoding::F32)), 1e-5);
}

#[test]
fn clip_under_the_names_of_open_clip() {
    const WIDTH: usize = 832;
    let tensors = small_clip(WIDTH);
    let by_name: HashMap<&str, &(String, Shape, Vec<f32>)> =
        tensors.iter().map(|tensor| (tensor.0.as_str(), tensor)).collect();
    let value = |name: &str| by_name[name].2.clone();
    let mut open: Tensors = vec![
        (
            "token_embedding.weight".into(),
            [50, WIDTH].into(),
            value("text_model.embeddings.token_embedding.weight"),
        ),
        (
            "positional_embedding".into(),
            [16, WIDTH].into(),
            value("text_model.embeddings.position_embedding.weight"),
        ),
        ("ln_final.weight".into(), [WIDTH].into(), value("text_model.final_layer_norm.weight")),
        ("ln_final.bias".into(), [WIDTH].into(), value("text_model.final_layer_norm.bias")),
    ];
    let projection = value("text_projection.weight");
    let transposed = (0..WIDTH * WIDTH).map(|i| projection[i % WIDTH * WIDTH + i / WIDTH]).collect();
    open.push(("text_projection".into(), [WIDTH, WIDTH].into(), transposed));
    for i in 0..2 {
        let ours = format!("text_model.encoder.layers.{i}");
        let theirs = format!("transformer.resblocks.{i}");
        let names = [
            ("layer_norm1", "ln_1"),
            ("layer_norm2", "ln_2"),
            ("self_attn.out_proj", "attn.out_proj"),
            ("mlp.fc1", "mlp.c_fc"),
            ("mlp.fc2", "mlp.c_proj"),
        ];
        for (our, their) in names {
            for kind in ["weight", "bias"] {
                let (_, shape, values) = by_name[format!("{ours}.{our}.{kind}").as_str()];
                open.push((format!("{theirs}.{their}.{kind}"), *shape, values.clone()));
            }
        }
        for (kind, shape) in [("weight", Shape::from([3 * WIDTH, WIDTH])), ("bias", [3 * WIDTH].into())] {
            let parts = ["q", "k", "v"].map(|part| value(&format!("{ours}.self_attn.{part}_proj.{kind}")));
            open.push((format!("{theirs}.attn.in_proj_{kind}"), shape, parts.concat()));
        }
    }
    let prefixed =
        open.into_iter().map(|(name, shape, v)| (format!("conditioner.embedders.1.model.{name}"), shape, v));
    let (a, b) = (safetensors(&tensors, Encoding::F32), safetensors(&prefixed.collect(), Encoding::F32));
    let (a, b) = (encode_with(&a, EncodeOptions::default()), encode_with(&b, EncodeOptions::default()));
    assert_eq!(a.cond.to_vec().unwrap(), b.cond.to_vec().unwrap());
    let pooled = |encoded: &Encoded| encoded.pooled.as_ref().unwrap().to_vec().unwrap();
    assert_close("pooled", &pooled(&b), &pooled(&a), 1e-5);
}

#[test]
fn layers_are_counted_from_the_end() {
    let file = safetensors(&small_clip(64), Encoding::F32);
    let of = |layer: Layer| {
        let options = EncodeOptions { layer, ..EncodeOptions::default() };
        encode_with(&file, options).cond.to_vec().unwrap()
    };
    let last = of(Layer::Last);
    assert_eq!(of(Layer::Skip(1)), last);
    assert_eq!(of(Layer::Skip(9)), last);
    assert_ne!(of(Layer::Skip(2)), last);
    assert_ne!(of(Layer::SkipRaw(1)), last);
    assert_ne!(of(Layer::SkipRaw(2)), of(Layer::Skip(2)));
}

#[test]
fn the_same_bits_on_every_placement() {
    for file in [safetensors(&small_clip(64), Encoding::F16), safetensors(&small_t5(), Encoding::F16)] {
        let encoder = read(&file);
        let expected = values(&file);
        for (allocation, remote) in [
            ("sim:0,30kb;cpu,*", RemotePolicy::Auto),
            ("sim:0,30kb;sim:1,*", RemotePolicy::Auto),
            ("sim:0,30kb;sim:1,*", RemotePolicy::InPlace),
        ] {
            let residency = Residency::new(machine(&["1gb@50gbps", "1gb@50gbps"]));
            let manifest = encoder.manifest(&file).unwrap();
            let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), allocation, remote);
            let session = open(&residency, manifest, plan);
            let encoded = encoder.encode(&session, &tokens(), EncodeOptions::default()).unwrap();
            assert_eq!(encoded.cond.to_vec().unwrap(), expected, "{allocation} {remote:?}");
        }
    }
}

#[test]
fn a_learned_vector_stands_where_its_token_would() {
    let tensors = small_clip(64);
    let file = safetensors(&tensors, Encoding::F32);
    let encoder = read(&file);
    let session: Session = open_on_cpu(encoder.manifest(&file).unwrap());
    let expected = encoder.encode(&session, &tokens(), EncodeOptions::default()).unwrap();
    let Symbol::Id(id) = tokens().chunks[1][3].symbol else { panic!("not an id") };
    let row = &tensors[0].2[id as usize * 64..][..64];
    let vectors = [&[0.5; 64][..], row].concat();
    let vectors = session.lane().unwrap().tensor([2, 64], &vectors).unwrap();
    let embeddings = Embeddings::from([("mine".to_owned(), vectors)]);
    let mut named = tokens();
    named.chunks[1][3].symbol = Symbol::Embedding { name: "mine".into(), row: 1 };
    let options = EncodeOptions { embeddings: Some(&embeddings), ..EncodeOptions::default() };
    let got = encoder.encode(&session, &named, options).unwrap();
    assert_eq!(got.cond.to_vec().unwrap(), expected.cond.to_vec().unwrap());
    let error = encoder.encode(&session, &named, EncodeOptions::default()).unwrap_err();
    assert!(error.to_string().contains("'mine'") && error.to_string().contains("not loaded"), "{error}");
}

#[test]
fn wrong_files_and_tokens_say_what_they_are() {
    let vae = checkpoint("wan_2.1_vae_tiny");
    let error = TextModel::read_all(&vae, &detect(&vae)).unwrap_err();
    assert!(matches!(&error, Error::WrongKind { .. }), "{error}");

    let mut cut = small_t5();
    cut.retain(|(name, ..)| name != "encoder.block.1.layer.1.DenseReluDense.wo.weight");
    let file = safetensors(&cut, Encoding::F32);
    let error = read(&file).manifest(&file).unwrap_err().to_string();
    assert!(error.contains("encoder.block.1.layer.1.DenseReluDense.wo.weight"), "{error}");

    let file = safetensors(&small_t5(), Encoding::F32);
    let encoder = read(&file);
    let session = open_on_cpu(encoder.manifest(&file).unwrap());
    let mut wild = tokens();
    wild.chunks[0][2].symbol = Symbol::Id(96);
    let error = encoder.encode(&session, &wild, EncodeOptions::default()).unwrap_err().to_string();
    assert!(error.contains("96"), "{error}");
}

/// A unigram tokenizer as converters write it into a file.
fn with_tokenizer(writer: GgufWriter<'static>) -> GgufWriter<'static> {
    let pieces =
        [("<pad>", 3, 0.0), ("</s>", 3, 0.0), ("<unk>", 2, 0.0), ("\u{2581}cat", 1, -2.0), ("s", 1, -1.0)];
    let array = |values: Vec<GgufValue>| GgufValue::Array(values);
    writer
        .value("tokenizer.ggml.model", "t5")
        .value("tokenizer.ggml.tokens", array(pieces.iter().map(|p| GgufValue::String(p.0.into())).collect()))
        .value("tokenizer.ggml.token_type", array(pieces.iter().map(|p| GgufValue::I32(p.1)).collect()))
        .value("tokenizer.ggml.scores", array(pieces.iter().map(|p| GgufValue::F32(p.2)).collect()))
}

#[test]
fn a_file_s_own_tokenizer_wins() {
    let ids = |checkpoint: &Checkpoint| {
        let tokenizer = read_model(checkpoint).tokenizer;
        tokenizer.tokenize("cats", PromptOptions::default(), 0).ids(0).unwrap()
    };
    let embedded =
        T5Tokenizer::embedded().unwrap().tokenize("cats", PromptOptions::default()).ids(0).unwrap();
    let tensors = small_t5();
    assert_eq!(ids(&gguf(&tensors, Encoding::F32, with_tokenizer(GgufWriter::new()))), [3, 4, 1]);
    assert_eq!(ids(&gguf(&tensors, Encoding::F32, GgufWriter::new())), embedded);

    let umt5 = checkpoint("umt5xxl_tiny");
    assert_eq!(ids(&umt5), [1160, 261, 1]);

    let folder = ScratchDir::new().unwrap();
    let path = folder.join("t5.safetensors");
    let add = |writer: SafetensorsWriter<'static>, (name, shape, values): &(String, Shape, Vec<f32>)| {
        writer.values(name.clone(), Encoding::F32, *shape, values).unwrap()
    };
    tensors.iter().fold(SafetensorsWriter::new(), add).write(&path).unwrap();
    assert_eq!(ids(&Checkpoint::open(&path).unwrap()), embedded);
    let json = |cat: &str| {
        format!(
            r#"{{"model": {{"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0],
            ["{cat}", -1.0], ["s", -1.0], ["\u2581cats", -1.5]]}}}}"#
        )
    };
    std::fs::write(folder.join("tokenizer.json"), r#"{"model": {"type": "WordLevel", "vocab": {}}}"#)
        .unwrap();
    assert_eq!(ids(&Checkpoint::open(&path).unwrap()), embedded);
    let larger = (0..100).map(|i| format!(r#"["p{i}", -1.0]"#)).collect::<Vec<_>>().join(", ");
    let larger = json("x").replace("]]", &format!("], {larger}]"));
    std::fs::write(folder.join("tokenizer.json"), larger).unwrap();
    assert_eq!(ids(&Checkpoint::open(&path).unwrap()), embedded);
    std::fs::write(folder.join("tokenizer.json"), json("x")).unwrap();
    assert_eq!(ids(&Checkpoint::open(&path).unwrap()), [5, 1]);
    std::fs::write(folder.join("t5.tokenizer.json"), json("\u{2581}cat").replace("cats\"", "dogs\""))
        .unwrap();
    assert_eq!(ids(&Checkpoint::open(&path).unwrap()), [3, 4, 1]);
    std::fs::write(folder.join("t5.tokenizer.json"), "{").unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let error = TextModel::read_all(&file, &detect(&file)).unwrap_err().to_string();
    assert!(error.contains("t5.tokenizer.json"), "{error}");
}
