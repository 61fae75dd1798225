//! Verifies the README, the guide and other pages: examples, commands, generated tables and links.
//!
//! - A block of Rust is a doctest, or repeats code of `snippets/shown` or of the package `examples/migrating`.
//! - A command, in a block of `sh` or in a sentence, is run by a test, `.ci/run` or the workflow (`commands.rs`).
//! - A block or table after `<!-- from: NAME -->` is compared with its source in `sources/`. Other tables are prose,
//!   unless a column is aligned to the right, as figures are.
//! - A link into the repository resolves.
//!
//! After a bench was run and its output is in its `RESULTS.md`, this writes the tables again:
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test docs`.

mod check;
mod commands;
mod markdown;
mod messages;
mod private_paths;
mod project;
mod snippets;
mod sources;
#[path = "../support/mod.rs"]
mod support;
#[expect(dead_code, reason = "the picture needs more of it")]
#[path = "../../examples/boundary/traffic.rs"]
mod traffic;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use check::{Problem, broken_links, problems};
use markdown::Document;
use project::{Project, files, read};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Printed by benches and tests: only their commands are checked.
const RESULTS: [&str; 5] = [
    "benches/RESULTS.md",
    "tests/chaos/RESULTS.md",
    "tests/compat/RESULTS.md",
    "crates/postgres/benches/RESULTS.md",
    "crates/torture/RESULTS.md",
];

fn documents() -> Vec<Document> {
    let pages = [
        "README.md",
        "llms.txt",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "benches/README.md",
        "examples/README.md",
        "crates/doctor/README.md",
        "crates/models/README.md",
        "crates/postgres/README.md",
        "crates/simulation/README.md",
        "crates/torture/README.md",
    ];
    let guide = files("src/guide", &["md"]).into_iter();
    let guide = guide.map(|path| path.strip_prefix(root()).expect("in the root").to_owned());
    let paths = pages.into_iter().map(PathBuf::from).chain(guide);
    paths.map(Document::read).collect()
}

/// Whether rustdoc runs the document's Rust.
fn is_doctested(path: &Path) -> bool {
    let sources = [
        ("src/guide/mod.rs", "src/guide", ""),
        ("crates/doctor/src/lib.rs", "crates/doctor", "../"),
        ("crates/models/src/lib.rs", "crates/models", "../"),
        ("crates/postgres/src/lib.rs", "crates/postgres", "../"),
        ("crates/simulation/src/lib.rs", "crates/simulation", "../"),
        ("crates/torture/src/lib.rs", "crates/torture", "../"),
        ("src/lib.rs", "", "../"),
    ];
    sources.into_iter().any(|(source, directory, up)| {
        let path = path.strip_prefix(directory).map(Path::display);
        path.is_ok_and(|path| read(source).contains(&format!("include_str!(\"{up}{path}\")")))
    })
}

fn report(document: &Document, problems: &[Problem]) -> Vec<String> {
    let path = document.path.display();
    let problems = problems.iter();
    problems
        .map(|problem| format!("{path}:{}: {}", problem.line, problem.message))
        .collect()
}

#[test]
fn blocks_and_commands_are_current() {
    let regenerate = std::env::var_os("TOLLGATE_REGENERATE").is_some();
    let mut found = Vec::new();
    for document in documents() {
        let mut problems = problems(&document, is_doctested(&document.path));
        // Other tests write other pages at the same time.
        if regenerate && problems.iter().any(|each| each.replacement.is_some()) {
            let path = root().join(&document.path);
            std::fs::write(path, regenerated(&document, &problems)).expect("a file");
            problems.retain(|problem| problem.replacement.is_none());
        }
        found.extend(report(&document, &problems));
    }
    for path in RESULTS {
        let document = Document::read(path);
        found.extend(report(&document, &check::stale_commands(&document)));
    }
    assert!(
        found.is_empty(),
        "{}\n\nTo write the generated blocks again: TOLLGATE_REGENERATE=1 cargo test --all-features --test docs",
        found.join("\n")
    );
}

fn regenerated(document: &Document, problems: &[Problem]) -> String {
    let mut text = document.text.clone();
    let replacements = problems.iter().rev();
    for (range, replacement) in replacements.filter_map(|each| each.replacement.as_ref()) {
        text.replace_range(range.clone(), replacement);
    }
    text
}

#[test]
fn every_source_and_all_code_to_show_is_on_a_page() {
    let documents = documents();
    let blocks = documents.iter().flat_map(|document| &document.blocks);
    let markers: Vec<String> = blocks.filter_map(markdown::Block::marker).collect();
    for name in sources::names() {
        let start = format!("{name} ");
        let mut markers = markers.iter();
        let is_used = markers.any(|marker| marker == name || marker.starts_with(&start));
        assert!(is_used, "no page has <!-- from: {name} -->");
    }
    let regions = sources::regions();
    assert!(!regions.is_empty());
    for (region, _) in regions {
        assert!(markers.contains(&region), "no page has {region}");
    }
    let test = "cargo test --quiet --manifest-path examples/migrating/Cargo.toml";
    commands::is_run(test).unwrap_or_else(|error| panic!("{test}: {error}"));
}

#[test]
fn links_resolve() {
    let documents = documents().into_iter();
    let broken = documents.flat_map(|document| report(&document, &broken_links(&document)));
    assert_eq!(broken.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn examples_start_with_their_command() {
    for example in Project::get().targets("example") {
        let (_, command) = sources::first_line(example);
        let start = format!("cargo run --example {}", example.name);
        assert!(command.starts_with(&start), "{command}");
        commands::is_run(&command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn the_readme_names_the_two_commands_to_begin_with_in_at_most_100_lines() {
    let readme = Document::read("README.md");
    for command in ["cargo run --example axum", "tests/run"] {
        let is_named = readme.commands.iter().any(|(named, _)| named == command);
        assert!(is_named, "{command}");
    }
    assert!(readme.text.lines().count() <= 100);
}

#[test]
fn the_readme_and_the_guide_have_at_most_36_000_words() {
    let guide = files("src/guide", &["md"]).into_iter();
    let pages = guide.chain([root().join("README.md")]);
    let words = pages.map(|page| {
        let text = std::fs::read_to_string(page).expect("text");
        text.split_whitespace().count()
    });
    let words: usize = words.sum();
    assert!((20_000..=36_000).contains(&words), "{words}");
}

#[test]
fn recipes_have_at_most_30_lines() {
    /// It has three limits, each against another attack.
    const LOGIN: &str = "snippets login_limits.rs shown";
    let cookbook = Document::read("src/guide/cookbook.md");
    let code = cookbook
        .blocks
        .iter()
        .filter(|block| block.language.is_some());
    let recipes = code.filter(|block| block.marker().is_none_or(|marker| marker != LOGIN));
    for recipe in recipes {
        // Without empty lines, and those that rustdoc hides.
        let lines = recipe.text.lines().filter(|line| {
            let line = line.trim();
            !line.is_empty() && line != "#" && !line.starts_with("# ")
        });
        let lines = lines.count();
        assert!(lines <= 30, "line {}: {lines} lines", recipe.line);
    }
}

#[test]
fn the_minimum_rust_version_is_the_same_everywhere() {
    let version = &Project::get().rust_version;
    assert!(read("README.md").contains(&format!("Rust {version} or later")));
    assert!(read(".github/workflows/ci.yml").contains(&format!("+{version} ")));
}

#[test]
fn workflows_run_what_exists_by_pinned_actions() {
    let servers = read("tests/compat/run");
    for path in files(".github/workflows", &["yml"]) {
        let workflow = std::fs::read_to_string(&path).expect("text");
        let lines = workflow
            .lines()
            .map(|line| line.trim().trim_start_matches("- "));
        for (field, value) in lines.filter_map(|line| line.split_once(": ")) {
            let is_right = match field {
                "run" => {
                    let program = value.split(' ').next().expect("a word");
                    let known = ["apt-get", "cargo", "git", "rustup", "zizmor", ">-"];
                    known.contains(&program) || root().join(program).is_file()
                }
                "working-directory" => root().join(value).is_dir(),
                // A tag can be moved to another commit. The comment names the release for people and Dependabot.
                "uses" if !value.starts_with("./") => {
                    let (_, version) = value.split_once('@').expect("a version");
                    let (commit, _) = version.split_once(" # v").expect(value);
                    commit.len() == 40
                }
                "server" => {
                    let mut names = value.trim_matches(['[', ']']).split(", ");
                    names.all(|name| servers.contains(&format!("\n{name} ")))
                }
                _ => true,
            };
            assert!(is_right, "{path:?}: {field}: {value}");
        }
    }
}

#[test]
fn the_changelog_has_this_version() {
    let changelog = read("CHANGELOG.md");
    let version = env!("CARGO_PKG_VERSION");
    let released = changelog.contains(&format!("\n## [{version}] - 20"));
    let planned = changelog.contains(&format!("\n{version} will be"));
    assert!(released || planned, "{version}");
}

#[test]
fn each_feature_is_in_the_crate_docs_and_built_alone_by_ci() {
    let docs = read("src/lib.rs");
    let ci = read(".ci/lint");
    let (_, built) = ci.split_once("for features in ").expect("a loop");
    let (built, _) = built.split_once(';').expect("its end");
    for feature in Project::get().named_features() {
        assert!(docs.contains(&format!("//! | `{feature}` |")), "{feature}");
        assert!(built.split(' ').any(|each| each == feature), "{feature}");
    }
}

// The checks themselves: each finds what it is for.

fn problems_in(text: &str) -> String {
    let document = Document::parse(Path::new("README.md"), text.to_owned());
    report(&document, &problems(&document, false)).join("\n")
}

#[test]
fn stale_blocks_are_found() {
    let table = |name: &str, rows: &str| format!("<!-- from: {name} -->\n{rows}");
    let code = |language: &str| format!("```{language}\n```\n");
    for (text, message) in [
        (&*code("text"), "README.md:1: a block or figures without"),
        ("|a|b|\n|---|--:|\n|x|1|\n", "a block or figures without"),
        (&table("no", "|a|\n|---|\n"), "no source is called no"),
        (&table("examples", "|a|\n|---|\n"), "changed to\n| example"),
        (&table("benches", "|a|b|\n|---|---|\n|x|1e9|\n"), "no row"),
        (&table("migrating a", &code("rust,ignore")), "no module has"),
        (&code("rust,ignore"), "Rust that is not compiled"),
        (&code("rust"), "rustdoc does not read"),
    ] {
        let found = problems_in(text);
        assert!(found.contains(message), "{text}\n{found}");
    }
    assert_eq!(problems_in("|a|\n|---|\n"), "");
}

#[test]
fn commands_that_nothing_runs_are_found() {
    let problems_of = |command: &str| problems_in(&format!("```sh\n{command}\n```\n"));
    for (command, message) in [
        ("curl http://a", "`curl http://a`: nothing runs it"),
        ("cargo run --example none", "no example \"none\""),
        ("cargo run --example observability", "needs --features"),
        ("cargo bench --bench none", "no bench \"none\""),
        ("cd none && tests/run", "no directory none"),
        ("tests/run --test=none", "no test \"none\""),
    ] {
        let found = problems_of(command);
        assert!(found.contains(message), "{found}");
    }
    let found = problems_in("See `tests/run none`.\n");
    assert!(found.contains("`tests/run none`: nothing"), "{found}");
    let with_comments = "# So.\nTOLLGATE_STORE=memory: cargo run --example axum   # so";
    assert_eq!(problems_of(with_comments), "");
}

