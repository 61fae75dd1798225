//! Finds the problems of a document.

use std::ops::Range;
use std::path::Path;

use crate::commands;
use crate::markdown::{Block, Document};
use crate::project::read;
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
        .filter_map(|block| match &block.language {
            Some(language) if is_rust(language) && !is_compiled_elsewhere(block) => {
                let error = rust(language, doctested)?;
                Some(Problem::new(block.line, error.to_owned()))
            }
            Some(language) if block.from.is_none() && language == "sh" => None,
            // A column of figures is aligned to the right.
            None if block.from.is_none() && !block.text.contains("--:") => None,
            _ => stale(block),
        })
        .collect();
    problems.extend(stale_commands(document));
    // Replacements go from the last to the first.
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Returns the commands that nothing runs.
pub(crate) fn stale_commands(document: &Document) -> Vec<Problem> {
    let shell = document
        .blocks
        .iter()
        .filter(|block| block.from.is_none() && block.language.as_deref() == Some("sh"));
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
    let known = ["rust", "no_run", "ignore", "should_panic", "compile_fail"];
    let mut words = language.split(',');
    language.is_empty() || words.any(|word| known.iter().any(|one| word.trim().starts_with(one)))
}

/// Whether the block repeats code of a package, which is compiled and compared with the block.
fn is_compiled_elsewhere(block: &Block) -> bool {
    let source = block.from.as_deref().and_then(source);
    matches!(source, Some(Source::Compiled(_)))
}

/// Returns what is wrong with a block of Rust.
fn rust(language: &str, doctested: bool) -> Option<&'static str> {
    if language.contains("ignore") {
        return Some("Rust that is not compiled: make it `no_run` at least");
    }
    (!doctested).then_some(
        "Rust in a document that rustdoc does not read: name another language, or include the \
         document in src/lib.rs or src/guide/mod.rs",
    )
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

/// Where docs.rs will show the files of the package, and its items.
const DOCS_RS: [&str; 2] = [
    "https://docs.rs/crate/tollgate/",
    "https://docs.rs/tollgate/",
];

/// Returns the links into the repository that lead nowhere: to a missing file or heading, in the guide to a file that rustdoc
/// does not find, or to docs.rs. rustdoc checks links to items.
pub(crate) fn broken_links(document: &Document) -> Vec<Problem> {
    let broken = document.links.iter().filter_map(|(link, line)| {
        let error = follow(document, link).err()?;
        Some(Problem::new(*line, format!("broken link {link}{error}")))
    });
    broken.collect()
}

fn follow(document: &Document, link: &str) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let found = |is_found: bool| is_found.then_some(()).ok_or("");
    let is_in_guide = document.path.starts_with("src/guide");
    if DOCS_RS.iter().any(|start| path.starts_with(start)) {
        return Err(": docs.rs has no such page before the first release");
    }
    if path.contains(':') || path == "crate" || link.starts_with('`') {
        return Ok(());
    }
    if path.is_empty() {
        return found(has_heading(&document.text, anchor));
    }
    if is_in_guide && !is_embedded(document, path) {
        return Err(": rustdoc has no such file, and src/guide/mod.rs does not embed it");
    }
    let path = document.path.with_file_name(path);
    let path = crate::root().join(path);
    let text = || std::fs::read_to_string(&path);
    found(
        path.exists() && (anchor.is_empty() || text().is_ok_and(|text| has_heading(&text, anchor))),
    )
}

/// Whether rustdoc gets the picture itself: `src/guide/mod.rs` defines the reference, called as the file, before the page does.
fn is_embedded(document: &Document, path: &str) -> bool {
    let name = Path::new(path).file_stem().unwrap_or_default().display();
    let page = document.path.file_name().unwrap_or_default().display();
    let definition = format!(
        "#[doc = concat!(\"[{name}]: data:image/svg+xml;base64,\", include_str!(\"{path}.base64\"))]\n\
         #[doc = include_str!(\"{page}\")]\n"
    );
    let text = &document.text;
    let is_by_reference = text.contains(&format!("\n[{name}]: {path}\n"));
    let is_inline = text.contains(&format!("]({path}"));
    is_by_reference && !is_inline && read("src/guide/mod.rs").contains(&definition)
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
