//! The examples and features, from Cargo.toml and the first line of each example.

use crate::markdown::{Block, table};
use crate::project::{Project, read};

/// Lists the examples in the order of the block. New ones come last.
pub(super) fn examples(block: &Block) -> String {
    let place = |name: &str| {
        let row = format!("[`{name}`]");
        block
            .rows()
            .iter()
            .position(|cells| cells[0].starts_with(&row))
            .unwrap_or(usize::MAX)
    };
    let mut names: Vec<&str> = Project::get()
        .targets("example")
        .map(|one| &*one.name)
        .collect();
    names.sort_by_key(|name| (place(name), *name));
    let rows = names.into_iter().map(|name| {
        let source = &Project::get()
            .target("example", name)
            .expect("it is there")
            .source;
        let path = source
            .strip_prefix(crate::root().join("examples"))
            .expect("an example")
            .display();
        let shows = first_line(name).0;
        vec![format!("[`{name}`]({path})"), shows]
    });
    table(&["example", "shows"], 0, rows)
}

/// Returns what an example shows, and the command that runs it: the first line of its module docs.
pub(crate) fn first_line(name: &str) -> (String, String) {
    let source = &Project::get()
        .target("example", name)
        .expect("an example")
        .source;
    let source = std::fs::read_to_string(source).expect("a text");
    let line = source
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("//! "));
    let parts = line.and_then(|line| line.strip_suffix('`')?.split_once(": `"));
    let (shows, command) = parts.unwrap_or_else(|| {
        panic!("the first line of the example {name} should be like: //! A router with two limits: `cargo run --example {name}`")
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
            let default = if Project::get().is_default(name) {
                "yes"
            } else {
                ""
            };
            if name != "default" {
                let adds = adds.trim_end_matches('.').to_owned();
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
