//! Coded weights, however damaged, are decoded or refused, and every tile by itself too.
#![no_main]

use codec::Portable;
use fuzz::coded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // An error is as good as decoded weights; a panic, a hang or too much memory is neither.
    let _ = coded::exercise(&[&Portable], data);
});
