//! The figure of the README: steps of a FLUX-shaped model by how much of it is offloaded, each beside its bound.

use std::fmt::Write as _;

use super::Flux;

/// Where bars begin.
const LEFT: f64 = 230.0;
/// The longest bar.
const WIDTH: f64 = 420.0;
/// From one bar to the next.
const LINE: f64 = 22.0;
/// Above the first bar.
const TOP: f64 = 56.0;

/// Draws the rows of one card as an SVG that suits light and dark pages.
pub(super) fn draw(report: &Flux) -> Result<String, std::fmt::Error> {
    let rows = || report.formats.iter().flat_map(|format| format.rows.iter().map(move |row| (format, row)));
    let longest = rows().map(|(_, row)| row.step_s.max(row.bound_s)).fold(f64::EPSILON, f64::max);
    let height = TOP + LINE * rows().count() as f64 + 34.0;
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {height:.0}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\">\n<style>\ntext {{ fill: #24292f }}\n.bar {{ fill: #2f6fde }}\n.bound {{ stroke: #d9480f; \
         stroke-width: 2 }}\n.small {{ font-size: 11px }}\n@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} \
         .bar {{ fill: #6ea8fe }} .bound {{ stroke: #ffa94d }} }}\n</style>"
    )?;
    writeln!(
        svg,
        "<text x=\"10\" y=\"22\" font-weight=\"600\">One step, {:.1} billion parameters, {} × {} pixels, {}</text>",
        report.parameters as f64 / 1e9,
        report.pixels,
        report.pixels,
        report.device_name
    )?;
    writeln!(
        svg,
        "<text x=\"10\" y=\"40\" class=\"small\">milliseconds; the mark is the bound: the resident step, or the streamed \
         bytes over the link of {:.1} GB/s</text>",
        report.link_bytes_per_s / 1e9
    )?;
    for (line, (format, row)) in rows().enumerate() {
        let y = TOP + LINE * line as f64;
        let placed = match row.streamed_bytes {
            0 => "all on the card".to_owned(),
            bytes => format!("{:.1} GB in host memory", bytes as f64 / 1e9),
        };
        let long = |seconds: f64| WIDTH * seconds / longest;
        let (bar, mark) = (long(row.step_s), LEFT + long(row.bound_s));
        writeln!(svg, "<text x=\"10\" y=\"{:.1}\">{} {placed}</text>", y + 13.0, format.format)?;
        writeln!(
            svg,
            "<rect class=\"bar\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"16\" rx=\"2\"/>"
        )?;
        writeln!(
            svg,
            "<line class=\"bound\" x1=\"{mark:.1}\" x2=\"{mark:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            y - 1.0,
            y + 17.0
        )?;
        writeln!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{:.0}</text>",
            (LEFT + bar).max(mark) + 6.0,
            y + 12.0,
            row.step_s * 1e3
        )?;
    }
    writeln!(
        svg,
        "<text x=\"10\" y=\"{:.1}\" class=\"small\">from docs/results/flux-h200.json</text>\n</svg>",
        height - 10.0
    )?;
    Ok(svg)
}
