//! Draws a plan as an SVG: a bar per device with the blocks that live on it, and one for a step in order of
//! use. It depends on nothing but the plan, so the same plan is the same picture; the host's memory, which
//! differs from machine to machine, is not in it.

use std::fmt::Write;

use meta::{ByteSize, DeviceId};
use placement::{BlockMode, BlockPlan, DeviceUse, Plan, seconds};

/// Pixels of the whole picture, of its margin and of a bar.
const WIDTH: f64 = 920.0;
const MARGIN: f64 = 24.0;
const BAR: f64 = 28.0;
/// From one line of text, and from one bar with its label, to the next.
const LINE: f64 = 20.0;
const ROW: f64 = 68.0;

/// Colours for light and dark surroundings.
const STYLE: &str = "\
  :root { --paper: #ffffff; --ink: #1f2933; --faint: #52606d; --edge: #9aa5b1;
    --resident: #2f6fb0; --there: #2e8b68; --streamed: #d9822b; --ring: #8e63b3; --working: #b8c2cc; }
  @media (prefers-color-scheme: dark) {
    :root { --paper: #15191e; --ink: #e4e7eb; --faint: #a3adb8; --edge: #616e7c;
      --resident: #5b9bd8; --there: #4fb28b; --streamed: #e59a4c; --ring: #ab85cc; --working: #5a6673; } }
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: var(--ink); }
  .title { font-size: 16px; font-weight: 600; }
  .name { font-weight: 600; }
  .faint { fill: var(--faint); }
  .paper { fill: var(--paper); }
  .room { fill: none; stroke: var(--edge); stroke-dasharray: 4 3; }
  .resident { fill: var(--resident); }
  .there { fill: var(--there); }
  .streamed { fill: var(--streamed); }
  .ring { fill: var(--ring); }
  .working { fill: var(--working); }
";

/// The picture of a plan for the model of this name.
pub(super) fn draw(plan: &Plan, model: &str) -> String {
    let mut page = Page { body: String::new(), y: MARGIN };
    page.text(MARGIN, "title", &format!("{model}, {}", ByteSize(plan.model_bytes())));
    page.text(MARGIN, "faint", &format!("allocation {}", plan.to_allocation()));
    page.y += LINE / 2.0;
    let longest = plan.devices.iter().map(shown_bytes).max().unwrap_or(1).max(1);
    for usage in &plan.devices {
        page.device(plan, usage, longest);
    }
    page.step(plan);
    page.legend(plan);
    page.prediction(plan);
    for note in &plan.notes {
        page.text(MARGIN, "faint", &format!("note: {note}"));
    }
    let height = page.y + MARGIN / 2.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{}\">\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
        escaped(&format!("Where the blocks of {model} go")),
        page.body,
    )
}

/// What is written so far, and how far down it reaches.
struct Page {
    body: String,
    y: f64,
}

