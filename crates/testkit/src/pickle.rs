//! PyTorch's checkpoints, written without Python: the zip archive of today and the row of pickles from before 2020, byte for
//! byte in the form that `torch.save` gives them, but for what nobody reads.

use meta::DType;

/// Which form is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickleForm {
    /// A zip archive with the pickle and one entry per storage.
    Archive,
    /// Pickles, then the storages.
    Legacy,
}

/// A tensor to be written, the only one in its storage.
#[derive(Clone, Copy, Debug)]
pub struct PickledTensor<'a> {
    /// Its key.
    pub name: &'a str,
    /// The type of its values.
    pub dtype: DType,
    /// Its size.
    pub shape: &'a [usize],
    /// Its values.
    pub bytes: &'a [u8],
}

/// Writes instructions of a pickle.
#[derive(Clone, Debug, Default)]
pub struct Pickler {
    /// What was written.
    pub bytes: Vec<u8>,
    form: Option<PickleForm>,
}

impl Pickler {
    /// The start of a pickle whose storages are named as a form has them.
    #[must_use]
    pub fn new(form: PickleForm) -> Pickler {
        Pickler { bytes: b"\x80\x02".to_vec(), form: Some(form) }
    }

    /// Instructions as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Pickler {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A text.
    pub fn text(&mut self, text: &str) -> &mut Pickler {
        self.raw(b"X").raw(&(text.len() as u32).to_le_bytes()).raw(text.as_bytes())
    }

    /// A number.
    pub fn int(&mut self, value: u64) -> &mut Pickler {
        match value {
            0..=0xff => self.raw(&[b'K', value as u8]),
            0x100..=0x7fff_ffff => self.raw(b"J").raw(&(value as u32).to_le_bytes()),
            _ => self.raw(&[0x8a, 8]).raw(&value.to_le_bytes()),
        }
    }

    /// Something of Python.
    pub fn global(&mut self, module: &str, name: &str) -> &mut Pickler {
        self.raw(format!("c{module}\n{name}\n").as_bytes())
    }

    /// A tuple of numbers.
    pub fn ints(&mut self, values: &[u64]) -> &mut Pickler {
        self.raw(b"(");
        for value in values {
            self.int(*value);
        }
        self.raw(b"t")
    }

    /// A tensor that begins at `offset` in storage number `storage` and has these strides.
    pub fn tensor(
        &mut self,
        tensor: &PickledTensor<'_>,
        storage: usize,
        offset: u64,
        strides: &[u64],
    ) -> &mut Pickler {
        let shape: Vec<u64> = tensor.shape.iter().map(|size| *size as u64).collect();
        let count = tensor.bytes.len() / tensor.dtype.bytes();
        self.global("torch._utils", "_rebuild_tensor_v2").raw(b"((").text("storage");
        self.global("torch", storage_class(tensor.dtype)).text(&storage.to_string()).text("cpu");
        self.int(count as u64);
        // The older form also says of which other storage this one is a part.
        if self.form == Some(PickleForm::Legacy) {
            self.raw(b"N");
        }
        self.raw(b"tQ").int(offset).ints(&shape).ints(strides).raw(b"\x89");
        self.global("collections", "OrderedDict").raw(b")RtR")
    }
}

