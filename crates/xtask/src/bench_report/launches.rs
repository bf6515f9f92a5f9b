//! What queuing an operation costs the host.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

/// `gantry bench launches`.
#[derive(Deserialize)]
pub(super) struct Launches {
    version: String,
    date: String,
    device: String,
    device_name: String,
    host: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    device: String,
    name: String,
    operations: usize,
    issued_us: f64,
    replayed_us: Option<f64>,
}

pub(super) fn section(text: &mut String, report: &Launches) -> Result<()> {
    let Launches { version, date, device, device_name, host, rows } = report;
    writeln!(text, "\n## Launches, {device} on {device_name}\n")?;
    writeln!(text, "Gantry {version}, {date}; host {host}. Microseconds of the host for each operation.\n")?;
    writeln!(text, "| device | operation | operations | µs issued | µs replayed |\n|---|---|---|---|---|")?;
    for row in rows {
        let replayed = row.replayed_us.map_or("–".to_owned(), |us| format!("{us:.2}"));
        let Row { device, name, operations, issued_us, .. } = row;
        writeln!(text, "| {device} | {name} | {operations} | {issued_us:.2} | {replayed} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_was_measured() {
        let json = r#"{"version": "1", "date": "d", "device": "cuda:0", "device_name": "card", "host": "cpu", "rows": [
            {"device": "null:0", "name": "mix", "operations": 9, "issued_us": 0.456, "replayed_us": null},
            {"device": "cuda:0", "name": "mix", "operations": 9, "issued_us": 2.5, "replayed_us": 0.75}]}"#;
        let mut text = String::new();
        section(&mut text, &serde_json::from_str(json).unwrap()).unwrap();
        assert!(text.contains("| null:0 | mix | 9 | 0.46 | – |"), "{text}");
        assert!(text.contains("| cuda:0 | mix | 9 | 2.50 | 0.75 |"), "{text}");
    }
}
