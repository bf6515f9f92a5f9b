//! Copies, conversions, borders, tables and noise.

use device::op::{Copy, Embedding, NormalNoise, Pad, Padding};
use device::{Buffer, Error};
use meta::QuantFormat;
use testkit::{Golden, random_blocks};

use crate::*;

/// A tensor of zeros of a type.
fn zeros(device: &Device, dtype: DType, shape: impl Into<Shape>) -> Operand {
    let shape = shape.into();
    stored(device, &vec![0; shape.count() * dtype.bytes()], dtype, shape)
}

/// Bytes for `count` values of a type: numbers from -5 to 7, which every float holds, unsigned where it is.
fn small_numbers(dtype: DType, count: usize) -> Vec<u8> {
    let numbers = (0..count as i64).map(|i| i * 7 % 13 - 5);
    let bytes_of = |v: i64| match dtype {
        DType::I64 => v.to_le_bytes().to_vec(),
        DType::I32 => (v as i32).to_le_bytes().to_vec(),
        DType::I16 => (v as i16).to_le_bytes().to_vec(),
        DType::I8 => (v as i8).to_le_bytes().to_vec(),
        DType::U64 => (v.unsigned_abs()).to_le_bytes().to_vec(),
        DType::U32 => (v.unsigned_abs() as u32).to_le_bytes().to_vec(),
        DType::U16 => (v.unsigned_abs() as u16).to_le_bytes().to_vec(),
        DType::U8 => vec![v.unsigned_abs() as u8],
        DType::Bool => vec![(v & 1) as u8],
        float => testkit::encode(float.into(), &[v as f32]).unwrap(),
    };
    numbers.flat_map(bytes_of).collect()
}

/// The values of any plain view as f64; they must be small.
fn numbers(device: &Device, view: &Operand) -> Vec<f64> {
    let bytes = elements(device, view).concat();
    testkit::decode(view.encoding(), &bytes).unwrap().into_iter().map(f64::from).collect()
}

/// What a number becomes in a type that does not hold all of them.
fn narrowed(v: f64, to: DType) -> f64 {
    match to {
        DType::Bool => f64::from(u8::from(v != 0.0)),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => v.max(0.0),
        _ => v,
    }
}

#[test]
fn every_type_to_every_type_in_every_layout() {
    let device = cpu();
    for from in DType::ALL {
        let source = |dims: &[usize]| {
            let shape = Shape::new(dims).unwrap();
            stored(&device, &small_numbers(from, shape.count()), from, shape)
        };
        let sources = [
            source(&[3, 5, 7]),
            source(&[7, 3, 5]).permute(&[1, 2, 0]).unwrap(),
            source(&[3, 5, 9]).slice(2, 1, 7).unwrap(),
            source(&[3, 1, 7]).broadcast([3, 5, 7]).unwrap(),
        ];
        for to in DType::ALL {
            let targets = [
                zeros(&device, to, [3, 5, 7]),
                zeros(&device, to, [5, 7, 3]).permute(&[2, 0, 1]).unwrap(),
                zeros(&device, to, [3, 11, 7]).slice(1, 4, 5).unwrap(),
            ];
            for (i, x) in sources.iter().enumerate() {
                for (j, out) in targets.iter().enumerate() {
                    launch(&device, Copy { x: x.clone(), out: out.clone() }).unwrap();
                    let want: Vec<f64> = numbers(&device, x).into_iter().map(|v| narrowed(v, to)).collect();
                    assert_eq!(numbers(&device, out), want, "{from} {i} to {to} {j}");
                }
            }
        }
    }
}

#[test]
fn integers_keep_all_digits_and_saturate() {
    let device = cpu();
    let given = [i64::MIN, i64::MAX, (1 << 53) + 1, -((1 << 31) + 1), 300, -1, 0];
    let bytes: Vec<u8> = given.iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = stored(&device, &bytes, DType::I64, [7]);
    let copied = |to: DType| {
        let out = zeros(&device, to, [7]);
        launch(&device, Copy { x: x.clone(), out: out.clone() }).unwrap();
        elements(&device, &out).concat()
    };
    let i32s: Vec<u8> = given
        .iter()
        .flat_map(|v| (*v).clamp(i64::from(i32::MIN), i64::from(i32::MAX)).to_le_bytes()[..4].to_vec())
        .collect();
    assert_eq!(copied(DType::I32), i32s);
    assert_eq!(copied(DType::U8), [0, 255, 255, 0, 255, 0, 0]);
    assert_eq!(copied(DType::Bool), [1, 1, 1, 1, 1, 1, 0]);
    let u64s: Vec<u8> = given.iter().flat_map(|v| ((*v).max(0) as u64).to_le_bytes()).collect();
    assert_eq!(copied(DType::U64), u64s);
    let f64s: Vec<u8> = given.iter().flat_map(|v| (*v as f64).to_le_bytes()).collect();
    assert_eq!(copied(DType::F64), f64s);
}

