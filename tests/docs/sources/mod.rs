//! The sources of annotated blocks: `<!-- from: NAME -->` stands for the entry NAME of [`SOURCES`]. Words after
//! the name are arguments: `<!-- from: migrating FILE REGION -->`.
//!
//! To add one, write a function in a file of this directory and name it in [`SOURCES`].

mod algorithms;
mod clients;
mod code;
mod manifest;
mod measured;
mod moving;
mod plans;
mod programs;
mod requests;
mod torture;

use std::future::Future;

use crate::markdown::Block;

pub(crate) use code::regions;
pub(crate) use manifest::first_line;

pub(crate) enum Source {
    /// Generates the text of the block.
    Text(fn(&Block) -> String),
    /// Generates a text that differs from the block in numbers only.
    Shape(fn(&Block) -> String),
    /// Returns code of a package. So the block may be Rust that rustdoc ignores.
    Compiled(fn(&Block) -> Result<String, String>),
    /// Checks a block that is written by hand.
    Check(fn(&Block) -> Result<(), String>),
}

const SOURCES: &[(&str, Source)] = &[
    ("promises", Source::Text(algorithms::promises)),
    ("try-axum", Source::Text(|_| programs::axum().0)),
    ("axum", Source::Text(|_| programs::axum().1)),
    ("doctor", Source::Shape(programs::doctor)),
    ("examples", Source::Text(manifest::examples)),
    ("redis-cost", Source::Text(measured::redis_cost)),
    ("redis-memory", Source::Text(measured::redis_memory)),
    ("beside-peers", Source::Text(measured::beside_peers)),
    ("leases", Source::Text(measured::leases)),
    ("benches", Source::Check(measured::printed)),
    ("governor-quotas", Source::Check(moving::quotas)),
    ("headers", Source::Check(moving::headers)),
    ("migrating", Source::Compiled(code::code)),
    ("snippets", Source::Compiled(code::code)),
    ("own_store", Source::Compiled(code::code)),
    ("grpc-rejection", Source::Check(requests::grpc_rejection)),
    ("clients", Source::Check(clients::clients)),
    ("plans", Source::Check(plans::plans)),
    ("torture", Source::Text(|_| torture::attacks())),
    // `tests/peers` runs the command behind an nginx with these settings.
    ("nginx", Source::Check(|_| Ok(()))),
    // `tests/metrics` compares these with what is emitted.
    ("metrics", Source::Check(|_| Ok(()))),
];

pub(crate) fn source(name: &str) -> Option<&'static Source> {
    let mut sources = SOURCES.iter();
    let (_, source) = sources.find(|(each, _)| *each == name)?;
    Some(source)
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(name, _)| *name)
}

impl Source {
    /// Returns the text that the block should have, if it has another one.
    pub(crate) fn compare(&self, block: &Block) -> Result<Option<String>, String> {
        let text = match self {
            Self::Text(generate) | Self::Shape(generate) => generate(block),
            Self::Compiled(code) => code(block)?,
            Self::Check(check) => return check(block).map(|()| None),
        };
        let is_current = match self {
            Self::Shape(_) => shape(&text) == shape(&block.text),
            _ => text == block.text,
        };
        Ok((!is_current).then_some(text))
    }
}

/// Returns what is around the numbers.
fn shape(text: &str) -> Vec<&str> {
    let parts = text.split(|each: char| each.is_ascii_digit());
    parts.filter(|part| !["", "."].contains(part)).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}
