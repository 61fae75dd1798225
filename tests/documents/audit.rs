//! What is wrong with a document: blocks that nobody runs or makes, and links that lead nowhere.

use std::path::{Component, Path, PathBuf};

use crate::commands;
use crate::makers::maker;
use crate::markdown::{Block, Document, Kind};

/// A complaint, and what the block is to be instead, if that is known.
pub(crate) struct Complaint {
    pub(crate) line: usize,
    pub(crate) says: String,
    pub(crate) instead: Option<(std::ops::Range<usize>, String)>,
}

/// `tested` says whether rustdoc runs the document's Rust.
pub(crate) fn complaints(document: &Document, tested: bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for block in &document.blocks {
        let mut complain = |says: String| {
            complaints.push(Complaint {
                line: block.line,
                says,
                instead: None,
            });
        };
        match &block.kind {
            Kind::Code(language) if is_rust(language) => {
                if let Err(says) = rust(language, tested) {
                    complain(says);
                }
            }
            Kind::Code(language) if language == "sh" && block.from.is_none() => {
                for command in commands::of(&block.text) {
                    not_run(&command).into_iter().for_each(&mut complain);
                }
            }
            _ => complaints.extend(made(block)),
        }
    }
    for (command, line) in &document.commands {
        complaints.extend(not_run(command).map(|says| Complaint {
            line: *line,
            says,
            instead: None,
        }));
    }
    complaints
}

fn not_run(command: &str) -> Option<String> {
    let says = commands::is_run(command).err()?;
    Some(format!("`{command}`: {says}"))
}

/// As rustdoc takes it.
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

fn rust(language: &str, tested: bool) -> Result<(), String> {
    if language.contains("ignore") {
        return Err("Rust that is not compiled: make it `no_run` at least".into());
    }
    if !tested {
        return Err(
            "Rust in a document that rustdoc does not read: name the language, or include the \
                    document in src/lib.rs or src/guide/mod.rs"
                .into(),
        );
    }
    Ok(())
}

fn made(block: &Block) -> Option<Complaint> {
    let complain = |says: String, instead| {
        Some(Complaint {
            line: block.line,
            says,
            instead,
        })
    };
    let Some(name) = &block.from else {
        let says = "a block or table without `<!-- from: NAME -->` before it, where NAME stands in \
                    tests/documents/makers/mod.rs";
        return complain(says.into(), None);
    };
    let Some(maker) = maker(name) else {
        let says =
            format!("nothing is called {name}: add it to MAKERS in tests/documents/makers/mod.rs");
        return complain(says, None);
    };
    match maker.wants(block) {
        Ok(None) => None,
        Ok(Some(instead)) => {
            let says = format!("{name} is stale; it is\n{instead}");
            complain(says, Some((block.range.clone(), instead)))
        }
        Err(says) => complain(format!("{name}: {says}"), None),
    }
}

/// The links into the repository that lead nowhere.
pub(crate) fn broken_links(document: &Document) -> Vec<Complaint> {
    let directory = document.path.parent().unwrap_or_else(|| Path::new(""));
    let mut broken = Vec::new();
    for (link, line) in &document.links {
        let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
        // Elsewhere, or an item of the code, which rustdoc looks for.
        if path.contains(':') || path == "crate" || link.starts_with('`') {
            continue;
        }
        let target = crate::root().join(plain(&directory.join(path)));
        let found = match (path, anchor) {
            (_, "") => target.exists(),
            ("", anchor) => has_heading(&document.text, anchor),
            _ => std::fs::read_to_string(&target).is_ok_and(|text| has_heading(&text, anchor)),
        };
        if !found {
            let says = format!("{link} leads nowhere");
            broken.push(Complaint {
                line: *line,
                says,
                instead: None,
            });
        }
    }
    broken
}

/// Without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|each| each.is_alphanumeric() || " -_".contains(*each));
        kept.collect::<String>().replace(' ', "-") == anchor
    })
}