impl Page {
    /// A line of text.
    fn text(&mut self, x: f64, class: &str, text: &str) {
        self.y += LINE;
        let y = self.y - LINE / 3.0;
        let text = escaped(text);
        self.put(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y:.1}\">{text}</text>\n"));
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("writing to a String does not fail");
    }

    /// A part of a bar at this height, with what it is as its tooltip. A hair's breadth is left to the next.
    fn part(&mut self, class: &str, (x, width): (f64, f64), about: &str) {
        let (y, about) = (self.y, escaped(about));
        let width = if width > 2.0 { width - 1.0 } else { width };
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\"><title>{about}</title></rect>\n"
        ));
    }

    /// A device: what lives on it, block by block, then the ring, then memory to work in.
    fn device(&mut self, plan: &Plan, usage: &DeviceUse, longest: u64) {
        let scale = |bytes: u64| bytes as f64 / longest as f64 * (WIDTH - 2.0 * MARGIN);
        let top = self.y;
        self.text(MARGIN, "name", &device_name(plan, usage.device));
        self.y = top;
        self.text(MARGIN + 160.0, "faint", &use_text(usage));
        self.y = top + LINE + 4.0;
        let mut x = MARGIN;
        let mut parts: Vec<(&str, u64, String)> = plan
            .blocks
            .iter()
            .filter(|block| block.home == usage.device)
            .map(|block| (class(plan, block), block.bytes, about(block)))
            .collect();
        let ring = plan.ring.filter(|_| usage.ring_bytes > 0);
        for slot in 0..ring.map_or(0, |ring| ring.slots) {
            let bytes = ring.map_or(0, |ring| ring.slot_bytes);
            parts.push(("ring", bytes, format!("slot {slot} of the ring, {}", ByteSize(bytes))));
        }
        if usage.working_bytes > 0 {
            parts.push((
                "working",
                usage.working_bytes,
                format!("activations, {}", ByteSize(usage.working_bytes)),
            ));
        }
        for (class, bytes, about) in &parts {
            self.part(class, (x, scale(*bytes)), about);
            x += scale(*bytes);
        }
        if usage.device != DeviceId::CPU {
            let (y, width) = (self.y - 3.0, scale(usage.available_bytes));
            let height = BAR + 6.0;
            self.put(format_args!(
                "<rect class=\"room\" x=\"{MARGIN}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\"/>\n"
            ));
        }
        self.y = top + ROW;
    }

    /// All blocks in order of use.
    fn step(&mut self, plan: &Plan) {
        let top = self.y;
        self.text(MARGIN, "name", "one step, in order of use");
        self.y = top + LINE + 4.0;
        let mut x = MARGIN;
        let model_bytes = plan.model_bytes().max(1) as f64;
        for block in &plan.blocks {
            let width = block.bytes as f64 / model_bytes * (WIDTH - 2.0 * MARGIN);
            self.part(class(plan, block), (x, width), &about(block));
            x += width;
        }
        self.y = top + ROW;
    }

    fn legend(&mut self, plan: &Plan) {
        let has = |wanted: &str| plan.blocks.iter().any(|block| class(plan, block) == wanted);
        let mut x = MARGIN;
        let top = self.y;
        let entries = [
            ("resident", "resident", has("resident")),
            ("there", "resident, computed there", has("there")),
            ("streamed", "streamed in every step", has("streamed")),
            ("ring", "slots for streaming", plan.ring.is_some()),
            ("working", "activations", plan.devices.iter().any(|usage| usage.working_bytes > 0)),
        ];
        for (class, text, _) in entries.iter().filter(|(_, _, shown)| *shown) {
            let y = top + 3.0;
            self.put(format_args!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\"/>\n"
            ));
            self.y = top;
            self.text(x + 18.0, "faint", text);
            x += 42.0 + 6.6 * text.len() as f64;
        }
        self.y = top + LINE + 4.0;
    }

    fn prediction(&mut self, plan: &Plan) {
        let p = &plan.prediction;
        let mut text =
            format!("predicted {} per step: {} computing", seconds(p.seconds_per_step), seconds(p.compute_s));
        if p.hop_s > 0.0 {
            text += &format!(", {} moving activations", seconds(p.hop_s));
        }
        if plan.ring.is_some() {
            let streamed = ByteSize(plan.streamed_bytes());
            text += &format!(", {} waiting; {streamed} copied in {}", seconds(p.stall_s), seconds(p.copy_s));
        }
        self.text(MARGIN, "", &text);
    }
}

/// How many bytes a device's bar stands for.
fn shown_bytes(usage: &DeviceUse) -> u64 {
    if usage.device == DeviceId::CPU {
        usage.total_bytes()
    } else {
        usage.total_bytes().max(usage.available_bytes)
    }
}

fn device_name(plan: &Plan, device: DeviceId) -> String {
    let what = match device {
        device if device == plan.compute => " (computes)",
        DeviceId::CPU => " (host memory)",
        _ => "",
    };
    format!("{device}{what}")
}

