//! The entropy mixer that NumPy calls SeedSequence: integers in, well-spread 32-bit words out.

const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;

/// `count` words for this entropy and spawn key, with a pool of `pool_size` words.
pub(super) fn words(entropy: u64, spawn_key: &[u64], pool_size: usize, count: usize) -> Vec<u32> {
    let mut input = split(entropy);
    if !spawn_key.is_empty() {
        input.resize(input.len().max(pool_size), 0);
        input.extend(spawn_key.iter().flat_map(|k| split(*k)));
    }
    let pool = mix(&input, pool_size);
    let mut constant = INIT_B;
    (0..count)
        .map(|i| {
            let value = pool[i % pool_size] ^ constant;
            constant = constant.wrapping_mul(MULT_B);
            fold(value.wrapping_mul(constant))
        })
        .collect()
}

/// An integer as 32-bit words, the lowest first, at least one.
fn split(value: u64) -> Vec<u32> {
    let (low, high) = (value as u32, (value >> 32) as u32);
    if high == 0 { vec![low] } else { vec![low, high] }
}

fn fold(value: u32) -> u32 {
    value ^ (value >> 16)
}

fn mix(input: &[u32], pool_size: usize) -> Vec<u32> {
    let mut constant = INIT_A;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(MULT_A);
        fold(value.wrapping_mul(constant))
    };
    let join = |x: u32, y: u32| fold(x.wrapping_mul(MIX_LEFT).wrapping_sub(y.wrapping_mul(MIX_RIGHT)));
    let mut pool: Vec<u32> = (0..pool_size).map(|i| hash(input.get(i).copied().unwrap_or(0))).collect();
    for from in 0..pool_size {
        for to in (0..pool_size).filter(|to| *to != from) {
            pool[to] = join(pool[to], hash(pool[from]));
        }
    }
    for &word in input.iter().skip(pool_size) {
        for slot in &mut pool {
            *slot = join(*slot, hash(word));
        }
    }
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_numpys() {
        // numpy.random.SeedSequence(42).generate_state(4), whose pool has four words.
        assert_eq!(words(42, &[], 4, 4), [3_444_837_047, 2_669_555_309, 2_046_530_742, 3_581_440_988]);
    }
}
