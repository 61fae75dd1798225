//! The examples, from Cargo.toml and the first line of each.

use crate::markdown::{Block, table};
use crate::project::{Project, Target, read};

/// Lists the examples in the order of the block. New ones come last.
pub(super) fn examples(block: &Block) -> String {
    let place = |name: &str| {
        let start = format!("[`{name}`]");
        let mut rows = block.rows().iter();
        let place = rows.position(|cells| cells[0].starts_with(&start));
        place.unwrap_or(usize::MAX)
    };
    let mut examples: Vec<_> = Project::get().targets("example").collect();
    examples.sort_by_key(|example| (place(&example.name), &example.name));
    let rows = examples.into_iter().map(|example| {
        let path = example.source.strip_prefix(crate::root().join("examples"));
        let path = path.expect("an example").display();
        let (shows, _) = first_line(example);
        vec![format!("[`{}`]({path})", example.name), shows]
    });
    table(&["example", "shows"], 0, rows)
}

/// Returns what an example shows, and the command that runs it: the first line of its module docs.
pub(crate) fn first_line(example: &Target) -> (String, String) {
    let source = read(&example.source.to_string_lossy());
    let line = source
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("//! "));
    let parts = line.and_then(|line| line.strip_suffix('`')?.split_once(": `"));
    let (shows, command) = parts.unwrap_or_else(|| {
        panic!("the first line of {:?} should be like: //! A router with two limits: `cargo run --example two`", example.source)
    });
    (shows.to_owned(), command.to_owned())
}
