//! A file of PyTorch's, however damaged, opens or is refused; nothing of it is called.
#![no_main]

use fuzz::Parser;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // An error is as good as an opened file; a panic, a hang or too much memory is neither.
    let _ = Parser::Pickle.open(data.to_vec());
});
