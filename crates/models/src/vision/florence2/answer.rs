//! Places in answers: four words such as `<loc_52>` are a box, eight a quadrilateral, more an outline. Each counts in
//! thousandths of the picture's width or height, from the middle of its step.

/// Steps along a side of a picture.
const STEPS: f64 = 1000.0;
/// Locations of a box, and of a quadrilateral.
const BOX: usize = 4;
const QUAD: usize = 8;
/// What parts and encloses outlines.
const SEPARATOR: &str = "<sep>";
const OPENING: &str = "<poly>";
const CLOSING: &str = "</poly>";

/// What an answer means.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Nothing but its text.
    Text,
    /// Boxes: left, top, right, bottom.
    Boxes(Vec<Labelled<[f32; BOX]>>),
    /// Corners of quadrilaterals, horizontal and vertical in turn.
    Quads(Vec<Labelled<[f32; QUAD]>>),
    /// Outlines: the corners of one or more polygons, horizontal and vertical in turn.
    Polygons(Vec<Labelled<Vec<Vec<f32>>>>),
}

/// A place and what is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled<T> {
    /// Where.
    pub place: T,
    /// What.
    pub label: String,
}

/// Phrases that name no object.
const EMPTY_PHRASES: &str = "it I me mine you your yours he him his she her hers they them their theirs one oneself we \
    us our ours its myself yourself himself herself itself ourselves yourselves themselves this that these those who \
    whom whose which what all another any anybody anyone anything each everybody everyone everything few many nobody \
    none several some somebody someone something image images the a an lots";
const EMPTY_PAIRS: [&str; 6] =
    ["each other", "one another", "the image", "a group", "other objects", "a set"];

/// Whether a phrase names no object.
pub(super) fn says_nothing(phrase: &str) -> bool {
    EMPTY_PAIRS.contains(&phrase) || EMPTY_PHRASES.split_whitespace().any(|word| word == phrase)
}

/// Every phrase that is directly followed by four locations or more, with a box for each four.
pub(super) fn described_boxes(text: &str, size: (usize, usize)) -> Vec<Labelled<[f32; BOX]>> {
    let mut found = Vec::new();
    let mut end = 0;
    while let Some(run) = next_run(text, end, BOX) {
        let before = &text[end..run.start];
        // A phrase reaches back to the last sign of a tag.
        let phrase = before.rsplit('<').next().unwrap_or(before);
        end = run.end;
        let label = phrase.trim();
        if phrase.is_empty() || phrase.trim_start().contains('\n') {
            continue;
        }
        let label: String = label.chars().filter(char::is_ascii).collect();
        let boxes = run.steps.chunks_exact(BOX);
        found.extend(boxes.map(|steps| Labelled { place: placed(steps, size), label: label.clone() }));
    }
    found
}

/// Boxes without phrases.
pub(super) fn bare_boxes(text: &str, size: (usize, usize)) -> Vec<Labelled<[f32; BOX]>> {
    let mut found = Vec::new();
    let mut end = 0;
    while let Some(run) = next_run(text, end, BOX) {
        end = run.end;
        let boxes = run.steps.chunks_exact(BOX);
        found.extend(boxes.map(|steps| Labelled { place: placed(steps, size), label: String::new() }));
    }
    found
}

/// Texts with the four corners of where they stand.
pub(super) fn quads(text: &str, size: (usize, usize)) -> Vec<Labelled<[f32; QUAD]>> {
    let mut found = Vec::new();
    let mut end = 0;
    let mut from = 0;
    while let Some(run) = next_run(text, from, QUAD) {
        let label = text[end..run.start].rsplit('\n').next().unwrap_or_default();
        if label.is_empty() {
            from = run.end;
            continue;
        }
        // What is left of a longer run belongs to what follows.
        let taken = location_end(text, run.start, QUAD);
        (end, from) = (taken, taken);
        let place = placed(&run.steps[..QUAD], size);
        found.push(Labelled { place, label: label.trim().to_owned() });
    }
    found
}

/// Outlines: runs of locations, parted by separators, in pairs of opening and closing words or not.
pub(super) fn polygons(text: &str, size: (usize, usize)) -> Vec<Labelled<Vec<Vec<f32>>>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((run, after)) = next_outline(rest) {
        rest = after;
        let inside = |run: &str| -> Vec<String> {
            let openings = run.split(OPENING).skip(1);
            openings
                .filter_map(|part| part.split_once(CLOSING))
                .map(|(inside, _)| inside.to_owned())
                .collect()
        };
        let has_both = run.contains(OPENING) && run.contains(CLOSING);
        let instances = if has_both { inside(run) } else { vec![run.to_owned()] };
        for instance in instances {
            let place: Vec<Vec<f32>> =
                instance.split(SEPARATOR).filter_map(|part| outline(part, size)).collect();
            if !place.is_empty() {
                found.push(Labelled { place, label: String::new() });
            }
        }
    }
    found
}