#[test]
fn only_the_stale_block_is_written_again() {
    for (marker, stale, current) in [
        ("examples", "| a |\n|---|\n", "| example | shows |"),
        (
            "migrating governor.rs after",
            "```rust,ignore\nuse std;\n```\n",
            "```rust,ignore\nuse std::time::Duration;\n",
        ),
    ] {
        let start = format!("Before.\n\n<!-- from: {marker} -->\n");
        let page = format!("{start}{stale}\nAfter.\n");
        let document = Document::parse(Path::new("README.md"), page);
        let text = regenerated(&document, &problems(&document, false));
        assert!(text.starts_with(&format!("{start}{current}")), "{text}");
        assert!(text.ends_with("\n\nAfter.\n"), "{text}");
        assert_eq!(problems_in(&text), "");
    }
}

#[test]
fn broken_links_are_found() {
    const ITEMS: &str = "https://docs.rs/tollgate/latest/tollgate/guide/keys/";
    const FILES: &str = "https://docs.rs/crate/tollgate/latest/source/docs/boundary.svg";
    const KEYS: &str = "src/guide/keys.md";
    for (page, link, problem) in [
        ("README.md", "nowhere.md", "broken link nowhere.md"),
        ("README.md", "#none", "broken link #none"),
        ("README.md", "lua/README.md#none", "README.md#none"),
        ("README.md", ITEMS, "before the first release"),
        (KEYS, ITEMS, "before the first release"),
        (KEYS, FILES, "before the first release"),
        (KEYS, "../../LICENSE-MIT", "rustdoc has no such file"),
        (KEYS, "placement.md", "rustdoc has no such file"),
        (KEYS, "#none", "broken link #none"),
        ("README.md", "#here", ""),
        ("README.md", "lua/README.md#a-call", ""),
        (KEYS, "https://docs.rs/axum", ""),
        (KEYS, "#here", ""),
    ] {
        let text = format!("![a]({link})\n\n# Here\n");
        let document = Document::parse(Path::new(page), text);
        let found = report(&document, &broken_links(&document)).concat();
        assert_eq!(found.is_empty(), problem.is_empty(), "{found}");
        assert!(found.contains(problem), "{found}");
    }
}

