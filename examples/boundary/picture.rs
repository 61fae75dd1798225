//! Draws the admitted requests: one panel per algorithm, over a common time axis.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordu32;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::traffic::{Admitted, BETWEEN_BURSTS, BURST, END, LIMIT, SPELLS, WINDOW};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Panel<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordu32, RangedCoordu32>>;
type Drawn = Result<(), Box<dyn Error>>;

/// As wide as the screen of a phone, where the texts must be readable.
const WIDTH: u32 = 400;
const HEAD: u32 = 108;
const PANEL: u32 = 112;
const FOOT: u32 = 56;

/// The margins of a panel: its name above, numbers at the side.
const ABOVE: u32 = 36;
const LEFT: u32 = 54;
const RIGHT: u32 = 72;

/// The axis ends above twice the limit, so that a line at twice the limit is visible.
const TOP: u32 = 2 * LIMIT + 6;

/// The colors on a light background. Each has one use, so that [`style`] can replace it by its value.
const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFE);
const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
const SOFT: RGBColor = RGBColor(0x59, 0x63, 0x6E);
const EDGE: RGBColor = RGBColor(0xE3, 0xE7, 0xEB);
const TRIED: RGBColor = RGBColor(0xAF, 0xB8, 0xC1);
const WITHIN: RGBColor = RGBColor(0x0B, 0x6F, 0xA8);
const BEYOND: RGBColor = RGBColor(0xD4, 0x4A, 0x0C);
const AT_LIMIT: RGBColor = RGBColor(0x3D, 0x44, 0x4D);
const AT_TWICE: RGBColor = RGBColor(0x98, 0xA1, 0xAB);

/// The same colors on a dark background.
const DARK: [(RGBColor, &str); 9] = [
    (PAPER, "#0d1117"),
    (INK, "#e6edf3"),
    (SOFT, "#9da7b3"),
    (EDGE, "#232a33"),
    (TRIED, "#57616d"),
    (WITHIN, "#4cb2f0"),
    (BEYOND, "#ff8a4c"),
    (AT_LIMIT, "#c5ced8"),
    (AT_TWICE, "#626d79"),
];

/// The picture as SVG.
pub(crate) fn of(runs: &[Admitted]) -> Result<String, Box<dyn Error>> {
    let height = HEAD + PANEL * u32::try_from(runs.len())? + FOOT;
    let mut svg = String::new();
    draw(
        runs,
        &SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area(),
    )?;
    let (tag, drawing) = svg.split_once('>').ok_or("no SVG")?;
    Ok(format!("{tag}>\n{}{drawing}", style()))
}

