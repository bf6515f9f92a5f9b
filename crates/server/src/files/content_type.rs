//! The content type of a file, by its ending, and the types that a browser must not run.

use std::path::Path;

use axum::http::HeaderValue;

/// What a file is said to be.
pub(crate) const BYTES: &str = "application/octet-stream";

/// The type of a file of that name, with the character set of text.
pub(crate) fn by_name(name: &Path) -> HeaderValue {
    let kind = bare(name);
    let value = if kind.starts_with("text/") { format!("{kind}; charset=utf-8") } else { kind };
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static(BYTES))
}

/// How a file that somebody uploaded may be shown. A page or a script from there would run with the rights of
/// the front end, so such a file is only ever handed over as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Showing {
    /// As what it is.
    AsItIs,
    /// As bytes to be stored.
    AsDownload,
}

/// How a file of that name may be shown. `is_for_image` says that the browser asked for it to paint it, where
/// a drawing cannot run its scripts.
pub(crate) fn showing(name: &Path, is_for_image: bool) -> Showing {
    let kind = bare(name);
    let runs = ["html", "xml", "javascript", "ecmascript", "css"].iter().any(|word| kind.contains(word));
    // Documents of offices carry "xml" in their type and run nothing.
    let is_document = kind.contains("openxmlformats") || kind.contains("officedocument");
    let is_painted = kind == "image/svg+xml" && is_for_image;
    if runs && !is_document && !is_painted { Showing::AsDownload } else { Showing::AsItIs }
}

/// The type of a file of that name, without a character set.
pub(crate) fn bare(name: &Path) -> String {
    mime_guess::from_path(name).first().map_or_else(|| BYTES.to_owned(), |kind| kind.essence_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_the_front_end_needs() {
        let cases = [
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "application/javascript"),
            ("a.css", "text/css; charset=utf-8"),
            ("index.html", "text/html; charset=utf-8"),
            ("index.json", "application/json"),
            ("a.svg", "image/svg+xml"),
            ("a.woff2", "font/woff2"),
            ("a.webp", "image/webp"),
            ("a.PNG", "image/png"),
            ("a.mp4", "video/mp4"),
            ("a.wasm", "application/wasm"),
            ("a.glb", "model/gltf-binary"),
            ("a", BYTES),
        ];
        for (name, kind) in cases {
            assert_eq!(by_name(Path::new(name)), kind, "{name}");
        }
    }

    #[test]
    fn what_runs_is_only_handed_over() {
        for name in
            ["a.html", "a.htm", "a.xhtml", "a.js", "a.mjs", "a.css", "a.xml", "a.svg", "a.xsl", "a.HTML"]
        {
            assert_eq!(showing(Path::new(name), false), Showing::AsDownload, "{name}");
        }
        for name in ["a.png", "a.webp", "a.mp4", "a.json", "a.txt", "a", "a.docx"] {
            assert_eq!(showing(Path::new(name), false), Showing::AsItIs, "{name}");
        }
        assert_eq!(showing(Path::new("a.svg"), true), Showing::AsItIs);
        assert_eq!(showing(Path::new("a.html"), true), Showing::AsDownload);
    }
}