#[test]
fn floats_are_cut_toward_zero_and_saturate() {
    let device = cpu();
    let given = [1.9, -1.9, 3e9, -3e9, f32::NAN, f32::INFINITY, 0.0];
    let check = |x: Operand| {
        let out = zeros(&device, DType::I32, [7]);
        launch(&device, Copy { x, out: out.clone() }).unwrap();
        let got: Vec<i32> =
            elements(&device, &out).iter().map(|b| i32::from_le_bytes(b[..].try_into().unwrap())).collect();
        assert_eq!(got, [1, -1, i32::MAX, i32::MIN, 0, i32::MAX, 0]);
    };
    check(tensor(&device, &given, [7]));
    let wide: Vec<u8> = given.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
    check(stored(&device, &wide, DType::F64, [7]));
}

#[test]
fn large_copies_permutations_and_casts() {
    let device = cpu();
    let x = random(&device, 1, [5, 131, 203]);
    let given = values(&device, &x);
    for order in [[0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0]] {
        let view = x.permute(&order).unwrap();
        let out = blank(&device, *view.shape());
        launch(&device, Copy { x: view.clone(), out: out.clone() }).unwrap();
        assert!(values(&device, &out) == values(&device, &view), "reading {order:?}");
        let place = blank(&device, [5, 131, 203]).permute(&order).unwrap();
        let source = random(&device, 2, *place.shape());
        launch(&device, Copy { x: source.clone(), out: place.clone() }).unwrap();
        assert!(values(&device, &place) == values(&device, &source), "writing {order:?}");
    }
    let turned = random(&device, 3, [300, 421]).transpose(0, 1).unwrap();
    let out = blank(&device, [421, 300]);
    launch(&device, Copy { x: turned.clone(), out: out.clone() }).unwrap();
    assert!(values(&device, &out) == values(&device, &turned), "more than one square of squares");
    let half = zeros(&device, DType::BF16, [5, 131, 203]);
    launch(&device, Copy { x: x.clone(), out: half.clone() }).unwrap();
    let want = testkit::encode(Encoding::BF16, &given).unwrap();
    assert!(elements(&device, &half).concat() == want, "f32 to bf16");
    let back = blank(&device, [5, 131, 203]);
    launch(&device, Copy { x: half, out: back.clone() }).unwrap();
    assert!(values(&device, &back) == testkit::decode(Encoding::BF16, &want).unwrap(), "bf16 to f32");
}

#[test]
fn unaligned_bytes_of_a_file_are_read() {
    let device = cpu();
    let given = testkit::random_f32(3, 15);
    let mut bytes = vec![0xFF];
    bytes.extend(given.iter().flat_map(|v| v.to_le_bytes()));
    let x = Operand::new(Buffer::over(Arc::new(bytes)), Encoding::F32, [3, 5], 1).unwrap();
    let (out, turned) = (blank(&device, [3, 5]), blank(&device, [5, 3]));
    launch(&device, Copy { x: x.clone(), out: out.clone() }).unwrap();
    assert_eq!(values(&device, &out), given);
    launch(&device, Copy { x: x.transpose(0, 1).unwrap(), out: turned.clone() }).unwrap();
    assert_eq!(values(&device, &turned.transpose(0, 1).unwrap()), given);
}

#[test]
fn quantised_tensors_unpack_alike_in_every_way() {
    let device = cpu();
    for format in QuantFormat::ALL {
        let n = 2 * format.block_len();
        let bytes = random_blocks(format, 5, 40);
        let table = stored(&device, &bytes, format, [20, n]);
        let whole = blank(&device, [20, n]);
        launch(&device, Copy { x: table.clone(), out: whole.clone() }).unwrap();
        let want = values(&device, &whole);
        assert!(want.iter().any(|v| *v != 0.0) && want.iter().all(|v| v.is_finite()), "{format}");
        let half = zeros(&device, DType::F16, [20, n]);
        launch(&device, Copy { x: table.clone(), out: half.clone() }).unwrap();
        let narrow = testkit::encode(Encoding::F16, &want).unwrap();
        assert!(elements(&device, &half).concat() == narrow, "{format} to f16");

        let ids = [19i32, 0, 7, 7, 3, 1];
        let ids_bytes: Vec<u8> = ids.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ids_operand = stored(&device, &ids_bytes, DType::I32, [2, 3]);
        let out = blank(&device, [2, 3, n]);
        launch(&device, Embedding { table, scales: None, ids: ids_operand, out: out.clone() }).unwrap();
        let rows: Vec<f32> = ids.iter().flat_map(|i| want[*i as usize * n..][..n].to_vec()).collect();
        assert!(values(&device, &out) == rows, "rows of {format}");
    }
}