/// Styles that the drawing library lacks: dashes, the system font, and colors on a dark background.
fn style() -> String {
    let dark = DARK.map(|(color, dark)| {
        let light = hex(color);
        format!("  [fill=\"{light}\"]{{fill:{dark}}} [stroke=\"{light}\"]{{stroke:{dark}}}\n")
    });
    format!(
        "<style>\n\
         text {{font-family: system-ui, sans-serif}}\n\
         [stroke=\"{}\"] {{stroke-dasharray: 2 5}}\n\
         @media (prefers-color-scheme: dark) {{\n{}}}\n\
         </style>",
        hex(AT_TWICE),
        dark.concat()
    )
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

fn draw(runs: &[Admitted], canvas: &Canvas<'_>) -> Drawn {
    canvas.fill(&PAPER)?;
    let (head, rest) = canvas.split_vertically(HEAD);
    let (panels, foot) = rest.split_vertically(PANEL * u32::try_from(runs.len())?);
    draw_head(&head)?;
    for (run, panel) in runs.iter().zip(panels.split_evenly((runs.len(), 1))) {
        draw_panel(run, &panel)?;
    }
    draw_foot(&foot)?;
    draw_side(canvas)?;
    canvas.present()?;
    Ok(())
}

/// Writes a text at a point.
fn write(canvas: &Canvas<'_>, text: &str, at: (u32, u32), style: (u32, RGBColor, HPos)) -> Drawn {
    let (size, color, side) = style;
    let style = ("sans-serif", size)
        .with_color(color)
        .into_text_style(canvas);
    let style = style.pos(Pos::new(side, VPos::Center));
    let (x, y) = (i32::try_from(at.0)?, i32::try_from(at.1)?);
    canvas.draw(&Text::new(text.to_owned(), (x, y), style))?;
    Ok(())
}

/// Returns the horizontal position of a time.
fn x_of(time: u32) -> u32 {
    LEFT + (WIDTH - LEFT - RIGHT) * time / END
}

/// Returns the vertical position of a number of requests in its panel.
fn y_of(requests: u32) -> u32 {
    PANEL - 1 - (PANEL - ABOVE) * requests / TOP
}

fn draw_head(head: &Canvas<'_>) -> Drawn {
    let seconds = WINDOW / 1_000;
    let title = format!("The same bursts, a limit of {LIMIT} in {seconds} s,");
    write(head, &title, (LEFT, 18), (20, INK, HPos::Left))?;
    write(
        head,
        "five ways to count",
        (LEFT, 40),
        (20, INK, HPos::Left),
    )?;
    let tried = format!("{BURST} requests are tried at once, every {BETWEEN_BURSTS} ms, here:");
    write(head, &tried, (LEFT, 68), (16, SOFT, HPos::Left))?;
    for (from, to) in SPELLS {
        let (left, right) = (i32::try_from(x_of(from))?, i32::try_from(x_of(to))?);
        head.draw(&Rectangle::new([(left, 86), (right, 96)], TRIED.filled()))?;
    }
    Ok(())
}

fn draw_foot(foot: &Canvas<'_>) -> Drawn {
    for time in (0..=END).step_by(WINDOW as usize) {
        let seconds = (time / 1_000).to_string();
        write(foot, &seconds, (x_of(time), 12), (16, SOFT, HPos::Center))?;
    }
    let axis = "seconds; aligned windows begin at the vertical lines";
    write(foot, axis, (x_of(END / 2), 36), (16, SOFT, HPos::Center))
}

fn draw_side(canvas: &Canvas<'_>) -> Drawn {
    let (_, height) = canvas.dim_in_pixel();
    let font = ("sans-serif", 16).into_font();
    let style = font.transform(FontTransform::Rotate270).color(&SOFT);
    let style = style.pos(Pos::new(HPos::Center, VPos::Center));
    let middle = i32::try_from((HEAD + height - FOOT) / 2)?;
    let axis = format!("requests admitted in the trailing {} s", WINDOW / 1_000);
    canvas.draw(&Text::new(axis, (11, middle), style))?;
    Ok(())
}

fn draw_panel(run: &Admitted, area: &Canvas<'_>) -> Drawn {
    let color = if run.most() > LIMIT { BEYOND } else { WITHIN };
    write(area, &run.caption(), (LEFT, 22), (18, color, HPos::Left))?;
    for (requests, meaning) in [(0, ""), (LIMIT, "limit"), (2 * LIMIT, "2 × limit")] {
        let (left, right) = (
            (LEFT - 10, y_of(requests)),
            (WIDTH - RIGHT + 8, y_of(requests)),
        );
        write(area, &requests.to_string(), left, (16, SOFT, HPos::Right))?;
        write(area, meaning, right, (16, SOFT, HPos::Left))?;
    }
    let mut panel = ChartBuilder::on(area)
        .margin_top(ABOVE)
        .margin_right(RIGHT)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0..END, 0..TOP)?;
    draw_lines(&mut panel)?;
    let steps = steps(&run.trailing());
    for (from, to, color) in [(0, LIMIT, WITHIN), (LIMIT, TOP, BEYOND)] {
        let corners = steps.iter().chain(&[(END, 0)]);
        let part: Vec<_> = corners.map(|(x, y)| (*x, *y.clamp(&from, &to))).collect();
        panel.draw_series([Polygon::new(part.as_slice(), color.mix(0.3).filled())])?;
    }
    panel.draw_series(LineSeries::new(steps, color.stroke_width(2)))?;
    Ok(())
}

fn draw_lines(panel: &mut Panel<'_>) -> Drawn {
    for time in (0..=END).step_by(WINDOW as usize) {
        let line = [(time, 0), (time, TOP)];
        panel.draw_series(LineSeries::new(line, EDGE))?;
    }
    for (requests, color) in [(0, EDGE), (LIMIT, AT_LIMIT), (2 * LIMIT, AT_TWICE)] {
        let line = [(0, requests), (END, requests)];
        panel.draw_series(LineSeries::new(line, color))?;
    }
    Ok(())
}

/// Returns the corners of a step line.
fn steps(counts: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut corners = vec![(0, 0)];
    let mut before = 0;
    for (time, requests) in counts.iter().copied() {
        if requests != before {
            corners.extend([(time, before), (time, requests)]);
        }
        before = requests;
    }
    corners.push((END, before));
    corners
}
