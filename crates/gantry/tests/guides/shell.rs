//! The lines of a shell block as words: enough of a shell for what guides show.

/// One command of a line: its words, what is piped into it, and where its output goes.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) words: Vec<String>,
    /// The words of `echo` before the pipe.
    pub(crate) input: Option<String>,
    /// The file after `>`.
    pub(crate) output: Option<String>,
}

/// The commands of a block. Comments and empty lines are left out, a backslash joins lines.
pub(crate) fn lines(block: &str) -> Result<Vec<Line>, String> {
    let joined = block.replace("\\\n", " ");
    let shown = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    shown.map(|line| parse(line).map_err(|reason| format!("{line}: {reason}"))).collect()
}

fn parse(line: &str) -> Result<Line, String> {
    let mut words = words(line)?;
    if words.last().is_some_and(|word| word == "&") {
        words.pop();
    }
    let mut parsed = Line { words: Vec::new(), input: None, output: None };
    if let Some(at) = words.iter().position(|word| word == "|") {
        match words[..at].split_first() {
            Some((echo, rest)) if echo == "echo" => parsed.input = Some(rest.join(" ")),
            _ => return Err("only echo may be piped into a command here".to_owned()),
        }
        words.drain(..=at);
    }
    if let Some(at) = words.iter().position(|word| word == ">") {
        parsed.output = words.get(at + 1).cloned();
        words.truncate(at);
    }
    if words.iter().any(|word| ["|", "&&", ";", "<", "&"].contains(&word.as_str())) {
        return Err("one command a line, please".to_owned());
    }
    parsed.words = words;
    Ok(parsed)
}

/// Splits at blanks outside of quotes.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[test]
fn lines_become_words() {
    let block =
        "# a comment\ngantry plan f \\\n  --alloc 'cuda:0,8gb;cpu,*'\necho 'a b' | gantry draw > x.png\n";
    let parsed = lines(block).unwrap();
    assert_eq!(parsed[0].words, ["gantry", "plan", "f", "--alloc", "cuda:0,8gb;cpu,*"]);
    assert_eq!((parsed[1].input.as_deref(), parsed[1].output.as_deref()), (Some("a b"), Some("x.png")));
    assert_eq!(parsed[1].words, ["gantry", "draw"]);
    assert_eq!(lines("gantry serve &\n").unwrap()[0].words, ["gantry", "serve"]);
    assert!(lines("gantry 'x").is_err() && lines("a && b").is_err());
}
