//! A prompt, whatever it says, is accepted or rejected: no class is known, so only its form is looked at.
#![no_main]

use graph::{Catalogue, Literal, Prompt};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(literal) = serde_json::from_slice::<Literal>(data) else { return };
    if let Some(mut prompt) = Prompt::from_literal(&literal) {
        let _ = graph::validate(&Catalogue::default(), &mut prompt, None);
    }
});