/// The corners at the end of a part; none if it does not end with locations.
fn outline(part: &str, size: (usize, usize)) -> Option<Vec<f32>> {
    let mut run = next_run(part, 0, 1)?;
    while run.end < part.len() {
        run = next_run(part, run.end, 1)?;
    }
    let steps = &run.steps[..run.steps.len() / 2 * 2];
    Some(steps.iter().enumerate().map(|(i, step)| middle(*step, i, size)).collect())
}

/// The next run of at least four locations and signs of outlines, and what comes after it.
fn next_outline(text: &str) -> Option<(&str, &str)> {
    let word_at = |at: usize| {
        let rest = &text[at..];
        let sign = [SEPARATOR, OPENING, CLOSING].into_iter().find(|sign| rest.starts_with(sign));
        sign.map(str::len).or_else(|| location(rest).map(|(_, len)| len))
    };
    let mut at = 0;
    while at < text.len() {
        let (mut end, mut count) = (at, 0);
        while let Some(len) = word_at(end) {
            end += len;
            count += 1;
        }
        if count >= BOX {
            return Some((&text[at..end], &text[end..]));
        }
        at = end.max(at + text[at..].chars().next().map_or(1, char::len_utf8));
    }
    None
}

/// Locations one directly after the other.
struct Run {
    start: usize,
    end: usize,
    steps: Vec<u32>,
}

/// The next run of at least so many locations.
fn next_run(text: &str, from: usize, least: usize) -> Option<Run> {
    let mut from = from;
    loop {
        let start = from + text[from..].find("<loc_")?;
        let (mut end, mut steps) = (start, Vec::new());
        while let Some((step, len)) = location(&text[end..]) {
            steps.push(step);
            end += len;
        }
        if steps.len() >= least {
            return Some(Run { start, end, steps });
        }
        from = end.max(start + 1);
    }
}

/// Where the first so many locations from a place on end.
fn location_end(text: &str, start: usize, count: usize) -> usize {
    (0..count).fold(start, |at, _| at + location(&text[at..]).map_or(0, |(_, len)| len))
}

/// The location at the start of a text, and its length.
fn location(text: &str) -> Option<(u32, usize)> {
    let digits = text.strip_prefix("<loc_")?;
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    let step = digits[..end].parse().ok().filter(|step| f64::from(*step) < STEPS)?;
    digits[end..].starts_with('>').then_some((step, "<loc_".len() + end + 1))
}

fn placed<const N: usize>(steps: &[u32], size: (usize, usize)) -> [f32; N] {
    std::array::from_fn(|i| middle(steps[i], i, size))
}

/// The middle of a step, in pixels: horizontal and vertical in turn.
fn middle(step: u32, index: usize, (width, height): (usize, usize)) -> f32 {
    let side = if index.is_multiple_of(2) { width } else { height };
    (step as f32 + 0.5) * (side as f64 / STEPS) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (640, 480);

    #[test]
    fn boxes_with_their_phrases() {
        let text = "car<loc_52><loc_332><loc_932><loc_774>door handle<loc_1><loc_2><loc_3><loc_4><loc_5>\
            <loc_6><loc_7><loc_8><loc_9>x<loc_1><loc_2>";
        let boxes = described_boxes(text, SIZE);
        // The numbers that the model's authors show for a picture of 640 x 480.
        assert_eq!(boxes[0].place, [33.6, 159.599_99, 596.8, 371.759_98]);
        let labels: Vec<&str> = boxes.iter().map(|found| found.label.as_str()).collect();
        assert_eq!(labels, ["car", "door handle", "door handle"]);
        assert_eq!(
            bare_boxes("<loc_0><loc_0><loc_999><loc_999>", SIZE)[0].place,
            [0.32, 0.24, 639.68, 479.759_98]
        );
        assert_eq!(described_boxes("<loc_0><loc_0><loc_999><loc_999>", SIZE), []);
        assert!(says_nothing("each other") && says_nothing("it") && !says_nothing("a dog"));
    }

    #[test]
    fn texts_with_corners() {
        let corners: String = (0..8).map(|step| format!("<loc_{step}>")).collect();
        let found = quads(&format!("EXIT{corners}<loc_9>two words {corners}"), (1000, 1000));
        assert_eq!(
            found[0],
            Labelled { place: [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5], label: "EXIT".into() }
        );
        assert_eq!(found[1].label, "<loc_9>two words");
        assert_eq!(quads("EXIT<loc_1><loc_2>", SIZE), []);
    }

    #[test]
    fn outlines_in_parts() {
        let text = "<loc_1><loc_2><loc_3><loc_4><loc_5><sep><loc_6><loc_7>";
        let found = polygons(text, (1000, 1000));
        assert_eq!(found[0].place, [vec![1.5, 2.5, 3.5, 4.5], vec![6.5, 7.5]]);
        let text = "<poly><loc_1><loc_2></poly><poly><loc_3><loc_4></poly>";
        let found = polygons(text, (1000, 1000));
        assert_eq!(
            found.iter().map(|one| one.place.clone()).collect::<Vec<_>>(),
            [[[1.5, 2.5]], [[3.5, 4.5]]]
        );
        assert_eq!(polygons("nothing <loc_1> here", SIZE), []);
    }
}
