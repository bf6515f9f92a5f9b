//! Reads of a Markdown document what can be checked: fenced blocks, code spans, links, tables.

/// A document, by its path from the top of the checkout.
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) blocks: Vec<Block>,
    /// Code spans outside of fenced blocks.
    pub(crate) spans: Vec<Piece>,
    /// Where links lead.
    pub(crate) links: Vec<Piece>,
    /// Rows of tables: their cells.
    pub(crate) rows: Vec<(usize, Vec<String>)>,
}

/// A fenced block.
pub(crate) struct Block {
    /// What follows the fence: `sh`, `text`, `sh fails`.
    pub(crate) info: String,
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Something in a line.
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) line: usize,
}

impl Document {
    pub(crate) fn parse(path: &str, text: &str) -> Document {
        let mut document = Document {
            path: path.to_owned(),
            blocks: Vec::new(),
            spans: Vec::new(),
            links: Vec::new(),
            rows: Vec::new(),
        };
        let mut open: Option<Block> = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            match (line.trim_start().strip_prefix("```"), open.as_mut()) {
                (Some(_), Some(_)) => document.blocks.extend(open.take()),
                (Some(info), None) => {
                    open = Some(Block { info: info.trim().to_owned(), text: String::new(), line: number });
                }
                (None, Some(block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => document.line(line, number),
            }
        }
        assert!(open.is_none(), "{path}: a block is not closed");
        document
    }

    fn line(&mut self, line: &str, number: usize) {
        let piece = |text: &str| Piece { text: text.to_owned(), line: number };
        self.spans.extend(line.split('`').skip(1).step_by(2).map(piece));
        // Links are outside of code.
        let outside: Vec<&str> = line.split('`').step_by(2).collect();
        for after in outside.join("").split("](").skip(1) {
            self.links.extend(after.split(')').next().map(piece));
        }
        let cells = line.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
        if let Some(cells) = cells.filter(|cells| !cells.contains("---")) {
            let cells = cells.replace("\\|", "\u{1}");
            let cells = cells.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect();
            self.rows.push((number, cells));
        }
    }
}

/// The code spans of a cell.
pub(crate) fn spans(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn pieces_are_found() {
    let text = "see [x](a/b.md) and `--flag`\n| `a` | b \\| c |\n|---|---|\n```sh\ngantry demo\n```\n";
    let document = Document::parse("x.md", text);
    assert_eq!(document.links[0].text, "a/b.md");
    assert_eq!(document.spans[0].text, "--flag");
    assert_eq!(document.rows[0].1, ["`a`", "b | c"]);
    assert_eq!((document.blocks[0].info.as_str(), document.blocks[0].line), ("sh", 4));
    assert_eq!(document.blocks[0].text, "gantry demo\n");
    assert_eq!(spans(&document.rows[0].1[0]), ["a"]);
}
