//! Frames as they go over the wire.

use axum::extract::ws::Message;
use graph::{Identity, Map, NodeId, Picture};
use serde::Serialize;

/// What a binary frame is; all integers are big-endian and of 32 bits.
const PREVIEW: u32 = 1;
const TEXT: u32 = 3;
const PREVIEW_WITH_METADATA: u32 = 4;

/// `{"type": …, "data": …}`. The type comes first: a known client looks only at the first bytes.
pub(crate) fn text(kind: &str, data: &impl Serialize) -> Message {
    raw(kind, &json(data))
}

/// The same from data that is JSON already.
pub(crate) fn raw(kind: &str, data: &str) -> Message {
    Message::text(format!("{{\"type\":{},\"data\":{data}}}", json(&kind)))
}

/// JSON; every type of this module can be written.
pub(crate) fn json(data: &impl Serialize) -> String {
    serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned())
}

#[derive(Serialize)]
struct Status<'a> {
    status: ExecInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    sid: Option<&'a str>,
}

#[derive(Serialize)]
struct ExecInfo {
    exec_info: QueueRemaining,
}

#[derive(Serialize)]
struct QueueRemaining {
    queue_remaining: usize,
}

/// How many jobs wait or run; the first one to a client names it.
pub(crate) fn status(queue_remaining: usize, sid: Option<&str>) -> Message {
    text("status", &Status { status: ExecInfo { exec_info: QueueRemaining { queue_remaining } }, sid })
}

#[derive(Serialize)]
struct Executing<'a> {
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    display_node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_id: Option<&'a str>,
}

/// A node starts.
pub(crate) fn executing(identity: &Identity, prompt_id: &str) -> Message {
    let data =
        Executing { node: &identity.node, display_node: Some(&identity.display), prompt_id: Some(prompt_id) };
    text("executing", &data)
}

/// For a client that comes back: the node that runs.
pub(crate) fn executing_again(node: &str) -> Message {
    text("executing", &Executing { node, display_node: None, prompt_id: None })
}

#[derive(Serialize)]
struct Ended<'a> {
    node: Option<&'a str>,
    prompt_id: &'a str,
}

/// The last frame of a job.
pub(crate) fn ended(prompt_id: &str) -> Message {
    text("executing", &Ended { node: None, prompt_id })
}

#[derive(Serialize)]
struct Executed<'a> {
    node: &'a str,
    display_node: &'a str,
    output: Option<&'a Map>,
    prompt_id: &'a str,
}

/// A node has something to show.
pub(crate) fn executed(identity: &Identity, output: Option<&Map>, prompt_id: &str) -> Message {
    let data = Executed { node: &identity.node, display_node: &identity.display, output, prompt_id };
    text("executed", &data)
}

#[derive(Serialize)]
struct Tick<'a> {
    value: serde_json::Number,
    max: serde_json::Number,
    prompt_id: &'a str,
    node: &'a str,
}

/// A node is so far.
pub(crate) fn progress(value: f64, max: f64, prompt_id: &str, node: &str) -> Message {
    text("progress", &Tick { value: number(value), max: number(max), prompt_id, node })
}

/// Whole numbers are written as such; steps nearly always are.
pub(crate) fn number(value: f64) -> serde_json::Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return serde_json::Number::from(value as i64);
    }
    serde_json::Number::from_f64(value).unwrap_or_else(|| serde_json::Number::from(0))
}

#[derive(Serialize)]
struct NodeProgress<'a> {
    value: serde_json::Number,
    max: serde_json::Number,
    state: &'a str,
    node_id: &'a str,
    prompt_id: &'a str,
    display_node_id: &'a str,
    parent_node_id: Option<&'a str>,
    real_node_id: &'a str,
}

/// One node of a `progress_state`: `"id":{…}`.
pub(crate) fn node_progress(
    identity: &Identity,
    prompt_id: &str,
    state: &str,
    value: f64,
    max: f64,
) -> String {
    let data = NodeProgress {
        value: number(value),
        max: number(max),
        state,
        node_id: &identity.node,
        prompt_id,
        display_node_id: &identity.display,
        parent_node_id: identity.parent.as_deref(),
        real_node_id: &identity.real,
    };
    format!("{}:{}", json(&identity.node.as_ref()), json(&data))
}

/// A line of text on a node.
pub(crate) fn node_text(node: &NodeId, line: &str) -> Message {
    let mut bytes = Vec::with_capacity(8 + node.len() + line.len());
    bytes.extend(TEXT.to_be_bytes());
    bytes.extend(length(node.len()));
    bytes.extend(node.bytes());
    bytes.extend(line.bytes());
    Message::binary(bytes)
}

/// A picture as it goes over the wire.
pub(crate) struct EncodedPicture {
    bytes: Vec<u8>,
    is_png: bool,
}

/// The quality of previews.
const JPEG_QUALITY: u8 = 95;

