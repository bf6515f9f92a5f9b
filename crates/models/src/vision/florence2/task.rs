//! What Florence-2 can be asked for, in which words, and what kind of answer it gives.

use super::answer::{self, Answer};

/// What the model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The objects in the picture, with boxes.
    Objects,
    /// Regions with their descriptions.
    DenseRegions,
    /// Boxes around what may be of interest.
    RegionProposal,
    /// One sentence.
    Caption,
    /// A few sentences.
    DetailedCaption,
    /// A paragraph.
    MoreDetailedCaption,
    /// Boxes for the phrases of a given caption.
    PhraseGrounding,
    /// The outline of what is described.
    Segmentation,
    /// The text in the picture.
    Ocr,
    /// The text in the picture, with its places.
    OcrWithRegion,
    /// The answer to a question about a document.
    DocumentQuestion,
    /// Tags for image models.
    Tags,
    /// A caption and tags together.
    MixedCaption,
    /// An analysis of the composition.
    Analysis,
    /// A caption, tags and an analysis together.
    MixedCaptionPlus,
}

/// A task, as nodes and as the model name it.
const NAMES: [(Task, &str, &str); 15] = [
    (Task::Objects, "region_caption", "<OD>"),
    (Task::DenseRegions, "dense_region_caption", "<DENSE_REGION_CAPTION>"),
    (Task::RegionProposal, "region_proposal", "<REGION_PROPOSAL>"),
    (Task::Caption, "caption", "<CAPTION>"),
    (Task::DetailedCaption, "detailed_caption", "<DETAILED_CAPTION>"),
    (Task::MoreDetailedCaption, "more_detailed_caption", "<MORE_DETAILED_CAPTION>"),
    (Task::PhraseGrounding, "caption_to_phrase_grounding", "<CAPTION_TO_PHRASE_GROUNDING>"),
    (Task::Segmentation, "referring_expression_segmentation", "<REFERRING_EXPRESSION_SEGMENTATION>"),
    (Task::Ocr, "ocr", "<OCR>"),
    (Task::OcrWithRegion, "ocr_with_region", "<OCR_WITH_REGION>"),
    (Task::DocumentQuestion, "docvqa", "<DocVQA>"),
    (Task::Tags, "prompt_gen_tags", "<GENERATE_TAGS>"),
    (Task::MixedCaption, "prompt_gen_mixed_caption", "<MIXED_CAPTION>"),
    (Task::Analysis, "prompt_gen_analyze", "<ANALYZE>"),
    (Task::MixedCaptionPlus, "prompt_gen_mixed_caption_plus", "<MIXED_CAPTION_PLUS>"),
];

impl Task {
    /// The names of all tasks, in the order that menus have.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(_, name, _)| *name)
    }

    /// The task of a name.
    pub fn named(name: &str) -> Option<Task> {
        NAMES.iter().find(|(_, other, _)| *other == name).map(|(task, ..)| *task)
    }

    /// What the model calls it.
    pub fn token(self) -> &'static str {
        NAMES.iter().find(|(task, ..)| *task == self).map_or("", |(_, _, token)| token)
    }

    /// Whether the user says something to it.
    pub fn takes_text(self) -> bool {
        matches!(self, Task::PhraseGrounding | Task::Segmentation | Task::DocumentQuestion)
    }

    /// The words that the model was trained with. Tasks that others trained it for are called by their names.
    pub fn prompt(self, text: &str) -> String {
        let text = text.trim();
        match self {
            Task::Objects => "Locate the objects with category name in the image.".into(),
            Task::DenseRegions => "Locate the objects in the image, with their descriptions.".into(),
            Task::RegionProposal => "Locate the region proposals in the image.".into(),
            Task::Caption => "What does the image describe?".into(),
            Task::DetailedCaption => "Describe in detail what is shown in the image.".into(),
            Task::MoreDetailedCaption => "Describe with a paragraph what is shown in the image.".into(),
            Task::PhraseGrounding => format!("Locate the phrases in the caption: {text}"),
            Task::Segmentation => format!("Locate {text} in the image with mask"),
            Task::Ocr => "What is the text in the image?".into(),
            Task::OcrWithRegion => "What is the text in the image, with regions?".into(),
            _ if text.is_empty() => self.token().into(),
            _ => format!("{} {text}", self.token()),
        }
    }

    /// What a written answer means for a picture of this width and height.
    pub fn answer(self, written: &str, size: (usize, usize)) -> Answer {
        let text: String = written.replace("<s>", "").replace("</s>", "").replace("<pad>", "");
        match self {
            Task::Objects | Task::DenseRegions => Answer::Boxes(answer::described_boxes(&text, size)),
            Task::PhraseGrounding => {
                let boxes = answer::described_boxes(&text, size);
                let kept = boxes.into_iter().filter(|found| !answer::says_nothing(&found.label));
                Answer::Boxes(kept.collect())
            }
            Task::RegionProposal => Answer::Boxes(answer::bare_boxes(&text, size)),
            Task::OcrWithRegion => Answer::Quads(answer::quads(&text, size)),
            Task::Segmentation => Answer::Polygons(answer::polygons(&text, size)),
            _ => Answer::Text,
        }
    }
}
