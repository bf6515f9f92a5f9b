//! The parsers under test, and valid files for each to start from.

use std::borrow::Cow;
use std::sync::LazyLock;

use checkpoint::{Checkpoint, Error};
use meta::DType;
use testkit::pickle::{PickleForm, PickledTensor, pickled};

use super::exercise::exercise;
use crate::writer::{
    Gguf, Tensor, array_value, index, safetensors, str_value, tensor, text, u32_value, value,
};

/// One of the crate's parsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
    Safetensors,
    Gguf,
    SafetensorsIndex,
    Pickle,
}

impl Parser {
    pub const ALL: [Parser; 4] =
        [Parser::Safetensors, Parser::Gguf, Parser::SafetensorsIndex, Parser::Pickle];

    /// The most memory that opening may take at once, for each byte of the input. An instruction of a pickle may be one byte
    /// and make a value; the limit on the length of pickles bounds what that comes to.
    pub fn bytes_per_input_byte(self) -> u64 {
        match self {
            Parser::Pickle => 96,
            _ => super::MAX_BYTES_PER_INPUT_BYTE,
        }
    }

    /// Valid files.
    pub fn seeds(self) -> Vec<Vec<u8>> {
        match self {
            Parser::Safetensors => safetensors_seeds(),
            Parser::Gguf => gguf_seeds(),
            Parser::SafetensorsIndex => vec![
                index(&[("a", SHARDS[0].0), ("b", SHARDS[1].0)]).into_bytes(),
                index(&[("b", SHARDS[1].0)]).into_bytes(),
            ],
            Parser::Pickle => pickle_seeds(),
        }
    }

    /// Opens a file and reads all that it has.
    pub fn open(self, file: Vec<u8>) -> Result<(), Error> {
        let opened = match self {
            Parser::Safetensors => {
                Checkpoint::from_memory(("input.safetensors", Cow::Owned(file)), Vec::new())
            }
            Parser::Gguf => {
                let parts = vec![("input-00002-of-00002.gguf", Cow::Borrowed(SECOND_PART.as_slice()))];
                Checkpoint::from_memory(("input-00001-of-00002.gguf", Cow::Owned(file)), parts)
            }
            Parser::SafetensorsIndex => {
                let parts = SHARDS.map(|(name, bytes)| (name, Cow::Borrowed(bytes))).into();
                Checkpoint::from_memory(("input.safetensors.index.json", Cow::Owned(file)), parts)
            }
            Parser::Pickle => Checkpoint::from_memory(("input.pth", Cow::Owned(file)), Vec::new()),
        };
        let checkpoint = opened.inspect_err(|error| {
            assert!(error.file().to_str().is_some_and(|name| !name.is_empty()), "{error:?}");
            assert!(error.to_string().starts_with(error.file().to_str().unwrap_or("?")), "{error}");
        })?;
        std::hint::black_box(exercise(&checkpoint));
        Ok(())
    }
}

/// The shards that an index under test may name.
const SHARDS: [(&str, &[u8]); 2] = [
    (
        "m-00001-of-00002.safetensors",
        b"\x35\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}A",
    ),
    (
        "m-00002-of-00002.safetensors",
        b"\x35\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}B",
    ),
];

/// The second part that a split GGUF under test may ask for.
static SECOND_PART: LazyLock<Vec<u8>> =
    LazyLock::new(|| Gguf::new(&split(1), &[tensor("second", 24, &[5], &[9; 5])]).write());

/// The keys of part `number`, from 0, of two parts with four tensors.
fn split(number: u16) -> [(&'static str, Vec<u8>); 3] {
    [
        ("split.no", value(2, &number.to_le_bytes())),
        ("split.count", value(2, &2u16.to_le_bytes())),
        ("split.tensors.count", value(5, &4i32.to_le_bytes())),
    ]
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    let scaled = [
        tensor("blocks.0.attn.weight", "F8_E4M3", &[4, 6], &[7; 24]),
        tensor("blocks.0.attn.scale_weight", "F32", &[], &[1; 4]),
        tensor("blocks.0.attn.bias", "BF16", &[4], &[2; 8]),
        tensor("scaled_fp8", "F8_E4M3", &[2], &[0; 2]),
    ];
    let many: Vec<Tensor<&str>> = (0..40)
        .map(|i| tensor(&format!("t{i}"), "I16", &[i % 3, 2], &vec![3; (i % 3 * 4) as usize]))
        .collect();
    vec![
        safetensors(&[("format", "pt"), ("note", "a \"quoted\" \\ text")], &scaled),
        safetensors(&[], &many),
        safetensors(&[("only", "metadata")], &[]),
    ]
}

fn gguf_seeds() -> Vec<Vec<u8>> {
    let tokens: Vec<u8> = (0..50).flat_map(|i| text(format!("token {i}").as_bytes())).collect();
    let shape: Vec<u8> = [8i32, 4, 16].into_iter().flat_map(i32::to_le_bytes).collect();
    let pairs = [
        ("general.architecture", str_value("flux")),
        ("general.alignment", u32_value(64)),
        ("tokenizer.ggml.tokens", array_value(8, 50, &tokens)),
        ("tokenizer.ggml.scores", array_value(6, 20, &[0; 80])),
        ("comfy.gguf.orig_shape.conv.weight", array_value(5, 3, &shape)),
        ("flag", value(7, &[1])),
        ("ratio", value(12, &0.5f64.to_le_bytes())),
    ];
    let tensors = [
        tensor("conv.weight", 12, &[2, 256], &[1; 288]),
        tensor("out.weight", 8, &[3, 32], &[2; 102]),
        tensor("out.bias", 0, &[3], &[3; 12]),
    ];
    let many: Vec<Tensor<u32>> =
        (0..40).map(|i| tensor(&format!("t{i}"), 24, &[i % 3], &vec![3; (i % 3) as usize])).collect();
    vec![
        Gguf { alignment: 64, ..Gguf::new(&pairs, &tensors) }.write(),
        Gguf::new(&split(0), &tensors).write(),
        Gguf { version: 2, ..Gguf::new(&[], &many) }.write(),
    ]
}

fn pickle_seeds() -> Vec<Vec<u8>> {
    let tensor = |name, dtype, shape, bytes| PickledTensor { name, dtype, shape, bytes };
    let tensors = [
        tensor("conv.weight", DType::F16, &[2, 3, 1][..], &[7; 12][..]),
        tensor("conv.bias", DType::F32, &[2], &[1; 8]),
        tensor("steps", DType::I64, &[], &[3; 8]),
        tensor("none", DType::F32, &[0, 4], &[]),
    ];
    let forms = [PickleForm::Archive, PickleForm::Legacy];
    let wrapped = forms.map(|form| pickled(form, Some("params_ema"), &tensors));
    let plain = forms.map(|form| pickled(form, None, &tensors));
    [wrapped, plain].concat()
}
