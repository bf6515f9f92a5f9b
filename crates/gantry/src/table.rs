//! Plain tables for people: columns as wide as their widest cell, numbers to the right.

use std::fmt;

/// Rows under a head.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column names.
    pub(crate) fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: &[&str]) {
        self.rows.push(cells.iter().map(|cell| (*cell).to_owned()).collect());
    }
}

/// Cells that start like a number are set to the right.
fn is_number(cell: &str) -> bool {
    let unsigned = cell.strip_prefix('-').unwrap_or(cell);
    unsigned.is_empty() || unsigned.starts_with(|c: char| c.is_ascii_digit())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| {
            self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let right = |i: usize| {
            let mut cells =
                self.rows.iter().skip(1).filter_map(|r| r.get(i)).filter(|c| !c.is_empty()).peekable();
            cells.peek().is_some() && cells.all(|c| is_number(c))
        };
        let layout: Vec<(usize, bool)> = (0..columns).map(|i| (width(i), right(i))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (width, right)) in layout.iter().enumerate() {
                let cell = row.get(i).map_or("", String::as_str);
                line += &if *right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new(&["name", "size"]);
        table.row(&["a", "5 B"]);
        table.row(&["--cde", "1024 B"]);
        assert_eq!(table.to_string(), "name     size\na         5 B\n--cde  1024 B\n");
    }
}
