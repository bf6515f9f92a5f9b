//! The golden data that comes with the crate, read through the crate, holds what it says; and what the crate makes
//! (quantised blocks, 8-bit floats, procedural inputs, comparisons) agrees with it.

use half::f16;
use meta::{DType, Encoding, QuantFormat, Shape};
use testkit::{Error, Golden, Procedural, SafetensorsWriter, ScratchDir, encode, random_blocks, random_f32};

#[test]
fn quantising_the_sources_gives_the_golden_blocks() {
    let golden = Golden::bundled("quant/gguf_blocks.safetensors").unwrap();
    for format in
        [QuantFormat::Q8_0, QuantFormat::Q4_0, QuantFormat::Q4_1, QuantFormat::Q5_0, QuantFormat::Q5_1]
    {
        let (shape, source) = golden.tensor(&format!("{format}.source")).unwrap();
        assert_eq!(shape, Shape::from([4, 256]), "{format}");
        let want = golden.bytes(&format!("{format}.bytes")).unwrap();
        assert_eq!(encode(format.into(), &source).unwrap(), want, "{format}");
    }
}

#[test]
fn constant_and_zero_blocks_quantise_to_finite_scales() {
    for format in
        [QuantFormat::Q8_0, QuantFormat::Q4_0, QuantFormat::Q4_1, QuantFormat::Q5_0, QuantFormat::Q5_1]
    {
        for value in [0.0, 0.5, -0.5] {
            let block = encode(format.into(), &[value; 32]).unwrap();
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
            assert!(
                scale.is_finite() && (value != 0.0 || scale == 0.0),
                "{format} of {value}: scale {scale}"
            );
        }
    }
}

/// The scales are where the golden blocks have them: in each golden block the same bytes hold numbers of the
/// same range, and random bytes would not.
#[test]
fn random_blocks_are_like_the_golden_ones() {
    let golden = Golden::bundled("quant/gguf_blocks.safetensors").unwrap();
    for format in QuantFormat::ALL {
        let size = format.block_bytes();
        let ours = random_blocks(format, 1, 200);
        assert_eq!(ours.len(), 200 * size);
        assert_eq!(ours, random_blocks(format, 1, 200), "{format}: one seed, one result");
        assert_ne!(ours, random_blocks(format, 2, 200), "{format}");
        let scales = scale_positions(&ours, size);
        assert!(!scales.is_empty() && scales.len() <= 2, "{format}: scales at {scales:?}");
        let simple = matches!(
            format,
            QuantFormat::Q8_0 | QuantFormat::Q4_0 | QuantFormat::Q4_1 | QuantFormat::Q5_0 | QuantFormat::Q5_1
        );
        if !simple {
            let theirs = golden.bytes(&format!("{format}.bytes")).unwrap();
            assert_eq!(scales, scale_positions(theirs, size), "{format}");
        }
    }
}

/// Byte positions that hold an f16 between 0.01 and 0.05 in every block.
fn scale_positions(blocks: &[u8], size: usize) -> Vec<usize> {
    let sane = |block: &[u8], at: usize| {
        let value = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        (0.0099..0.0501).contains(&value)
    };
    (0..size - 1).filter(|&at| blocks.chunks(size).all(|block| sane(block, at))).collect()
}

#[test]
fn eight_bit_floats_agree_with_the_tables() {
    let golden = Golden::bundled("quant/fp8_tables.safetensors").unwrap();
    let bytes = golden.bytes("bytes").unwrap();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    for (name, dtype) in [("e4m3fn.f32", DType::F8E4M3), ("e5m2.f32", DType::F8E5M2)] {
        let (_, table) = golden.tensor(name).unwrap();
        for (&byte, (&want, got)) in
            bytes.iter().zip(table.iter().zip(testkit::decode(dtype.into(), bytes).unwrap()))
        {
            // The tables write NaN as 2^20 and infinities as 2^21 with their sign.
            let written = if got.is_nan() {
                1048576.0
            } else if got.is_infinite() {
                got.signum() * 2097152.0
            } else {
                got
            };
            assert_eq!(written.to_bits(), want.to_bits(), "{dtype} {byte:#04x}");
            if got.is_finite() {
                assert_eq!(encode(dtype.into(), &[want]).unwrap(), [byte], "{dtype} {want}");
            }
        }
    }
}

#[test]
fn noise_has_the_shapes_its_names_say() {
    let golden = Golden::bundled("noise.safetensors").unwrap();
    let mut plain = 0;
    for name in golden.names().filter(|name| name.starts_with("seed")) {
        let dims: Vec<usize> =
            name.split_once('.').unwrap().1.split('x').map(|d| d.parse().unwrap()).collect();
        let (shape, values) = golden.tensor(name).unwrap();
        assert_eq!((shape.dims(), values.len()), (&dims[..], shape.count()), "{name}");
        assert!(values.iter().all(|v| v.abs() < 6.0) && values.iter().any(|v| *v != 0.0), "{name}");
        plain += 1;
    }
    assert_eq!(plain, 23);
    assert!(matches!(golden.tensor("seed17"), Err(Error::Missing { what: "tensor", .. })));
}

