//! The marks of quantised layers, however damaged: a file with them opens or is refused. The first byte says where the mark
//! stands, the rest is its text.
#![no_main]

use fuzz::Parser;
use libfuzzer_sys::fuzz_target;

/// The description of a tensor.
fn tensor(name: &str, dtype: &str, shape: &str, [from, to]: [usize; 2]) -> String {
    format!("{name:?}:{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}")
}

fuzz_target!(|data: &[u8]| {
    let Some((place, text)) = data.split_first() else { return };
    // A layer that is well formed as int8 with one scale for each row.
    let mut tensors =
        vec![tensor("l.weight", "I8", "[4,16]", [0, 64]), tensor("l.weight_scale", "F32", "[4,1]", [64, 80])];
    let mut values = vec![1u8; 64];
    values.extend(1.0f32.to_le_bytes().repeat(4));
    if place % 2 == 0 {
        tensors.push(tensor("l.comfy_quant", "U8", &format!("[{}]", text.len()), [80, 80 + text.len()]));
        values.extend(text);
    } else {
        let quoted = String::from_utf8_lossy(text).escape_default().to_string().replace("\\'", "'");
        tensors.push(format!("\"__metadata__\":{{\"_quantization_metadata\":\"{quoted}\"}}"));
    }
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(values);
    // An error is as good as an opened file; a panic, a hang or too much memory is neither.
    let _ = Parser::Safetensors.open(file);
});