fn use_text(usage: &DeviceUse) -> String {
    let mut text = format!("weights {}", ByteSize(usage.weight_bytes));
    let parts =
        [("on disk", usage.disk_bytes), ("ring", usage.ring_bytes), ("activations", usage.working_bytes)];
    for (name, bytes) in parts {
        if bytes > 0 {
            text += &format!(", {name} {}", ByteSize(bytes));
        }
    }
    if usage.device != DeviceId::CPU {
        text += &format!("; {} of {}", ByteSize(usage.total_bytes()), ByteSize(usage.available_bytes));
    }
    text
}

fn class(plan: &Plan, block: &BlockPlan) -> &'static str {
    match block.mode {
        BlockMode::Streamed => "streamed",
        BlockMode::Resident if block.runs_on == plan.compute => "resident",
        BlockMode::Resident => "there",
    }
}

fn about(block: &BlockPlan) -> String {
    let BlockPlan { name, bytes, home, runs_on, mode, coded_bytes, from_disk } = block;
    let coded = coded_bytes.map_or(String::new(), |bytes| format!(", coded to {}", ByteSize(bytes)));
    let home = if *from_disk { "disk".to_owned() } else { home.to_string() };
    format!("{name}, {}: lives on {home}, runs on {runs_on}, {}{coded}", ByteSize(*bytes), mode.name())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::{AllocationText, BlockSpec, DeviceSpec, PlanRequest};

    fn plan(text: &str) -> Plan {
        let block = |index: u64| BlockSpec {
            name: format!("blocks.{index}"),
            bytes: 100 << 20,
            compute_seconds: 0.01,
            pinned: index == 0,
        };
        let device = |id: DeviceId| DeviceSpec {
            id,
            total_bytes: 1 << 30,
            available_bytes: 1 << 30,
            link_bytes_per_s: 1e10,
            compute_factor: 1.0,
            reaches: Vec::new(),
        };
        let devices = [DeviceId::CPU, DeviceId::sim(0), DeviceId::sim(1)];
        let mut request = PlanRequest::new(
            (0..8).map(block).collect(),
            devices.iter().map(|id| device(*id)).collect(),
            DeviceId::sim(0),
        );
        request.working_bytes = 1 << 20;
        request.allocation = AllocationText::parse_for(text, &devices).unwrap();
        placement::plan(&request).unwrap()
    }

    /// How many rectangles of a class carry a block's name.
    fn count(picture: &str, class: &str) -> usize {
        let start = format!("<rect class=\"{class}\"");
        picture.lines().filter(|line| line.starts_with(&start) && line.contains("<title>blocks.")).count()
    }

    #[test]
    fn every_block_is_drawn_at_its_home_and_in_the_step() {
        let picture = draw(&plan("sim:0,400mb;cpu,*"), "a <model> & more");
        assert_eq!(count(&picture, "resident"), 2 * 4);
        assert_eq!(count(&picture, "streamed"), 2 * 4);
        assert!(picture.contains("a &lt;model&gt; &amp; more, 800.00 MB"), "{picture}");
        assert!(picture.contains("slots for streaming") && picture.contains("per step"));
        // The host's memory is this machine's business.
        assert_eq!(picture.matches("class=\"room\"").count(), 1);
    }

    #[test]
    fn a_block_that_runs_elsewhere_has_a_colour_of_its_own() {
        let mut plan = plan("sim:0,400mb;sim:1,*");
        for block in plan.blocks.iter_mut().filter(|block| block.home == DeviceId::sim(1)) {
            (block.runs_on, block.mode) = (block.home, BlockMode::Resident);
        }
        let picture = draw(&plan, "model");
        assert_eq!(count(&picture, "there"), 2 * 4);
        assert_eq!(count(&picture, "streamed"), 0);
        assert!(picture.contains("resident, computed there"));
    }

    #[test]
    fn a_resident_model_has_no_ring_and_no_copies() {
        let picture = draw(&plan(""), "model");
        assert_eq!(count(&picture, "resident"), 2 * 8);
        assert!(!picture.contains("slots for streaming") && !picture.contains("copied in"), "{picture}");
    }
}