/// A golden file like those of the forward passes: an input, a tensor and two tensors in pieces.
fn golden_like(folder: &ScratchDir, rows_like: &[f32], channels_like: &[f32]) -> Result<Golden, Error> {
    let rms = |part: &[f32]| (part.iter().map(|v| v * v).sum::<f32>() / part.len() as f32).sqrt();
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    let cols: Vec<f32> = rows_like[..32].iter().step_by(4).copied().collect();
    let row_rms: Vec<f32> = rows_like.chunks(8).map(rms).collect();
    let channels = [&channels_like[..4], &channels_like[8..12]].concat();
    let means: Vec<f32> = channels_like.chunks(4).map(mean).collect();
    let channel_rms: Vec<f32> = channels_like.chunks(4).map(rms).collect();
    let path = folder.join("golden.safetensors");
    SafetensorsWriter::new()
        .metadata("timestep", "0.75")
        .metadata("inputs", r#"{"x": {"name": "input.x", "shape": [1, 2, 2], "scale": 1.7, "offset": 0.0}}"#)
        .metadata("decode.input", r#"{"name": "input.latent", "shape": [3], "scale": 3.0, "offset": 0.5}"#)
        .metadata(
            "by_rows",
            r#"{"shape": [1, 6, 8], "sampled": "rows", "rows": 2, "cols_stride": 4, "cols_rows": 4}"#,
        )
        .metadata(
            "by_channels",
            r#"{"shape": [2, 3, 2, 2], "sampled": "channels", "first_item_channels": [0, 2]}"#,
        )
        .values("whole", Encoding::F32, Shape::from([1, 6, 8]), rows_like)?
        .values("by_rows.rows", Encoding::F32, Shape::from([2, 8]), &rows_like[..16])?
        .values("by_rows.cols", Encoding::F32, Shape::from([4, 2]), &cols)?
        .values("by_rows.rms", Encoding::F32, Shape::from([6]), &row_rms)?
        .values("by_channels.channels", Encoding::F32, Shape::from([1, 2, 2, 2]), &channels)?
        .values("by_channels.mean", Encoding::F32, Shape::from([2, 3]), &means)?
        .values("by_channels.rms", Encoding::F32, Shape::from([2, 3]), &channel_rms)?
        .write(&path)?;
    Golden::open(path)
}

#[test]
fn inputs_come_from_the_metadata() {
    let folder = ScratchDir::new().unwrap();
    let golden = golden_like(&folder, &[1.0; 48], &[1.0; 24]).unwrap();
    assert_eq!(golden.metadata("timestep").unwrap(), "0.75");
    let x = golden.input("x").unwrap();
    assert_eq!((x.shape, x.rule), (Shape::from([1, 2, 2]), Procedural::new("input.x", 1.7, 0.0)));
    assert_eq!(x.values(), Procedural::new("input.x", 1.7, 0.0).values(4));
    assert_eq!(golden.input("decode.input").unwrap().rule, Procedural::new("input.latent", 3.0, 0.5));
    assert!(matches!(golden.input("y"), Err(Error::Missing { what: "metadata", .. })));
    assert!(matches!(golden.input("timestep"), Err(Error::Json { .. })));
}

/// Changing any one value of a whole tensor is seen; of a sampled one, where a sample or a sum covers it.
#[test]
fn whole_and_sampled_tensors_compare() {
    let folder = ScratchDir::new().unwrap();
    let (rows_like, channels_like) = (random_f32(1, 48), random_f32(2, 24));
    let golden = golden_like(&folder, &rows_like, &channels_like).unwrap();
    for (name, shape, values) in [
        ("whole", Shape::from([1, 6, 8]), &rows_like),
        ("by_rows", Shape::from([1, 6, 8]), &rows_like),
        ("by_channels", Shape::from([2, 3, 2, 2]), &channels_like),
    ] {
        golden.assert_close(name, &shape, values, 1e-6);
        for at in 0..values.len() {
            let mut wrong = values.clone();
            wrong[at] += 0.1;
            let report = golden.compare(name, &shape, &wrong).unwrap();
            assert!(!report.passes(1e-3), "{name} changed at {at}: {report}");
            assert!(report.name.starts_with(name));
            wrong[at] = f32::NAN;
            let passes = golden.compare(name, &shape, &wrong).is_ok_and(|report| report.passes(f64::MAX));
            assert!(!passes, "{name} with NaN at {at}");
        }
        let flat = Shape::from([values.len()]);
        assert!(matches!(golden.compare(name, &flat, values), Err(Error::ShapeDiffers { .. })), "{name}");
    }
    assert!(matches!(golden.compare("absent", &Shape::scalar(), &[1.0]), Err(Error::Missing { .. })));
}

/// Pieces are of one tensor: how far one of their values is off does not depend on how large its neighbours are.
#[test]
fn values_of_a_piece_are_measured_against_the_whole_tensor() {
    let folder = ScratchDir::new().unwrap();
    let mut values = [1.0; 48];
    // Among the rows that are kept, and in none of the columns that are.
    values[1] = 10.0;
    let golden = golden_like(&folder, &values, &[1.0; 24]).unwrap();
    // Only in a column.
    values[16] += 0.5;
    let report = golden.compare("by_rows", &Shape::from([1, 6, 8]), &values).unwrap();
    assert_eq!(report.name, "by_rows.cols");
    assert!((report.relative - 0.05).abs() < 1e-6, "{report}");
}
