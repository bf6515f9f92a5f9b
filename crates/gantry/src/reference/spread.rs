//! A workflow whose loaders say where the bytes of their models go: each is replaced by its variant that takes an
//! allocation.

use graph::{Catalogue, Literal, Map, Prompt};
use meta::DeviceId;

use super::places::WayPlace;
use crate::cli::How;

/// What the variant of a loader that takes an allocation is called, behind the loader's own name.
const ENDING: &str = "DisTorch2MultiGPU";

/// Lets every loader that can put its model where the way says; how many there were.
pub(super) fn spread(prompt: &mut Prompt, catalogue: &Catalogue, place: &WayPlace) -> usize {
    let Some(allocation) = allocation(place) else { return 0 };
    let mut spread = 0;
    for node in prompt.nodes.values_mut() {
        let name = format!("{}{ENDING}", node.class_type.as_deref().unwrap_or_default());
        let Some(class) = catalogue.get(&name) else { continue };
        let schema = class.schema();
        let inputs = node.inputs.get_or_insert_with(Map::new);
        let said: [(&str, Literal); 6] = [
            ("compute_device", place.compute.to_string().into()),
            ("device", place.compute.to_string().into()),
            ("virtual_vram_gb", 0.0.into()),
            ("donor_device", DeviceId::CPU.to_string().into()),
            ("expert_mode_allocations", allocation.as_str().into()),
            ("eject_models", false.into()),
        ];
        // A loader calls its device by one name or the other.
        for (input, value) in said.into_iter().filter(|(input, _)| schema.find(input).is_some()) {
            inputs.insert(input.to_owned(), value);
        }
        node.class_type = Some(name);
        spread += 1;
    }
    spread
}

/// Where a way puts the bytes of a model, in the allocation language; none if they stay where it computes.
fn allocation(place: &WayPlace) -> Option<String> {
    match (place.how, place.other) {
        (How::Resident, _) => None,
        (How::Split, Some(other)) => Some(format!("{},50%;{other},50%", place.compute)),
        (How::Streamed | How::Split, _) => Some("cpu,*".to_owned()),
    }
}
