//! A drawing of bars, lines and texts as SVG. It is as wide as a phone, which then shows its text unscaled.

use std::fmt::Write;

/// The width of a phone, less the margins of a page.
pub(crate) const WIDTH: u32 = 360;

/// The use of a color: CSS has its value, for a light and a dark background.
#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Ink,
    Soft,
    Edge,
    Good,
    Bad,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Ink => "ink",
            Self::Soft => "soft",
            Self::Edge => "edge",
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

const STYLE: &str = "<style>
text {font: 13px system-ui, sans-serif}
.title {font-weight: 600}
.paper {fill: #fffffe} .ink {fill: #1f2328} .soft {fill: #59636e} .edge {fill: #d5dae0} .good {fill: #0b6fa8} .bad {fill: #d44a0c}
line {stroke-width: 1.5} line.ink {stroke: #1f2328} line.soft {stroke: #59636e} line.edge {stroke: #d5dae0}
line.good {stroke: #0b6fa8} line.bad {stroke: #d44a0c} line.dashed {stroke-dasharray: 4 4}
@media (prefers-color-scheme: dark) {
  .paper {fill: #0d1117} .ink {fill: #e6edf3} .soft {fill: #9da7b3} .edge {fill: #39424d} .good {fill: #4cb2f0} .bad {fill: #ff8a4c}
  line.ink {stroke: #e6edf3} line.soft {stroke: #9da7b3} line.edge {stroke: #39424d}
  line.good {stroke: #4cb2f0} line.bad {stroke: #ff8a4c}
}
</style>
";

#[derive(Default)]
pub(crate) struct Drawing {
    body: String,
}

impl Drawing {
    fn push(&mut self, element: &str) {
        let _ = writeln!(self.body, "{element}");
    }

    pub(crate) fn title(&mut self, y: u32, text: &str) {
        self.push(&format!(
            r#"<text class="ink title" x="8" y="{y}">{text}</text>"#
        ));
    }

    pub(crate) fn text(&mut self, at: (u32, u32), anchor: Anchor, tone: Tone, text: &str) {
        let (x, y) = at;
        let anchor = anchor.name();
        let class = tone.class();
        self.push(&format!(
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// Writes into a bar.
    pub(crate) fn paper_text(&mut self, at: (u32, u32), text: &str) {
        let (x, y) = at;
        self.push(&format!(
            r#"<text class="paper" x="{x}" y="{y}">{text}</text>"#
        ));
    }

    pub(crate) fn bar(&mut self, at: (u32, u32), size: (u32, u32), tone: Tone) {
        let (x, y) = at;
        let (width, height) = size;
        let class = tone.class();
        self.push(&format!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
        ));
    }

    pub(crate) fn line(&mut self, from: (u32, u32), to: (u32, u32), tone: Tone) {
        self.stroke(from, to, tone.class());
    }

    pub(crate) fn dashed(&mut self, from: (u32, u32), to: (u32, u32), tone: Tone) {
        self.stroke(from, to, &format!("{} dashed", tone.class()));
    }

    fn stroke(&mut self, from: (u32, u32), to: (u32, u32), class: &str) {
        let (x1, y1) = from;
        let (x2, y2) = to;
        self.push(&format!(
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        ));
    }

    pub(crate) fn into_svg(self, height: u32) -> String {
        let body = self.body;
        format!(
            "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
             {STYLE}<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n"
        )
    }
}

/// Writes a number with a space between thousands, as the guide does.
pub(crate) fn grouped(number: u32) -> String {
    match number / 1_000 {
        0 => number.to_string(),
        thousands => format!("{thousands} {:03}", number % 1_000),
    }
}
