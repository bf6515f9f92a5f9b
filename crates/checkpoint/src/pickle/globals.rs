//! What of Python a pickle of tensors may name: functions that describe tensors, and types of values. Nothing of it is called.

use meta::DType;

/// Something of Python that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    /// `(storage, offset, size, stride, …)` is a tensor.
    RebuildTensor,
    /// The same with the type of its values as the seventh argument.
    RebuildTensorOfType,
    /// The first argument, as a model's own.
    RebuildParameter,
    /// A dictionary, of the pairs that it is given.
    Dict,
    /// A dictionary whose values come with its state.
    ParameterDict,
    /// An object of the class that is its first argument.
    Reconstructor,
    /// Its argument, which is a tuple.
    Size,
    /// Bytes of values of one type.
    Storage(DType),
    /// Bytes of values whose type the tensor says.
    UntypedStorage,
    /// The type of a tensor's values.
    Type(DType),
    /// Makes something that no tensor needs, such as a number of NumPy's.
    Inert,
}

/// What a name of a module is.
pub(super) fn find(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensorOfType,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::RebuildParameter,
        ("collections", "OrderedDict" | "defaultdict") => Global::Dict,
        ("torch.nn.modules.container", "ParameterDict") => Global::ParameterDict,
        ("copyreg" | "copy_reg", "_reconstructor") => Global::Reconstructor,
        ("torch", "Size") => Global::Size,
        ("torch" | "torch.storage", "UntypedStorage") => Global::UntypedStorage,
        ("torch" | "torch.cuda", storage) if storage.ends_with("Storage") => {
            Global::Storage(storage_type(storage)?)
        }
        ("torch", name) if type_of(name).is_some() => Global::Type(type_of(name)?),
        ("torch", "device")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")
        | ("numpy", "dtype")
        | ("_codecs", "encode")
        | ("builtins" | "__builtin__", "set" | "object" | "dict" | "int" | "float" | "list") => Global::Inert,
        _ => return None,
    })
}

fn storage_type(name: &str) -> Option<DType> {
    Some(match name {
        "DoubleStorage" => DType::F64,
        "FloatStorage" => DType::F32,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "LongStorage" => DType::I64,
        "IntStorage" => DType::I32,
        "ShortStorage" => DType::I16,
        "CharStorage" => DType::I8,
        "ByteStorage" => DType::U8,
        "BoolStorage" => DType::Bool,
        _ => return None,
    })
}

fn type_of(name: &str) -> Option<DType> {
    Some(match name {
        "float64" | "double" => DType::F64,
        "float32" | "float" => DType::F32,
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "int64" | "long" => DType::I64,
        "int32" | "int" => DType::I32,
        "int16" | "short" => DType::I16,
        "int8" => DType::I8,
        "uint64" => DType::U64,
        "uint32" => DType::U32,
        "uint16" => DType::U16,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        _ => return None,
    })
}
