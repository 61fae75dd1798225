//! A document as the checks read it: its blocks of code, its tables, its commands and its links.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::commands::is_command;

/// The comment before a block that has a source.
const MARKER: (&str, &str) = ("<!-- from: ", " -->");

pub(crate) struct Document {
    /// Relative to the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
    /// The commands in sentences, with their lines.
    pub(crate) commands: Vec<(String, usize)>,
    /// The targets of links and pictures, with their lines.
    pub(crate) links: Vec<(String, usize)>,
}

/// A block of code, or a table.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    /// The lines between the fences, or the whole table.
    pub(crate) text: String,
    /// The place of `text` in the document.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    /// The name in the comment before it.
    pub(crate) from: Option<String>,
    /// The words after that name.
    pub(crate) arguments: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The language after the opening fence.
    Code(String),
    /// The cells of each row as they are written, the head first.
    Table(Vec<Vec<String>>),
}

impl Block {
    /// Returns the rows of a table, without its head.
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
        let mut blocks = Vec::new();
        let mut commands = Vec::new();
        let mut links = Vec::new();
        let mut marker: Option<String> = None;
        let mut rows: Vec<Vec<String>> = Vec::new();
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        let words_of = |marker: Option<String>| {
            let marker = marker.unwrap_or_default();
            let mut words = marker.split_whitespace().map(str::to_owned);
            (words.next(), words.collect::<Vec<_>>())
        };
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
                    let (from, arguments) = words_of(marker.take());
                    blocks.push(Block {
                        kind: Kind::Code(info.trim().to_owned()),
                        text: fenced[begin..end].to_owned(),
                        range: range.start + begin..range.start + end,
                        line: line_of(range.start),
                        from,
                        arguments,
                    });
                }
                Event::Start(Tag::TableHead | Tag::TableRow) => rows.push(Vec::new()),
                Event::Start(Tag::TableCell) => {
                    let cell = text[range].trim().trim_matches('|').trim().to_owned();
                    rows.last_mut().expect("a row").push(cell);
                }
                Event::End(TagEnd::Table) => {
                    let (from, arguments) = words_of(marker.take());
                    blocks.push(Block {
                        kind: Kind::Table(std::mem::take(&mut rows)),
                        text: text[range.clone()].to_owned(),
                        line: line_of(range.start),
                        range,
                        from,
                        arguments,
                    });
                }
                // rustdoc and the browser know where `<https://…>` leads.
                Event::Start(Tag::Link {
                    link_type: LinkType::Autolink,
                    ..
                }) => {}
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push((dest_url.to_string(), line_of(range.start)));
                }
                Event::Code(code) if is_command(&code) => {
                    commands.push((code.to_string(), line_of(range.start)));
                }
                // A comment belongs to the block right after it.
                Event::Start(Tag::Paragraph | Tag::Heading { .. }) => marker = None,
                _ => {}
            }
        }
        Self {
            path: path.to_owned(),
            text,
            blocks,
            commands,
            links,
        }
    }

    /// Returns the section under the heading that starts with `heading`. A line in bold is the lowest heading.
    pub(crate) fn section(&self, heading: &str) -> Self {
        let level = |line: &str| match line.bytes().take_while(|byte| *byte == b'#').count() {
            0 if line.starts_with("**") => 9,
            0 => 99,
            level => level,
        };
        let lines = self.text.lines();
        let mut lines = lines.skip_while(|line| !line.starts_with(heading));
        let head = lines.next();
        let head = head.unwrap_or_else(|| panic!("{} has no {heading:?}", self.path.display()));
        let body = lines.take_while(|line| level(line) > level(head));
        Self::parse(&self.path, body.collect::<Vec<_>>().join("\n"))
    }

    /// Returns the first table.
    pub(crate) fn table(&self) -> Table {
        let mut tables = self.blocks.iter().filter_map(|block| match &block.kind {
            Kind::Table(rows) => Some(rows.clone()),
            Kind::Code(_) => None,
        });
        let rows = tables.next().expect("a table");
        Table { rows }
    }
}

/// A table of results.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn cell(&self, row: &str, column: &str) -> &str {
        self.cell_after(row, column, 0)
    }

    /// Returns the cell that is `after` columns to the right of `column`.
    pub(crate) fn cell_after(&self, row: &str, column: &str, after: usize) -> &str {
        let heads = &self.rows[0];
        let at = heads.iter().position(|head| head == column);
        let at = at.unwrap_or_else(|| panic!("no column {column:?} in {heads:?}")) + after;
        let cells = self.rows.iter().find(|cells| cells[0] == row);
        &cells.unwrap_or_else(|| panic!("no row {row:?} under {heads:?}"))[at]
    }

    pub(crate) fn number(&self, row: &str, column: &str) -> f64 {
        let cell = self.cell(row, column).replace(' ', "");
        cell.parse()
            .unwrap_or_else(|_| panic!("{cell:?} of {row}, {column}"))
    }

    /// Returns the rows without the head.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows[1..]
    }
}

/// Writes a table whose last `right` columns are numbers.
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

/// Returns the numbers in a text, those with a space between their thousands without it.
pub(crate) fn numbers(text: &str) -> Vec<String> {
    let mut numbers = vec![String::new()];
    let mut rest = text.chars();
    while let Some(each) = rest.next() {
        let digits = rest.as_str().bytes().take_while(u8::is_ascii_digit).count();
        let number = numbers.last_mut().expect("one");
        match each {
            '0'..='9' => number.push(each),
            '.' if !number.is_empty() && digits > 0 => number.push('.'),
            ' ' if !number.is_empty() && digits == 3 => {}
            _ if !number.is_empty() => numbers.push(String::new()),
            _ => {}
        }
    }
    numbers.retain(|number| !number.is_empty());
    numbers
}
