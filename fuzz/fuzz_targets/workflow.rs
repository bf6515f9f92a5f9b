//! A workflow file as an editor saves it, however damaged, becomes a prompt or is refused.
#![no_main]

use graph::{Catalogue, Literal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(literal) = serde_json::from_slice::<Literal>(data) else { return };
    let _ = workflow::to_prompt(&literal, &Catalogue::default());
});
