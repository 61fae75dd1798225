//! Finds the problems of a document.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use crate::commands;
use crate::markdown::{Block, Document, Kind};
use crate::project::Project;
use crate::sources::{Source, source};

pub(crate) struct Problem {
    pub(crate) line: usize,
    pub(crate) message: String,
    /// The text that belongs there, if it can be generated.
    pub(crate) replacement: Option<(Range<usize>, String)>,
}

impl Problem {
    fn new(line: usize, message: String) -> Self {
        Self {
            line,
            message,
            replacement: None,
        }
    }
}

/// Returns the problems of all blocks and commands. `doctested` tells whether rustdoc runs the document's Rust.
pub(crate) fn problems(document: &Document, doctested: bool) -> Vec<Problem> {
    let blocks = document.blocks.iter();
    let mut problems: Vec<_> = blocks
        .filter_map(|block| {
            let plain = block.from.is_none();
            match &block.kind {
                Kind::Code(language) if is_rust(language) && !is_compiled_elsewhere(block) => {
                    rust(language, doctested)
                        .err()
                        .map(|message| Problem::new(block.line, message))
                }
                Kind::Code(language) if plain && language == "sh" => None,
                // A column of figures is aligned to the right.
                Kind::Table(_) if plain && !block.text.contains("--:") => None,
                _ => stale(block),
            }
        })
        .collect();
    problems.extend(stale_commands(document));
    // Replacements go from the last to the first.
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Returns the commands that nothing runs.
pub(crate) fn stale_commands(document: &Document) -> Vec<Problem> {
    let shell = document.blocks.iter().filter(|block| {
        block.from.is_none() && matches!(&block.kind, Kind::Code(language) if language == "sh")
    });
    let in_blocks = shell.flat_map(|block| {
        let commands = commands::in_block(&block.text).into_iter();
        commands.map(|command| (command, block.line))
    });
    let all = in_blocks.chain(document.commands.iter().cloned());
    all.filter_map(|(command, line)| {
        let error = commands::is_run(&command).err()?;
        Some(Problem::new(line, format!("`{command}`: {error}")))
    })
    .collect()
}

/// Whether rustdoc takes a block of this language for Rust.
fn is_rust(language: &str) -> bool {
    let known = [
        "rust",
        "no_run",
        "ignore",
        "should_panic",
        "compile_fail",
        "edition",
    ];
    let mut words = language.split(',');
    language.is_empty() || words.any(|word| known.iter().any(|one| word.trim().starts_with(one)))
}

/// Whether the block repeats code of a package, which is compiled and compared with the block.
fn is_compiled_elsewhere(block: &Block) -> bool {
    let source = block.from.as_deref().and_then(source);
    matches!(source, Some(Source::Compiled(_)))
}

fn rust(language: &str, doctested: bool) -> Result<(), String> {
    if language.contains("ignore") {
        return Err("Rust that is not compiled: make it `no_run` at least".to_owned());
    }
    doctested.then_some(()).ok_or_else(|| {
        "Rust in a document that rustdoc does not read: name another language, or include the \
         document in src/lib.rs or src/guide/mod.rs"
            .to_owned()
    })
}

/// Compares a block with its source.
fn stale(block: &Block) -> Option<Problem> {
    let Some(name) = &block.from else {
        let message = "a block or figures without `<!-- from: NAME -->` before it, for a NAME of \
                       tests/docs/sources/mod.rs";
        return Some(Problem::new(block.line, message.to_owned()));
    };
    let Some(source) = source(name) else {
        let message = format!("no source is called {name}: see tests/docs/sources/mod.rs");
        return Some(Problem::new(block.line, message));
    };
    match source.compare(block) {
        Ok(None) => None,
        Ok(Some(text)) => Some(Problem {
            line: block.line,
            message: format!("{name} has changed to\n{text}"),
            replacement: Some((block.range.clone(), text)),
        }),
        Err(error) => Some(Problem::new(block.line, format!("{name}: {error}"))),
    }
}

/// Where docs.rs will show the files of the package, and the pages of the guide. It sends a picture as it is.
const PACKAGED: &str = "https://docs.rs/crate/tollgate/latest/source/";
const GUIDE: &str = "https://docs.rs/tollgate/latest/tollgate/guide/";

/// Returns the links into the repository that lead nowhere: to a missing file or heading, or on docs.rs to a file that
/// the package does not have. rustdoc checks links to items.
pub(crate) fn broken_links(document: &Document) -> Vec<Problem> {
    let broken = document.links.iter().filter_map(|(link, line)| {
        let error = follow(document, link).err()?;
        Some(Problem::new(*line, format!("broken link {link}{error}")))
    });
    broken.collect()
}

fn follow(document: &Document, link: &str) -> Result<(), &'static str> {
    let directory = document.path.parent().unwrap_or_else(|| Path::new(""));
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let is_in_guide = document.path.starts_with("src/guide");
    let is_on_docs_rs = path.starts_with(PACKAGED) || path.starts_with(GUIDE);
    if is_on_docs_rs && !is_in_guide {
        return Err(": docs.rs has no such page before the first release");
    }
    let path = if let Some(file) = path.strip_prefix(PACKAGED) {
        let packaged = Project::packaged().contains(file);
        packaged
            .then(|| PathBuf::from(file))
            .ok_or(": not in the package, see `include` in Cargo.toml")?
    } else if let Some(page) = path.strip_prefix(GUIDE) {
        let page = page.strip_suffix('/').ok_or(": a page ends with a slash")?;
        Path::new("src/guide").join(page).with_extension("md")
    } else if path.contains(':') || path == "crate" || link.starts_with('`') {
        return Ok(());
    } else if path.is_empty() {
        document.path.clone()
    } else if is_in_guide {
        return Err(": docs.rs needs an absolute link");
    } else {
        normalized(&directory.join(path))
    };
    let resolves = match (path == document.path, anchor) {
        (_, "") => crate::root().join(path).exists(),
        (true, anchor) => has_heading(&document.text, anchor),
        (false, anchor) => std::fs::read_to_string(crate::root().join(path))
            .is_ok_and(|text| has_heading(&text, anchor)),
    };
    resolves.then_some(()).ok_or("")
}

/// Resolves each `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normalized.pop()),
            part => normalized.push(part),
        }
    }
    normalized
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = heading
            .chars()
            .filter(|each| each.is_alphanumeric() || " -_".contains(*each));
        letters.collect::<String>().replace(' ', "-") == anchor
    })
}