#[test]
fn ids_outside_the_table_are_named() {
    let device = cpu();
    let table = random(&device, 1, [10, 4]);
    for bad in [10i64, -1, i64::MAX] {
        let bytes: Vec<u8> = [3, bad].iter().flat_map(|v| v.to_le_bytes()).collect();
        let ids = stored(&device, &bytes, DType::I64, [2]);
        let result = launch(
            &device,
            Embedding { table: table.clone(), scales: None, ids, out: blank(&device, [2, 4]) },
        );
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Operand { op: "embedding", operand: "ids", .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&bad.to_string()) && text.contains("10 rows"), "{text}");
    }
    let bytes: Vec<u8> = [9i64, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let (ids, out) = (stored(&device, &bytes, DType::I64, [2]), blank(&device, [2, 4]));
    launch(&device, Embedding { table: table.clone(), scales: None, ids, out: out.clone() }).unwrap();
    let given = values(&device, &table);
    assert_eq!(values(&device, &out), [&given[36..], &given[..4]].concat());
}

/// A border by plain loops.
fn padded(x: &Operand, given: &[f32], before: &[usize], padding: Padding, out: &Shape) -> Vec<f64> {
    let value = |flat: usize| {
        let (mut rest, mut at, mut step) = (flat, 0, 1);
        for axis in (0..x.rank()).rev() {
            let n = x.dim(axis) as isize;
            let mut i = (rest % out.dims()[axis]) as isize - before[axis] as isize;
            rest /= out.dims()[axis];
            if i < 0 || i >= n {
                i = match padding {
                    Padding::Constant(value) => return f64::from(value),
                    Padding::Replicate => i.clamp(0, n - 1),
                    Padding::Circular => (i + n) % n,
                    Padding::Reflect if i < 0 => -i,
                    Padding::Reflect => 2 * (n - 1) - i,
                };
            }
            at += i as usize * step;
            step *= x.dim(axis);
        }
        f64::from(given[at])
    };
    (0..out.count()).map(value).collect()
}

#[test]
fn borders_of_every_kind_and_rank() {
    let device = cpu();
    for padding in [Padding::Constant(-1.5), Padding::Replicate, Padding::Reflect, Padding::Circular] {
        for dims in [&[6][..], &[4, 5], &[3, 4, 5], &[3, 4, 5, 6]] {
            let rank = dims.len();
            let reversed: Vec<usize> = dims.iter().rev().copied().collect();
            let order: Vec<usize> = (0..rank).rev().collect();
            let views = [
                random(&device, 1, Shape::new(dims).unwrap()),
                random(&device, 2, Shape::new(&reversed).unwrap()).permute(&order).unwrap(),
            ];
            for x in views {
                let before: Vec<usize> = (0..rank).map(|axis| axis % 3).collect();
                let sizes: Vec<usize> =
                    (0..rank).map(|axis| before[axis] + dims[axis] + (axis + 1) % 3).collect();
                let shape = Shape::new(&sizes).unwrap();
                let out = blank(&device, shape);
                let call = Pad { x: x.clone(), before: before.clone(), padding, out: out.clone() };
                launch(&device, call).unwrap();
                let want = padded(&x, &values(&device, &x), &before, padding, &shape);
                assert_near(&format!("{padding:?} around {}", x.shape()), &values(&device, &out), &want, 0.0);
            }
        }
    }
    let (x, out) = (blank(&device, [2, 0]), blank(&device, [3, 2]));
    launch(&device, Pad { x, before: vec![1, 1], padding: Padding::Constant(4.0), out: out.clone() })
        .unwrap();
    assert_eq!(values(&device, &out), [4.0; 6]);
    let (x, out) = (tensor(&device, &[2.5], Shape::scalar()), blank(&device, Shape::scalar()));
    launch(&device, Pad { x, before: vec![], padding: Padding::Replicate, out: out.clone() }).unwrap();
    assert_eq!(values(&device, &out), [2.5]);
}

#[test]
fn noise_is_that_of_pytorch_to_the_bit() {
    let device = cpu();
    let golden = Golden::bundled("noise.safetensors").unwrap();
    let mut compared = 0;
    for name in golden.names() {
        // Other names hold later calls of a generator, or other kinds of noise.
        let Some(seed) = name.strip_prefix("seed").and_then(|rest| rest.split('.').next()) else { continue };
        let (shape, want) = golden.tensor(name).unwrap();
        let out = blank(&device, shape);
        launch(&device, NormalNoise { seed: seed.parse().unwrap(), out: out.clone() }).unwrap();
        let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        assert!(bits(values(&device, &out)) == bits(want), "{name}");
        compared += 1;
    }
    assert!(compared == 23, "{compared} tensors of noise were compared");
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let x = random(&device, 1, [65, 33, 129]);
    assert_threads_do_not_matter("permutation", || {
        let out = blank(&device, [129, 65, 33]);
        launch(&device, Copy { x: x.permute(&[2, 0, 1]).unwrap(), out: out.clone() }).unwrap();
        values(&device, &out)
    });
    assert_threads_do_not_matter("border", || {
        let out = blank(&device, [67, 40, 140]);
        let before = vec![1, 3, 5];
        launch(&device, Pad { x: x.clone(), before, padding: Padding::Reflect, out: out.clone() }).unwrap();
        values(&device, &out)
    });
}
