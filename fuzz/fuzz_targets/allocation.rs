//! An allocation text, whatever it says, parses or is refused with a place in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::AllocationText;

fuzz_target!(|data: &[u8]| {
    // An error is as good as an allocation; a panic or a hang is neither.
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = AllocationText::parse(text).map_err(|error| error.to_string());
    }
});
