//! A document as the checks read it: its blocks of code, its tables, its commands and its links.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::commands::is_command;
use crate::project::read;

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
#[derive(Default)]
pub(crate) struct Block {
    /// The language after the opening fence. `None` for a table.
    pub(crate) language: Option<String>,
    /// The cells of each row of a table as they are written, the head first.
    cells: Vec<Vec<String>>,
    /// The lines between the fences, or the whole table.
    pub(crate) text: String,
    /// The place of `text` in the document.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    /// The name in the comment before it.
    pub(crate) from: Option<String>,
    /// The words after that name.
    pub(crate) arguments: String,
}

impl Block {
    /// Returns all words of the comment before it.
    pub(crate) fn marker(&self) -> Option<String> {
        let name = self.from.as_ref()?;
        let words = format!("{name} {}", self.arguments);
        Some(words.trim_end().to_owned())
    }

    /// Returns the rows of a table, without its head.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        self.cells.get(1..).unwrap_or_default()
    }

    pub(crate) fn heads(&self) -> Vec<&str> {
        let heads = self.cells.iter().take(1).flatten();
        heads.map(String::as_str).collect()
    }

    pub(crate) fn cell(&self, row: &str, column: &str) -> &str {
        self.cell_after(row, column, 0)
    }

    /// Returns the cell that is `after` columns to the right of `column`.
    pub(crate) fn cell_after(&self, row: &str, column: &str, after: usize) -> &str {
        let heads = self.heads();
        let at = heads.iter().position(|head| *head == column);
        let at = at.unwrap_or_else(|| panic!("no column {column:?} in {heads:?}")) + after;
        let cells = self.rows().iter().find(|cells| cells[0] == row);
        &cells.unwrap_or_else(|| panic!("no row {row:?} under {heads:?}"))[at]
    }
}

impl Document {
    pub(crate) fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        Self::parse(path, read(&path.to_string_lossy()))
    }

    pub(crate) fn parse(path: &Path, text: String) -> Self {
        let mut document = Self {
            path: path.to_owned(),
            text: String::new(),
            blocks: Vec::new(),
            commands: Vec::new(),
            links: Vec::new(),
        };
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        // The next block, of which the comment and the cells come first.
        let mut next = Block::default();
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Html(html) => {
                    let words = html.trim().strip_prefix(MARKER.0);
                    if let Some(words) = words.and_then(|rest| rest.strip_suffix(MARKER.1)) {
                        let (name, arguments) = words.split_once(' ').unwrap_or((words, ""));
                        next.from = Some(name.to_owned());
                        arguments.clone_into(&mut next.arguments);
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let fenced = &text[range.clone()];
                    let begin = fenced.find('\n').map_or(fenced.len(), |at| at + 1);
                    let end = fenced.rfind("```").unwrap_or(fenced.len()).max(begin);
                    document.blocks.push(Block {
                        language: Some(info.trim().to_owned()),
                        text: fenced[begin..end].to_owned(),
                        range: range.start + begin..range.start + end,
                        line: line_of(range.start),
                        ..std::mem::take(&mut next)
                    });
                }
                Event::Start(Tag::TableHead | Tag::TableRow) => next.cells.push(Vec::new()),
                Event::Start(Tag::TableCell) => {
                    let cell = text[range].trim().trim_matches('|').trim().to_owned();
                    next.cells.last_mut().expect("a row").push(cell);
                }
                Event::End(TagEnd::Table) => document.blocks.push(Block {
                    text: text[range.clone()].to_owned(),
                    line: line_of(range.start),
                    range,
                    ..std::mem::take(&mut next)
                }),
                // rustdoc and the browser know where `<https://…>` leads.
                Event::Start(Tag::Link {
                    link_type: LinkType::Autolink,
                    ..
                }) => {}
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let link = (dest_url.to_string(), line_of(range.start));
                    document.links.push(link);
                }
                Event::Code(code) if is_command(&code) => {
                    let command = (code.to_string(), line_of(range.start));
                    document.commands.push(command);
                }
                // A comment belongs to the block right after it.
                Event::Start(Tag::Paragraph | Tag::Heading { .. }) => next = Block::default(),
                _ => {}
            }
        }
        document.text = text;
        document
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
    pub(crate) fn table(self) -> Block {
        let mut tables = self.blocks.into_iter();
        let table = tables.find(|block| block.language.is_none());
        table.expect("a table")
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
    let rules = [vec!["---"; heads.len() - right], vec!["--:"; right]].concat();
    text.push_str(&format!("|{}|\n", rules.join("|")));
    text.extend(rows.into_iter().map(line));
    text
}
