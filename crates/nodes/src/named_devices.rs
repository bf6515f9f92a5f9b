//! Which devices a prompt names, before it runs: a job has them for itself while it does.

use std::collections::BTreeSet;

use graph::{Literal, Prompt};
use meta::DeviceId;
use placement::AllocationText;

/// How inputs end that say in the allocation language where bytes go.
const ALLOCATIONS: &str = "expert_mode_allocations";
/// The input that lets older loaders spread over all accelerators.
const ALL_OTHERS: &str = "use_other_vram";
/// The input that lets the evaluations of a step run on several accelerators, whichever are fastest.
const SEVERAL: &str = "max_gpus";

/// The accelerators among `known` that the constants of a prompt name, in whatever node they stand: a name may reach its
/// loader over a link. The host is everybody's, so it is not among them.
#[must_use]
pub fn named_devices(prompt: &Prompt, known: &[DeviceId]) -> BTreeSet<DeviceId> {
    let inputs = prompt.nodes.values().filter_map(|node| node.inputs.as_ref()).flatten();
    let mut named: BTreeSet<DeviceId> =
        inputs.flat_map(|(name, value)| named_by(name, value, known)).collect();
    named.retain(|device| *device != DeviceId::CPU && known.contains(device));
    named
}

fn named_by(input: &str, value: &Literal, known: &[DeviceId]) -> Vec<DeviceId> {
    let is_several = input == SEVERAL && value.as_int().is_none_or(|count| count > 1);
    if is_several || (input == ALL_OTHERS && matches!(value, Literal::Bool(true))) {
        return known.to_vec();
    }
    let Some(text) = value.as_text() else { return Vec::new() };
    if input.ends_with(ALLOCATIONS) {
        // One that cannot be read fails its node, and names nothing.
        let parsed = AllocationText::parse_for(text, known);
        return parsed.map(|parsed| parsed.allocation().devices()).unwrap_or_default();
    }
    numbered_gpu(text, known.iter().copied()).or_else(|| text.parse().ok()).into_iter().collect()
}

/// The accelerator that ComfyUI calls `gpu:0`, `gpu:1` and so on, in the order of their ids.
pub(crate) fn numbered_gpu(name: &str, known: impl Iterator<Item = DeviceId>) -> Option<DeviceId> {
    let number: usize = name.strip_prefix("gpu:")?.parse().ok()?;
    let accelerators: BTreeSet<DeviceId> = known.filter(|id| *id != DeviceId::CPU).collect();
    accelerators.into_iter().nth(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{PromptNode, map};

    fn named(inputs: Vec<(&'static str, Literal)>) -> Vec<String> {
        let known = [DeviceId::CPU, DeviceId::sim(0), DeviceId::sim(1), DeviceId::sim(2)];
        let mut prompt = Prompt::default();
        let node = PromptNode { inputs: Some(map(inputs)), ..PromptNode::default() };
        prompt.nodes.insert("1".into(), node);
        named_devices(&prompt, &known).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn constants_name_devices() {
        assert!(named(vec![("text", "a red fox".into()), ("device", "cpu".into())]).is_empty());
        assert_eq!(named(vec![("device", "sim:1".into())]), ["sim:1"]);
        assert_eq!(
            named(vec![("compute_device", "sim:2".into()), ("donor_device", "sim:0".into())]),
            ["sim:0", "sim:2"]
        );
        assert!(named(vec![("device", "sim:7".into())]).is_empty(), "there is none");
        assert_eq!(named(vec![("device", "gpu:1".into())]), ["sim:1"]);
        assert!(named(vec![("device", "gpu:3".into())]).is_empty(), "there is none");
        assert_eq!(named(vec![("max_gpus", Literal::Int(2))]).len(), 3);
        assert!(named(vec![("max_gpus", Literal::Int(1))]).is_empty());
    }

    #[test]
    fn allocations_name_devices() {
        let spread = |text: &str| named(vec![("expert_mode_allocations", text.into())]);
        assert_eq!(spread("sim:0,50%;sim:1,50%"), ["sim:0", "sim:1"]);
        assert_eq!(spread("#sim:2;1.5;sim:0,cpu"), ["sim:0", "sim:2"]);
        assert!(spread("").is_empty());
        assert!(spread("nonsense").is_empty());
        assert_eq!(named(vec![("use_other_vram", true.into())]), ["sim:0", "sim:1", "sim:2"]);
    }
}
