//! Tiles of coded weights by vector instructions. What comes out is what [`codec::Portable`] gives, byte for byte.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod groups;

use codec::{Portable, TileCoder};

/// Every coder that this processor can run, the fastest last.
pub fn tile_coders() -> Vec<&'static dyn TileCoder> {
    #[allow(unused_mut, reason = "not every processor has vector instructions that are used here")]
    let mut coders: Vec<&'static dyn TileCoder> = vec![&Portable];
    #[cfg(target_arch = "x86_64")]
    {
        coders.extend(avx2::Avx2::detect().map(|coder| coder as &dyn TileCoder));
        coders.extend(avx512::Avx512::detect().map(|coder| coder as &dyn TileCoder));
    }
    coders
}

/// The fastest coder of this processor for what is coded: that of AVX2, which codes more bytes per second than that of AVX-512 on
/// every processor that was measured (`gantry bench codec`).
pub fn encoder() -> &'static dyn TileCoder {
    #[cfg(target_arch = "x86_64")]
    if let Some(coder) = avx2::Avx2::detect() {
        return coder;
    }
    &Portable
}

/// The same for what is decoded.
pub fn decoder() -> &'static dyn TileCoder {
    tile_coders().pop().unwrap_or(&Portable)
}
