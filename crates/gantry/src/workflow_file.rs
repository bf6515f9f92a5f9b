//! Workflow files on disk: JSON, or a picture whose text says how it was made.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graph::Literal;

/// The first bytes of a PNG.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The largest workflow that is read.
const LARGEST: u64 = 256 << 20;

/// Reads a workflow file; `-` is a pipe.
pub(crate) fn read(path: &Path) -> Result<Literal> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .take(LARGEST)
            .read_to_end(&mut bytes)
            .context("reading the workflow from the pipe")?;
    } else {
        if path.is_dir() {
            bail!("{} is a folder: name a workflow file in it", path.display());
        }
        let cannot = || format!("{} cannot be read; give a workflow file", path.display());
        let file = std::fs::File::open(path).with_context(cannot)?;
        file.take(LARGEST).read_to_end(&mut bytes).with_context(|| format!("{}", path.display()))?;
    }
    let text = if bytes.starts_with(PNG) {
        let text = nodes::picture::png_text(&bytes);
        let find = |key: &str| text.iter().find(|(name, _)| name == key).map(|(_, text)| text.clone());
        match find("prompt").or_else(|| find("workflow")) {
            Some(text) => text,
            None => bail!("{} is a picture that does not say how it was made", path.display()),
        }
    } else {
        String::from_utf8(bytes).with_context(|| format!("{} is no text", path.display()))?
    };
    let no_workflow = || {
        format!(
            "{} is no JSON; give a workflow as the editor saves it or as the API takes it, or a picture that has one",
            path.display()
        )
    };
    serde_json::from_str(&text).with_context(no_workflow)
}
