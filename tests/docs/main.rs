//! Verifies the README, the guide and other pages: examples, commands and figures.
//!
//! - A block of Rust is a doctest, or repeats code of `snippets/shown` or of the package `examples/migrating`.
//! - A command, in a block of `sh` or in a sentence, is run by a test, `.ci/run` or the workflow (`commands.rs`).
//! - A block or table after `<!-- from: NAME -->` is compared with its source in `sources/`. Other tables are prose,
//!   unless a column is aligned to the right, as figures are.
//! - A link into the repository resolves.
//!
//! After a bench was run and its output is in its `RESULTS.md`, this writes the tables again:
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test docs`.

#![expect(clippy::float_arithmetic, reason = "measured figures are compared")]

mod check;
mod commands;
mod markdown;
mod project;
mod snippets;
mod sources;
#[path = "../support/mod.rs"]
mod support;
mod texts;
#[expect(dead_code, reason = "the picture needs more of it")]
#[path = "../../examples/boundary/traffic.rs"]
mod traffic;

use std::path::{Path, PathBuf};

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
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "benches/README.md",
        "examples/README.md",
        "crates/postgres/README.md",
        "crates/torture/README.md",
    ];
    let guide = files("src/guide", &["md"]).into_iter();
    let guide = guide.map(|path| path.strip_prefix(root()).expect("in the root").to_owned());
    let paths = pages.into_iter().map(PathBuf::from).chain(guide);
    paths.map(|path| Document::read(&path)).collect()
}

/// Whether rustdoc runs the document's Rust.
fn is_doctested(path: &Path) -> bool {
    for package in ["crates/postgres", "crates/torture"] {
        let Ok(own) = path.strip_prefix(package) else {
            continue;
        };
        let includes = read(&format!("{package}/src/lib.rs"));
        return includes.contains(&format!("include_str!(\"../{}\")", own.display()));
    }
    let includes = [read("src/lib.rs"), read("src/guide/mod.rs")].join("\n");
    let from_src = path
        .strip_prefix("src/guide")
        .map_or_else(|_| Path::new("..").join(path), Path::to_owned);
    includes.contains(&format!("include_str!(\"{}\")", from_src.display()))
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
        if regenerate {
            let path = root().join(&document.path);
            std::fs::write(path, regenerated(&document, &problems)).expect("a file");
            problems.retain(|problem| problem.replacement.is_none());
        }
        found.extend(report(&document, &problems));
    }
    for path in RESULTS {
        let document = Document::read(Path::new(path));
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
fn every_source_has_its_block() {
    let documents = documents();
    let mut blocks = documents.iter().flat_map(|document| &document.blocks);
    let used: Vec<_> = blocks
        .by_ref()
        .filter_map(|block| block.from.as_deref())
        .collect();
    for name in sources::names() {
        assert!(used.contains(&name), "no page has <!-- from: {name} -->");
    }
}

#[test]
fn the_code_of_the_migrating_package_is_shown_and_tested() {
    let documents = documents();
    let blocks = documents.iter().flat_map(|document| &document.blocks);
    let shown: Vec<_> = blocks
        .filter(|block| block.from.as_deref() == Some("migrating"))
        .map(|block| &block.arguments[..])
        .collect();
    let regions = sources::regions();
    assert!(!regions.is_empty());
    for region in &regions {
        assert!(shown.contains(&&region[..]), "no page has {region:?}");
    }
    let test = "cargo test --quiet --manifest-path examples/migrating/Cargo.toml";
    commands::is_run(test).unwrap_or_else(|error| panic!("{test}: {error}"));
}

#[test]
fn each_snippet_to_show_is_shown() {
    let documents = documents();
    let blocks = documents.iter().flat_map(|document| &document.blocks);
    let shown: Vec<_> = blocks
        .filter(|block| block.from.as_deref() == Some("snippets"))
        .map(|block| block.arguments.join(" "))
        .collect();
    for snippet in sources::snippets() {
        assert!(shown.contains(&snippet), "no page has {snippet}");
    }
}

#[test]
fn links_resolve() {
    let broken = documents()
        .into_iter()
        .flat_map(|document| report(&document, &broken_links(&document)));
    assert_eq!(broken.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn examples_start_with_their_command() {
    for example in Project::get().targets("example") {
        let (_, command) = sources::first_line(&example.name);
        assert!(
            command.starts_with(&format!("cargo run --example {}", example.name)),
            "{command}"
        );
        commands::is_run(&command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn the_minimum_rust_version_is_the_same_everywhere() {
    let version = &Project::get().rust_version;
    assert!(read("README.md").contains(&format!("Rust {version} or later")));
    assert!(read(".github/workflows/ci.yml").contains(&format!("+{version} ")));
}

#[test]
fn workflows_run_what_exists_by_pinned_actions_and_with_least_rights() {
    let servers = read("tests/compat/run");
    let found = files(".github/workflows", &["yml"]);
    assert_eq!(found.len(), 2, "{found:?}");
    for path in found {
        let workflow = std::fs::read_to_string(&path).expect("text");
        let publishes = path.ends_with("release.yml");
        let rights = ["\npermissions:\n  contents: read\n", "\npermissions: {}\n"];
        assert!(
            workflow.contains(rights[usize::from(publishes)]),
            "{path:?}"
        );
        for line in workflow
            .lines()
            .map(|line| line.trim().trim_start_matches("- "))
        {
            // The login at crates.io needs this right, and nothing else needs one.
            assert!(
                !line.contains(": write") || (publishes && line == "id-token: write"),
                "{line}"
            );
            if let Some((field, value)) = line.split_once(": ") {
                workflow_line(field, value, &servers);
            }
        }
    }
}

fn workflow_line(field: &str, value: &str, servers: &str) {
    match field {
        "run" => {
            let program = value.split(' ').next().expect("a word");
            let known = ["apt-get", "cargo", "git", "rustup", "zizmor", ">-"];
            let exists = known.contains(&program) || root().join(program).is_file();
            assert!(exists, "{value}");
        }
        "working-directory" => assert!(root().join(value).is_dir(), "{value}"),
        "uses" if value.starts_with("./") => assert!(root().join(value).is_file(), "{value}"),
        // A tag can be moved to another commit. The comment names the release for people and Dependabot.
        "uses" => {
            let (_, pinned) = value.split_once('@').expect("a version");
            let (commit, version) = pinned.split_once(" # v").expect(value);
            let is_commit =
                commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_release = version.split('.').all(|part| part.parse::<u32>().is_ok());
            assert!(is_commit && is_release, "{value}");
        }
        "server" => {
            for name in value.trim_matches(['[', ']']).split(", ") {
                let known = servers.contains(&format!("\n{name} "));
                assert!(known, "{name} is not in tests/compat/run");
            }
        }
        _ => {}
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
fn servers_named_in_the_docs_are_those_that_passed() {
    // "trixie/redis      Redis 8.0.2    passed (113 tests, 77 s)"
    let results = read("tests/compat/RESULTS.md");
    let passed = results.lines().filter(|line| line.contains(" passed ("));
    let mut passed: Vec<(&str, &str)> = passed
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (words[1], words[2]))
        .collect();
    assert!(!passed.is_empty());
    let readme = read("README.md");
    let (_, listed) = readme.split_once("seen to pass:").expect("a list");
    let (listed, _) = listed.split_once(".\n").expect("its end");
    let mut named = Vec::new();
    let mut server = "";
    for word in listed
        .split([' ', ',', '\n'])
        .filter(|word| !word.is_empty())
    {
        match word {
            "Redis" | "Valkey" => server = word,
            version if version.contains('.') => named.push((server, version)),
            _ => {}
        }
    }
    passed.sort_unstable();
    passed.dedup();
    named.sort_unstable();
    assert_eq!(named, passed);

    let number = |version: &str| -> Vec<u32> {
        let parts = version.split('.');
        parts.map(|part| part.parse().expect("a number")).collect()
    };
    let redis = passed.iter().filter(|(server, _)| *server == "Redis");
    let (_, oldest) = redis
        .min_by_key(|(_, version)| number(version))
        .expect("one");
    let oldest = format!("seen to pass from {oldest},");
    for page in ["README.md", "src/guide/deployment.md"] {
        assert!(read(page).contains(&oldest), "{page} lacks {oldest:?}");
    }
}

#[test]
fn the_crate_docs_list_every_feature() {
    let docs = read("src/lib.rs");
    for feature in Project::get().named_features() {
        assert!(docs.contains(&format!("//! | `{feature}` |")), "{feature}");
    }
}

#[test]
fn ci_builds_each_feature_alone() {
    let ci = read(".ci/run");
    let (_, features) = ci.split_once("for features in ").expect("a loop");
    let (features, _) = features.split_once(';').expect("its end");
    let built: Vec<&str> = features.split(' ').collect();
    for feature in Project::get().named_features() {
        assert!(built.contains(&feature), "{feature}");
    }
}

// The checks themselves: each finds what it is for.

fn problems_in(text: &str) -> String {
    let document = Document::parse(Path::new("README.md"), text.to_owned());
    report(&document, &problems(&document, false)).join("\n")
}

#[test]
fn stale_blocks_and_commands_are_found() {
    for (text, message) in [
        (
            "```text\nok\n```\n",
            "README.md:1: a block or figures without",
        ),
        (
            "```toml\n[a]\n```\n",
            "a block or figures without `<!-- from: NAME",
        ),
        (
            "<!-- from: no -->\n```text\n```\n",
            "no source is called no",
        ),
        (
            "<!-- from: axum -->\n\nText.\n\n```text\n```\n",
            "a block or figures without",
        ),
        (
            "<!-- from: features -->\n|a|\n|---|\n",
            "features has changed to\n| fea",
        ),
        (
            "<!-- from: benches -->\n|a|b|\n|---|---|\n|x|1e9|\n",
            "benches: no row",
        ),
        (
            "<!-- from: faults -->\n|a|\n|---|\n|7.75 h|\n",
            "7.75 of [\"7.75 h",
        ),
        ("|a|b|\n|---|--:|\n|x|1|\n", "a block or figures without"),
        ("```rust,ignore\n```\n", "Rust that is not compiled"),
        (
            "<!-- from: features -->\n```rust,ignore\n```\n",
            "Rust that is not compiled",
        ),
        (
            "<!-- from: migrating governor.rs before -->\n```rust,ignore\nfn f() {}\n```\n",
            "migrating has changed to\nuse std::num::NonZeroU32;\n",
        ),
        (
            "<!-- from: migrating -->\n```rust,ignore\n```\n",
            "migrating: name a file",
        ),
        (
            "<!-- from: migrating governor.rs -->\n```rust,ignore\n```\n",
            "migrating: name one region",
        ),
        (
            "<!-- from: migrating governor.rs none -->\n```rust,ignore\n```\n",
            "governor.rs has no `// page: none`",
        ),
        (
            "<!-- from: snippets none.rs -->\n```rust,ignore\n```\n",
            "there is no file tests/docs/snippets/shown/none.rs",
        ),
        (
            "<!-- from: migrating none.rs before -->\n```rust,ignore\n```\n",
            "there is no file examples/migrating/src/none.rs",
        ),
        (
            "<!-- from: migrating lib.rs before -->\n```rust,ignore\n```\n",
            "lib.rs is not a part of the package",
        ),
        ("```rust\n```\n", "rustdoc does not read"),
        ("```\n```\n", "rustdoc does not read"),
        (
            "```sh\ncurl http://a\n```\n",
            "`curl http://a`: nothing runs it",
        ),
        (
            "```sh\ncargo run --example none\n```\n",
            "no example \"none\"",
        ),
        (
            "```sh\ncargo run --example observability\n```\n",
            "it needs --features",
        ),
        (
            "```sh\ncargo bench --bench none\n```\n",
            "no bench \"none\"",
        ),
        ("```sh\ncd none && tests/run\n```\n", "no directory none"),
        (
            "```sh\ntests/run none  # so\n```\n",
            "`tests/run none`: nothing",
        ),
        (
            "```sh\ntests/run --test checks --test=none\n```\n",
            "no test \"none\"",
        ),
        ("```sh\ncargo test --test none\n```\n", "no test \"none\""),
        (
            "See `tests/run none`.\n",
            "README.md:1: `tests/run none`: nothing",
        ),
    ] {
        let found = problems_in(text);
        assert!(found.contains(message), "{text}\n{found}");
    }
    for text in [
        "```sh\n# All tests.\nTOLLGATE_STORE=memory: cargo run --example axum   # so\n```\n",
        "```sh\ntests/run --test checks parity -- --test-threads 1\n```\n",
        "```sh\ncargo bench --all-features \\\n  --bench memory\n```\n",
        "|a|\n|---|\n|b|\n",
    ] {
        assert_eq!(problems_in(text), "", "{text}");
    }
}