impl EncodedPicture {
    /// Results are kept as they are; previews are made small. `None` if the picture contradicts itself.
    pub(crate) fn new(picture: &Picture, preview_side: usize) -> Option<EncodedPicture> {
        let bytes = match picture.is_result {
            true => nodes::picture::picture_png(picture),
            false => nodes::picture::preview_jpeg(picture, preview_side, JPEG_QUALITY),
        };
        match bytes {
            Ok(bytes) => Some(EncodedPicture { bytes, is_png: picture.is_result }),
            Err(error) => {
                tracing::warn!("a preview cannot be sent: {error}");
                None
            }
        }
    }

    /// The older frame, which does not say of which node it is.
    pub(crate) fn plain(&self) -> Message {
        let format: u32 = if self.is_png { 2 } else { 1 };
        let mut bytes = Vec::with_capacity(8 + self.bytes.len());
        bytes.extend(PREVIEW.to_be_bytes());
        bytes.extend(format.to_be_bytes());
        bytes.extend(&self.bytes);
        Message::binary(bytes)
    }

    /// The newer frame.
    pub(crate) fn with_metadata(&self, identity: &Identity, prompt_id: &str) -> Message {
        #[derive(Serialize)]
        struct Metadata<'a> {
            node_id: &'a str,
            prompt_id: &'a str,
            display_node_id: &'a str,
            parent_node_id: Option<&'a str>,
            real_node_id: &'a str,
            image_type: &'a str,
        }
        let metadata = json(&Metadata {
            node_id: &identity.node,
            prompt_id,
            display_node_id: &identity.display,
            parent_node_id: identity.parent.as_deref(),
            real_node_id: &identity.real,
            image_type: if self.is_png { "image/png" } else { "image/jpeg" },
        });
        let mut bytes = Vec::with_capacity(8 + metadata.len() + self.bytes.len());
        bytes.extend(PREVIEW_WITH_METADATA.to_be_bytes());
        bytes.extend(length(metadata.len()));
        bytes.extend(metadata.bytes());
        bytes.extend(&self.bytes);
        Message::binary(bytes)
    }
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn identity() -> Identity {
        Identity {
            node: "3.0.0.1".into(),
            display: "3".into(),
            parent: Some("3".into()),
            real: "3".into(),
            class: "KSampler".to_owned(),
        }
    }

    fn shown(message: Message) -> String {
        message.into_text().unwrap().to_string()
    }

    #[test]
    fn text_frames_have_their_type_first() {
        assert_eq!(
            shown(status(2, Some("ab"))),
            r#"{"type":"status","data":{"status":{"exec_info":{"queue_remaining":2}},"sid":"ab"}}"#
        );
        assert_eq!(
            shown(status(0, None)),
            r#"{"type":"status","data":{"status":{"exec_info":{"queue_remaining":0}}}}"#
        );
        assert_eq!(
            shown(executing(&identity(), "p")),
            r#"{"type":"executing","data":{"node":"3.0.0.1","display_node":"3","prompt_id":"p"}}"#
        );
        assert_eq!(shown(executing_again("3")), r#"{"type":"executing","data":{"node":"3"}}"#);
        assert_eq!(shown(ended("p")), r#"{"type":"executing","data":{"node":null,"prompt_id":"p"}}"#);
        assert_eq!(
            shown(progress(3.0, 20.0, "p", "3")),
            r#"{"type":"progress","data":{"value":3,"max":20,"prompt_id":"p","node":"3"}}"#
        );
        assert_eq!(
            shown(executed(&identity(), None, "p")),
            r#"{"type":"executed","data":{"node":"3.0.0.1","display_node":"3","output":null,"prompt_id":"p"}}"#
        );
    }

    #[test]
    fn a_node_says_where_it_comes_from() {
        assert_eq!(
            node_progress(&identity(), "p", "running", 0.25, 1.0),
            r#""3.0.0.1":{"value":0.25,"max":1,"state":"running","node_id":"3.0.0.1","prompt_id":"p","display_node_id":"3","parent_node_id":"3","real_node_id":"3"}"#
        );
    }

    #[test]
    fn numbers_that_json_cannot_write_become_zero() {
        assert_eq!(number(f64::NAN).to_string(), "0");
        assert_eq!(number(1e300).as_f64(), Some(1e300));
    }

    #[test]
    fn binary_frames_have_their_lengths() {
        let text = node_text(&Arc::from("12"), "hi").into_data();
        assert_eq!(&text[..], b"\0\0\0\x03\0\0\0\x0212hi");
        let picture = EncodedPicture { bytes: b"JPEG".to_vec(), is_png: false };
        assert_eq!(&picture.plain().into_data()[..], b"\0\0\0\x01\0\0\0\x01JPEG");
        let data = picture.with_metadata(&identity(), "p").into_data();
        assert_eq!(&data[..4], b"\0\0\0\x04");
        let metadata = u32::from_be_bytes(data[4..8].try_into().unwrap()) as usize;
        assert_eq!(
            &data[8..8 + metadata],
            br#"{"node_id":"3.0.0.1","prompt_id":"p","display_node_id":"3","parent_node_id":"3","real_node_id":"3","image_type":"image/jpeg"}"#
        );
        assert_eq!(&data[8 + metadata..], b"JPEG");
    }
}