/// A dictionary of tensors, under a key of another one if there is a wrapper.
#[must_use]
pub fn pickled(form: PickleForm, wrapper: Option<&str>, tensors: &[PickledTensor<'_>]) -> Vec<u8> {
    let mut pickle = Pickler::new(form);
    if let Some(wrapper) = wrapper {
        pickle.raw(b"}(").text("epoch").int(7).text(wrapper);
    }
    pickle.global("collections", "OrderedDict").raw(b")R(");
    for (number, tensor) in tensors.iter().enumerate() {
        pickle.text(tensor.name).tensor(tensor, number, 0, &packed_strides(tensor.shape));
    }
    pickle.raw(b"u");
    if wrapper.is_some() {
        pickle.raw(b"u");
    }
    pickle.raw(b".");
    let storages: Vec<(&[u8], DType)> = tensors.iter().map(|tensor| (tensor.bytes, tensor.dtype)).collect();
    with_storages(form, &pickle.bytes, &storages)
}

/// A pickle with its storages, which are called 0, 1, 2, …
#[must_use]
pub fn with_storages(form: PickleForm, pickle: &[u8], storages: &[(&[u8], DType)]) -> Vec<u8> {
    match form {
        PickleForm::Archive => {
            let mut files =
                vec![("archive/data.pkl".to_owned(), pickle), ("archive/byteorder".into(), &b"little"[..])];
            files.extend(
                storages.iter().enumerate().map(|(i, (bytes, _))| (format!("archive/data/{i}"), *bytes)),
            );
            files.push(("archive/version".into(), b"3\n"));
            archive(&files)
        }
        PickleForm::Legacy => {
            let mut file = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
            let mut about = Pickler::new(form);
            about.raw(b"}(").text("protocol_version").int(1001).text("little_endian").raw(b"\x88u.");
            file.extend(about.bytes);
            file.extend(pickle);
            let mut names = Pickler::new(form);
            names.raw(b"](");
            for number in 0..storages.len() {
                names.text(&number.to_string());
            }
            names.raw(b"e.");
            file.extend(names.bytes);
            for (bytes, dtype) in storages {
                file.extend(((bytes.len() / dtype.bytes()) as u64).to_le_bytes());
                file.extend_from_slice(bytes);
            }
            file
        }
    }
}

/// Values from one index of each dimension to the next, of a tensor whose values stand in order.
#[must_use]
pub fn packed_strides(shape: &[usize]) -> Vec<u64> {
    let after = |axis: usize| shape[axis + 1..].iter().map(|size| (*size as u64).max(1)).product();
    (0..shape.len()).map(after).collect()
}

/// A zip archive of entries that are stored as they are, each beginning at a multiple of 64 bytes.
fn archive(files: &[(String, &[u8])]) -> Vec<u8> {
    const ALIGNMENT: usize = 64;
    let (mut bytes, mut list) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let start = bytes.len();
        let end_of_head = start + 30 + name.len() + 4;
        let padding = end_of_head.next_multiple_of(ALIGNMENT) - end_of_head;
        let (sum, len) = (crc32(content).to_le_bytes(), (content.len() as u32).to_le_bytes());
        // Version 0, nothing flagged, stored, no date.
        let about = [&[0; 10][..], &sum, &len, &len, &(name.len() as u16).to_le_bytes()].concat();
        let about = &about[2..];
        bytes.extend([b"PK\x03\x04", &[0, 0][..], about].concat());
        bytes.extend((padding as u16 + 4).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend([b"FB", &(padding as u16).to_le_bytes()[..], &vec![b'Z'; padding]].concat());
        bytes.extend_from_slice(content);
        list.extend([b"PK\x01\x02", &[0; 4][..], about, &[0; 12]].concat());
        list.extend((start as u32).to_le_bytes());
        list.extend_from_slice(name.as_bytes());
    }
    let (at, count) = ((bytes.len() as u32).to_le_bytes(), (files.len() as u16).to_le_bytes());
    let len = (list.len() as u32).to_le_bytes();
    bytes.extend(list);
    bytes.extend([b"PK\x05\x06", &[0; 4][..], &count, &count, &len, &at, &[0; 2]].concat());
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xEDB8_8320 } else { 0 })
    };
    !bytes.iter().fold(!0, step)
}

/// The class of a storage of these values.
fn storage_class(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "DoubleStorage",
        DType::F32 => "FloatStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        DType::I64 => "LongStorage",
        DType::I32 => "IntStorage",
        DType::I16 => "ShortStorage",
        DType::I8 => "CharStorage",
        DType::Bool => "BoolStorage",
        _ => "ByteStorage",
    }
}