#[test]
fn only_the_stale_block_is_written_again() {
    let table = ("<!-- from: features -->", "\n| a |\n|---|\n| b |\n");
    let code = (
        "<!-- from: migrating governor.rs after -->",
        "\n```rust,ignore\nuse std;\n```\n",
    );
    for ((marker, stale), current, end) in [
        (table, "\n| feature | adds |", "|"),
        (
            code,
            "\n```rust,ignore\nuse std::time::Duration;\n",
            "}\n```",
        ),
    ] {
        let stale = format!("Before.\n\n{marker}{stale}\nAfter.\n");
        let document = Document::parse(Path::new("README.md"), stale);
        let text = regenerated(&document, &problems(&document, false));
        let start = format!("Before.\n\n{marker}{current}");
        assert!(text.starts_with(&start), "{text}");
        assert!(text.ends_with(&format!("{end}\n\nAfter.\n")), "{text}");
        assert_eq!(problems_in(&text), "");
    }
}

#[test]
fn broken_links_are_found() {
    let found = |path: &str, text: &str| {
        let document = Document::parse(Path::new(path), text.to_owned());
        report(&document, &broken_links(&document)).join("\n")
    };
    let links = "[a](nowhere.md) [b](LICENSE-MIT) [c](#none) [d](#here) [e](lua/README.md#a-call)\n\n# Here\n";
    assert_eq!(
        found("CONTRIBUTING.md", links),
        "CONTRIBUTING.md:1: broken link nowhere.md\nCONTRIBUTING.md:1: broken link #none"
    );

    let guide = "https://docs.rs/tollgate/latest/tollgate/guide";
    let source = "https://docs.rs/crate/tollgate/latest/source";
    for (link, error) in [
        ("LICENSE-MIT", ": docs.rs needs an absolute link"),
        ("docs/playground.png", ": docs.rs needs an absolute link"),
        (&*format!("{guide}/none/"), ""),
        (&format!("{guide}/keys"), ": a page ends with a slash"),
        (&format!("{guide}/keys/#none"), ""),
        (
            &format!("{source}/none.md"),
            ": not in the package, see `include` in Cargo.toml",
        ),
        (
            &format!("{source}/deny.toml"),
            ": not in the package, see `include` in Cargo.toml",
        ),
    ] {
        let broken = format!("src/guide/keys.md:1: broken link {link}{error}");
        assert_eq!(
            found("src/guide/keys.md", &format!("[a]({link})\n")),
            broken
        );
    }
    for link in [
        &*format!("{guide}/keys/"),
        &format!("{source}/docs/playground.png"),
    ] {
        let error = ": docs.rs has no such page before the first release";
        let broken = format!("README.md:1: broken link {link}{error}");
        assert_eq!(found("README.md", &format!("![a]({link})\n")), broken);
    }
    let missing = "![a](docs/none.png) [b](src/guide/keys.md#none)";
    assert_eq!(
        found("README.md", missing),
        "README.md:1: broken link docs/none.png\nREADME.md:1: broken link src/guide/keys.md#none"
    );
    for link in [
        "#here",
        "https://docs.rs/axum",
        "docs/playground.png",
        "src/guide/keys.md#behind-a-proxy",
        "lua/README.md#a-call",
    ] {
        assert_eq!(found("README.md", &format!("![a]({link})\n\n# Here\n")), "");
    }
    for link in [
        "#here",
        "https://docs.rs/axum",
        &format!("{guide}/keys/#behind-a-proxy"),
        &format!("{source}/docs/playground.png"),
        &format!("{source}/lua/README.md#a-call"),
    ] {
        let page = format!("![a]({link})\n\n# Here\n");
        assert_eq!(found("src/guide/security.md", &page), "");
    }
}