#[test]
fn a_picture_of_the_guide_is_embedded_for_rustdoc_and_has_a_path_in_a_clone() {
    const PICTURE: &str = "../../docs/boundary.svg";
    let by_reference = |name: &str| format!("# A\n\n![a][{name}]\n\n[{name}]: {PICTURE}\n");
    let algorithms = "src/guide/algorithms.md";
    for (page, text, resolves) in [
        (algorithms, by_reference("boundary"), true),
        (algorithms, by_reference("picture"), false),
        (algorithms, format!("# A\n\n![a]({PICTURE})\n"), false),
        ("src/guide/keys.md", by_reference("boundary"), false),
    ] {
        let document = Document::parse(Path::new(page), text);
        let found = report(&document, &broken_links(&document)).concat();
        assert_eq!(found.is_empty(), resolves, "{found}");
    }
}

#[test]
fn rustdoc_gets_each_picture_as_it_is_drawn() {
    let embedded_in = read("src/guide/mod.rs");
    for (name, page) in [
        ("boundary", "algorithms"),
        ("costs", "costs"),
        ("levels", "levels"),
        ("outage", "failures"),
        ("shares", "plans"),
    ] {
        let picture = format!("../../docs/{name}.svg");
        let drawn = std::fs::read(root().join(format!("docs/{name}.svg"))).expect("a picture");
        let embedded = format!("{}\n", STANDARD.encode(drawn));
        let path = root().join(format!("docs/{name}.svg.base64"));
        if std::env::var_os("TOLLGATE_REGENERATE").is_some() {
            std::fs::write(&path, &embedded).expect("a file");
        }
        let is_current = std::fs::read_to_string(path).is_ok_and(|text| text == embedded);
        assert!(
            is_current,
            "docs/{name}.svg has changed: see CONTRIBUTING.md"
        );
        assert!(embedded_in.contains(&format!("include_str!(\"../../docs/{name}.svg.base64\")")));

        // As rustdoc reads the page.
        let page = format!("src/guide/{page}.md");
        let text = read(&page);
        let text = format!("[{name}]: data:image/svg+xml;base64,{embedded}{text}");
        let document = Document::parse(Path::new(&page), text);
        let mut links = document.links.iter().map(|(link, _)| link.as_str());
        let shown = format!("data:image/svg+xml;base64,{}", embedded.trim_end());
        assert!(links.any(|link| link == shown), "{name}");
        assert!(
            !document.links.iter().any(|(link, _)| *link == picture),
            "{name}"
        );
    }
}
