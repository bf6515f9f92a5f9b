//! Writes small model files for tests: well-formed ones by description, and headers with anything in them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]

/// A tensor to be written: safetensors dtype or GGUF type number, dimensions outermost first, bytes.
#[derive(Clone, Debug)]
pub struct Tensor<T> {
    pub name: String,
    pub kind: T,
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// A tensor to be written.
pub fn tensor<T>(name: &str, kind: T, dims: &[u64], bytes: &[u8]) -> Tensor<T> {
    Tensor { name: name.to_owned(), kind, dims: dims.to_vec(), bytes: bytes.to_vec() }
}

/// A safetensors file with this header, whatever it says, and this data.
pub fn safetensors_raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A well-formed safetensors file.
pub fn safetensors(metadata: &[(&str, &str)], tensors: &[Tensor<&str>]) -> Vec<u8> {
    let mut fields = Vec::new();
    if !metadata.is_empty() {
        let pairs: Vec<String> = metadata.iter().map(|(k, v)| format!("{}:{}", json(k), json(v))).collect();
        fields.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        fields.push(format!(
            "{}:{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{begin},{}]}}",
            json(&tensor.name),
            tensor.kind,
            tensor.dims,
            data.len()
        ));
    }
    safetensors_raw(&format!("{{{}}}", fields.join(",")), &data)
}

/// An index of shards.
pub fn index(weights: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = weights.iter().map(|(t, f)| format!("{}:{}", json(t), json(f))).collect();
    format!("{{\"metadata\":{{\"total_size\":1}},\"weight_map\":{{{}}}}}", pairs.join(","))
}

fn json(text: &str) -> String {
    serde_json::to_string(text).expect("text is always JSON")
}

/// A GGUF file to be written.
#[derive(Clone, Debug)]
pub struct Gguf {
    pub version: u32,
    pub alignment: u64,
    /// Keys, and values as [`value`] makes them.
    pub pairs: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Tensor<u32>>,
}

impl Gguf {
    /// Version 3 with the default alignment.
    pub fn new(pairs: &[(&str, Vec<u8>)], tensors: &[Tensor<u32>]) -> Gguf {
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        Gguf { version: 3, alignment: 32, pairs, tensors: tensors.to_vec() }
    }

    /// The file with each tensor after the one before it.
    pub fn write(&self) -> Vec<u8> {
        let mut at = 0;
        let mut offsets = Vec::new();
        for tensor in &self.tensors {
            offsets.push(at);
            at = (at + tensor.bytes.len() as u64).next_multiple_of(self.alignment);
        }
        self.write_at(&offsets)
    }

    /// The file with the tensors at these offsets, as far as the header goes.
    pub fn write_at(&self, offsets: &[u64]) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            file.extend(text(key.as_bytes()));
            file.extend(value);
        }
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            file.extend(text(tensor.name.as_bytes()));
            file.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().rev().for_each(|dim| file.extend(dim.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
        }
        for tensor in &self.tensors {
            file.resize((file.len() as u64).next_multiple_of(self.alignment) as usize, 0);
            file.extend(&tensor.bytes);
        }
        file
    }
}

/// Text as GGUF has it: a length, then the bytes.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A GGUF value: its type number, then its bytes.
pub fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

/// A GGUF value of text.
pub fn str_value(content: &str) -> Vec<u8> {
    value(8, &text(content.as_bytes()))
}

/// A GGUF value of type u32.
pub fn u32_value(number: u32) -> Vec<u8> {
    value(4, &number.to_le_bytes())
}

/// A GGUF array: its element type, its length, then its elements' bytes.
pub fn array_value(kind: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    value(9, &[&kind.to_le_bytes()[..], &len.to_le_bytes(), bytes].concat())
}
