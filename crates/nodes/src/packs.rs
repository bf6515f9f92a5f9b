//! Packs whose classes are not here, by what their names begin or end with: a workflow that needs one is told which pack it
//! is and what does the same.

use crate::families;

/// A pack, and what to do without it.
struct Pack {
    /// Names begin with one of these.
    starts: &'static [&'static str],
    /// Or end with one of these.
    ends: &'static [&'static str],
    /// What it is, and what to do.
    about: &'static str,
}

/// The packs that most workflows with other models come from.
const PACKS: &[Pack] = &[
    Pack {
        starts: &["IPAdapter", "IPAAdapter", "PrepImageForClipVision", "ApplyIPAdapter"],
        ends: &[],
        about: "it is of ComfyUI_IPAdapter_plus, whose models (IPAdapter) do not run here; without them, say in the prompt what \
                the picture shows, or use a style model (StyleModelLoader, StyleModelApply) or an unCLIP checkpoint",
    },
    Pack {
        starts: &["AIO_Preprocessor", "ControlNetPreprocessor", "PixelPerfectResolution", "DWPose"],
        ends: &["Preprocessor", "Preprocessor_Provider", "PreprocessorSEGS"],
        about: "it is of comfyui_controlnet_aux, whose models (depth, pose, lines) do not run here; make the control picture with \
                another program and load it with LoadImage, or use Canny, which is here",
    },
    Pack {
        starts: &["InstantID", "ApplyInstantID", "PuLID", "ApplyPulid", "ReActor", "FaceAnalysis"],
        ends: &[],
        about: "it is of a pack that copies faces, whose models do not run here; take the node out, or use a LoRA of the person",
    },
    Pack {
        starts: &["ADE_", "AnimateDiff"],
        ends: &[],
        about: "it is of ComfyUI-AnimateDiff-Evolved, whose motion models do not run here; use a video model",
    },
    Pack {
        starts: &["UltimateSDUpscale"],
        ends: &[],
        about: "it is of ComfyUI_UltimateSDUpscale; use ImageUpscaleWithModel, then VAEEncodeTiled, KSampler with a denoise of \
                0.2 to 0.4, and VAEDecodeTiled",
    },
    Pack {
        starts: &["FaceDetailer", "SAMLoader", "UltralyticsDetectorProvider", "BboxDetector", "SEGS"],
        ends: &["DetailerForEach"],
        about: "it is of ComfyUI-Impact-Pack, whose detectors do not run here; paint a mask and use VAEEncodeForInpaint or \
                InpaintModelConditioning",
    },
];

/// What to do about a class that is not here, if its pack is known.
pub(crate) fn instead(class: &str) -> Option<&'static str> {
    let is_of = |pack: &&Pack| {
        pack.starts.iter().any(|start| class.starts_with(start))
            || pack.ends.iter().any(|end| class.ends_with(end))
    };
    PACKS.iter().find(is_of).map(|pack| pack.about).or_else(|| families::instead(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_known_by_their_classes() {
        for (class, pack) in [
            ("IPAdapterUnifiedLoader", "ComfyUI_IPAdapter_plus"),
            ("DepthAnythingPreprocessor", "comfyui_controlnet_aux"),
            ("ApplyInstantID", "faces"),
            ("ADE_LoadAnimateDiffModel", "AnimateDiff"),
            ("WanVideoModelLoaderMultiGPU", "WanVideoWrapper"),
            ("LoadWanVideoT5TextEncoder", "WanVideoWrapper"),
            ("UltimateSDUpscale", "ImageUpscaleWithModel"),
            ("FaceDetailer", "Impact"),
        ] {
            assert!(instead(class).is_some_and(|text| text.contains(pack)), "{class}");
        }
        assert_eq!(instead("KSampler"), None);
    }
}
