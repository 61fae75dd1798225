//! A document as these tests read it: its blocks of code, its tables, and where it links to.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

/// What stands before a block that is made from somewhere: `<!-- from: NAME -->`.
const MARKER: (&str, &str) = ("<!-- from: ", " -->");

pub(crate) struct Document {
    /// From the root of the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
    /// Commands within its sentences, and the line.
    pub(crate) commands: Vec<(String, usize)>,
    /// Where its links and pictures point, as written, and the line.
    pub(crate) links: Vec<(String, usize)>,
}

/// A block of code, or a table.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    /// Of code, what stands between the fences; of a table, all of it.
    pub(crate) text: String,
    /// Where that is in the document.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    /// What the comment before it says that it is made from.
    pub(crate) from: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// What follows the opening fence.
    Code(String),
    /// The cells of each row, as they are written; the heads first.
    Table(Vec<Vec<String>>),
}

impl Block {
    /// The rows of a table below its heads.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        match &self.kind {
            Kind::Table(rows) => &rows[1..],
            Kind::Code(_) => &[],
        }
    }
}

impl Document {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(crate::root().join(path));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(path, text)
    }

    pub(crate) fn parse(path: &Path, text: String) -> Self {
        let mut document = Self {
            path: path.to_owned(),
            blocks: Vec::new(),
            commands: Vec::new(),
            links: Vec::new(),
            text: String::new(),
        };
        let mut marker = None;
        let mut cells = Vec::new();
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Html(html) => {
                    let name = html.trim().strip_prefix(MARKER.0);
                    let name = name.and_then(|rest| rest.strip_suffix(MARKER.1));
                    marker = name.map(|name| name.trim().to_owned()).or(marker);
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let fenced = &text[range.clone()];
                    let begin = fenced.find('\n').map_or(fenced.len(), |at| at + 1);
                    let end = fenced.rfind("```").unwrap_or(fenced.len()).max(begin);
                    document.blocks.push(Block {
                        kind: Kind::Code(info.trim().to_owned()),
                        text: fenced[begin..end].to_owned(),
                        range: range.start + begin..range.start + end,
                        line: line_of(range.start),
                        from: marker.take(),
                    });
                }
                Event::Start(Tag::TableHead | Tag::TableRow) => cells.push(Vec::new()),
                Event::Start(Tag::TableCell) => {
                    let cell = text[range].trim().trim_matches('|').trim().to_owned();
                    cells.last_mut().expect("a row").push(cell);
                }
                Event::Start(Tag::Table(_)) => {
                    document.blocks.push(Block {
                        kind: Kind::Table(Vec::new()),
                        text: text[range.clone()].to_owned(),
                        line: line_of(range.start),
                        range,
                        from: marker.take(),
                    });
                }
                Event::End(TagEnd::Table) => {
                    let table = document.blocks.last_mut().expect("it has begun");
                    table.kind = Kind::Table(std::mem::take(&mut cells));
                }
                Event::Start(Tag::Link {
                    dest_url,
                    link_type,
                    ..
                }) if link_type != LinkType::Autolink => {
                    document
                        .links
                        .push((dest_url.to_string(), line_of(range.start)));
                }
                Event::Start(Tag::Image { dest_url, .. }) => {
                    document
                        .links
                        .push((dest_url.to_string(), line_of(range.start)));
                }
                Event::Code(code) if is_command(&code) => {
                    document
                        .commands
                        .push((code.to_string(), line_of(range.start)));
                }
                // A comment belongs to what follows it at once.
                Event::Start(Tag::Paragraph | Tag::Heading { .. }) => marker = None,
                _ => {}
            }
        }
        document.text = text;
        document
    }

    /// The section under a heading that begins like this, up to the next heading of its level or above;
    /// a line in bold by itself is the lowest kind of heading.
    pub(crate) fn section(&self, heading: &str) -> Self {
        let level = |line: &str| match line.bytes().take_while(|byte| *byte == b'#').count() {
            0 if line.starts_with("**") => 9,
            0 => 99,
            level => level,
        };
        let mut lines = self
            .text
            .lines()
            .skip_while(|line| !line.starts_with(heading));
        let head = lines.next();
        let head = head.unwrap_or_else(|| panic!("{} has no {heading:?}", self.path.display()));
        let body = lines.take_while(|line| level(line) > level(head));
        Self::parse(&self.path, body.collect::<Vec<_>>().join("\n"))
    }

    /// The only table.
    pub(crate) fn table(&self) -> Table {
        let mut tables = self.blocks.iter().filter_map(|block| match &block.kind {
            Kind::Table(rows) => Some(rows.clone()),
            Kind::Code(_) => None,
        });
        let rows = tables.next().expect("a table");
        Table { rows }
    }
}

/// Whether a piece of code is typed into a terminal: cargo with more than a word, or a script of ours.
fn is_command(code: &str) -> bool {
    let mut words = code.split_whitespace().filter(|word| !word.contains('='));
    match words.next() {
        Some("cargo") => words.any(|word| word.starts_with('-')),
        Some("tests/run" | ".ci/run" | ".ci/semver") => true,
        _ => false,
    }
}

/// A table of results, in which cells are found by what they are about.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The cell in the row that begins with `row`, under `column`, or so many columns `after` it.
    pub(crate) fn cell(&self, row: &str, column: &str, after: usize) -> &str {
        let heads = &self.rows[0];
        let at = heads.iter().position(|head| head == column);
        let at = at.unwrap_or_else(|| panic!("no column {column:?} in {heads:?}")) + after;
        let cells = self.rows.iter().find(|cells| cells[0] == row);
        &cells.unwrap_or_else(|| panic!("no row {row:?} under {heads:?}"))[at]
    }

    pub(crate) fn number(&self, row: &str, column: &str) -> f64 {
        let cell = self.cell(row, column, 0);
        cell.parse()
            .unwrap_or_else(|_| panic!("{cell:?} of {row}, {column}"))
    }

    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows[1..]
    }
}

/// A table as it is written.
pub(crate) fn table(
    heads: &[&str],
    right: usize,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let mut text = line(heads.iter().map(|head| (*head).to_owned()).collect());
    let rules = (0..heads.len()).map(|at| {
        if at + right < heads.len() {
            "---"
        } else {
            "--:"
        }
    });
    text.push_str(&format!("|{}|\n", rules.collect::<Vec<_>>().join("|")));
    text.extend(rows.into_iter().map(line));
    text
}
