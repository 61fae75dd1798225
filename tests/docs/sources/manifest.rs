//! The examples and features, from Cargo.toml and the first line of each example.

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

/// Lists each feature with the comment above it in Cargo.toml.
pub(super) fn features() -> String {
    let manifest = read("Cargo.toml");
    let (_, features) = manifest.split_once("\n[features]\n").expect("features");
    let (features, _) = features.split_once("\n[").expect("what follows them");
    let mut rows = Vec::new();
    let mut comment = Vec::new();
    for line in features.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
        } else if let Some((name, _)) = line.split_once(" = ") {
            let adds = std::mem::take(&mut comment).join(" ");
            let adds = adds.trim_end_matches('.').to_owned();
            let is_default = Project::get().is_default(name);
            let default = if is_default { "yes" } else { "" };
            if name != "default" {
                rows.push(vec![format!("`{name}`"), adds, default.to_owned()]);
            }
        }
    }
    assert_eq!(
        rows.len(),
        Project::get().named_features().count(),
        "each feature on its own line"
    );
    table(&["feature", "adds", "default"], 0, rows)
}
