//! Nothing that is written goes stale: every command, table and block of code in the documents is run, made
//! anew or looked through.
//!
//! - Rust is a doctest.
//! - A command in a block of `sh` is run by a test, by `.ci/run` or by the workflow: `commands.rs`.
//! - Any other block, and every table, has `<!-- from: NAME -->` before it. `makers/` has what that name
//!   stands for: the text itself, which is compared, or a look at what was written by hand.
//!
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test documents` writes what has changed into the
//! documents.

#![expect(clippy::float_arithmetic, reason = "what was measured is compared")]

mod audit;
mod commands;
mod makers;
mod markdown;
mod project;
#[path = "../support/mod.rs"]
mod support;
#[expect(dead_code, reason = "the picture needs more of it")]
#[path = "../../examples/boundary/traffic.rs"]
mod traffic;

use std::path::{Path, PathBuf};

use audit::{Complaint, broken_links, complaints};
use markdown::Document;
use project::{Project, files, read, text_of};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All that a person is to read, but results, which are as they were printed.
fn documents() -> Vec<Document> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "benches/README.md",
    ]
    .map(PathBuf::from)
    .into();
    let guide = files("src/guide", &["md"]).into_iter();
    paths.extend(guide.map(|path| path.strip_prefix(root()).expect("in it").to_owned()));
    paths.iter().map(|path| Document::read(path)).collect()
}

/// Whether rustdoc takes the Rust in it for tests.
fn is_tested(path: &Path) -> bool {
    let includes = [read("src/lib.rs"), read("src/guide/mod.rs")].join("\n");
    let from_src = path
        .strip_prefix("src/guide")
        .map_or_else(|_| Path::new("..").join(path), Path::to_owned);
    includes.contains(&format!("include_str!(\"{}\")", from_src.display()))
}

fn told(document: &Document, complaints: &[Complaint]) -> Vec<String> {
    let path = document.path.display();
    complaints
        .iter()
        .map(|each| format!("{path}:{}: {}", each.line, each.says))
        .collect()
}

/// A document of one block, or of some text.
fn document(text: &str) -> Document {
    Document::parse(Path::new("README.md"), text.to_owned())
}

#[test]
fn every_command_table_and_block_is_run_or_made() {
    let regenerate = std::env::var_os("TOLLGATE_REGENERATE").is_some();
    let mut all = Vec::new();
    for document in documents() {
        let mut complaints = complaints(&document, is_tested(&document.path));
        if regenerate {
            let path = root().join(&document.path);
            std::fs::write(path, anew(&document, &complaints)).expect("it can be written");
            complaints.retain(|each| each.instead.is_none());
        }
        all.extend(told(&document, &complaints));
    }
    assert!(
        all.is_empty(),
        "{}\n\nTo have what is made written anew: TOLLGATE_REGENERATE=1 cargo test --all-features --test documents",
        all.join("\n")
    );
}

/// The document with what is to stand in it instead.
fn anew(document: &Document, complaints: &[Complaint]) -> String {
    let mut text = document.text.clone();
    for (range, instead) in complaints
        .iter()
        .rev()
        .filter_map(|each| each.instead.as_ref())
    {
        text.replace_range(range.clone(), instead);
    }
    text
}

#[test]
fn links_lead_somewhere() {
    let broken = documents()
        .into_iter()
        .flat_map(|each| told(&each, &broken_links(&each)));
    assert_eq!(broken.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_the_documents_name_of_the_guide_is_a_page_of_it() {
    let guide = read("src/guide/mod.rs");
    for document in documents() {
        for page in document.text.split("guide::").skip(1) {
            let end = page.find(|each: char| !(each.is_ascii_alphanumeric() || each == '_'));
            let page = &page[..end.unwrap_or(page.len())];
            assert!(
                guide.contains(&format!("pub mod {page} ")),
                "{}: guide::{page}",
                document.path.display()
            );
        }
    }
    for page in files("src/guide", &["md"]) {
        assert!(
            is_tested(page.strip_prefix(root()).expect("in it")),
            "{} is no page",
            page.display()
        );
    }
}

#[test]
fn pages_that_leave_it_to_tests_of_their_own_have_them() {
    let tests = text_of(files("src/guide", &["rs"]));
    for document in documents() {
        let page = document.path.file_stem().expect("a name").to_string_lossy();
        let left = document
            .blocks
            .iter()
            .any(|block| block.from.as_deref() == Some("guide-tests"));
        let named = [format!("\"{page}\""), format!("guide/{page}.md")];
        assert!(
            !left || named.iter().any(|name| tests.contains(name)),
            "no test in src/guide names {page}"
        );
    }
}

#[test]
fn the_oldest_rust_is_the_same_everywhere() {
    let oldest = &Project::get().rust_version;
    assert!(read("README.md").contains(&format!("Rust {oldest} or later")));
    assert!(read(".github/workflows/ci.yml").contains(&format!("+{oldest} ")));
}

#[test]
fn the_changelog_tells_of_this_version() {
    let changelog = read("CHANGELOG.md");
    let version = env!("CARGO_PKG_VERSION");
    let heading = format!("\n## [{version}] - 20");
    let coming = format!("What {version} is to have");
    assert!(
        changelog.contains(&heading) || changelog.contains(&coming),
        "{version}"
    );
}

#[test]
fn the_readme_names_the_servers_that_were_seen_to_pass() {
    let results = read("tests/compat/RESULTS.md");
    let readme = read("README.md");
    let listed = read("tests/compat/run");
    let mut seen = 0;
    for line in results.lines().filter(|line| line.contains(" passed (")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, kind, version, ..] = words[..] else {
            panic!("{line}")
        };
        assert!(
            listed.contains(&format!("\n{name} ")),
            "{name} is not in tests/compat/run"
        );
        assert!(
            readme.contains(kind) && readme.contains(version),
            "the README lacks {kind} {version}"
        );
        seen += 1;
    }
    assert!(seen > 0);
    let (_, versions) = readme.split_once("seen to pass:").expect("what was seen");
    let (versions, _) = versions.split_once(".\n").expect("an end");
    for version in versions
        .split([' ', ',', '\n'])
        .filter(|word| word.contains('.'))
    {
        assert!(
            results.contains(version),
            "tests/compat/RESULTS.md lacks {version}"
        );
    }
}

#[test]
fn each_example_begins_with_a_command_that_is_run() {
    for example in Project::get().targets("example") {
        let (_, command) = makers::first_line(&example.name);
        assert!(
            command.starts_with(&format!("cargo run --example {}", example.name)),
            "{command}"
        );
        commands::is_run(&command).unwrap_or_else(|says| panic!("{command}: {says}"));
    }
}

#[test]
fn the_crates_docs_name_every_feature() {
    let docs = read("src/lib.rs");
    for feature in Project::get()
        .features
        .keys()
        .filter(|name| *name != "default")
    {
        assert!(docs.contains(&format!("//! | `{feature}` |")), "{feature}");
    }
}

#[test]
fn each_feature_is_built_by_itself() {
    let ci = read(".ci/run");
    let (_, features) = ci.split_once("for features in ").expect("a loop");
    let (features, _) = features.split_once(';').expect("its end");
    let built: Vec<&str> = features.split(' ').collect();
    for feature in Project::get()
        .features
        .keys()
        .filter(|name| *name != "default")
    {
        assert!(built.contains(&feature.as_str()), "{feature}");
    }
}

#[test]
fn results_say_when_where_and_by_which_command_they_were_printed() {
    for path in [
        "benches/RESULTS.md",
        "tests/chaos/RESULTS.md",
        "tests/compat/RESULTS.md",
    ] {
        let text = read(path);
        let head = text
            .split("\n\n")
            .nth(1)
            .expect("a first paragraph")
            .replace('\n', " ");
        assert!(
            head.contains("cores of ") && head.contains(" on 20"),
            "{path}: {head}"
        );
    }
    let benches = Document::read(Path::new("benches/RESULTS.md"));
    for heading in benches.text.lines().filter(|line| line.starts_with("## ")) {
        let section = benches.section(heading).text;
        let command = section
            .trim_start()
            .strip_prefix('`')
            .and_then(|rest| Some(rest.split_once("`\n")?.0));
        let command =
            command.unwrap_or_else(|| panic!("{heading} does not begin with its command"));
        for command in commands::of(command) {
            commands::is_run(&command)
                .unwrap_or_else(|says| panic!("{heading}: {command}: {says}"));
        }
    }
}

#[test]
fn the_workflow_runs_what_is_there_and_may_only_read() {
    let workflow = read(".github/workflows/ci.yml");
    assert!(
        workflow.contains("\npermissions:\n  contents: read\n") && !workflow.contains(": write")
    );
    let listed = read("tests/compat/run");
    for line in workflow
        .lines()
        .map(|line| line.trim().trim_start_matches("- "))
    {
        match line.split_once(": ") {
            Some(("run", command)) => {
                let program = command.split(' ').next().expect("a word");
                let known =
                    ["cargo", "rustup"].contains(&program) || root().join(program).is_file();
                assert!(known, "{command}");
            }
            Some(("working-directory", path)) => assert!(root().join(path).is_dir(), "{path}"),
            // A release of an action that gets its fixes, and not whatever its branch has.
            Some(("uses", action)) => {
                let version = action.split_once("@v").map(|(_, version)| version);
                assert!(
                    version.is_some_and(|version| version.parse::<u32>().is_ok()),
                    "{action}"
                );
            }
            Some(("server", names)) => {
                for name in names.trim_matches(['[', ']']).split(", ") {
                    assert!(
                        listed.contains(&format!("\n{name} ")),
                        "{name} is not in tests/compat/run"
                    );
                }
            }
            _ => {}
        }
    }
}

// That it would be seen.

fn complaint(text: &str) -> String {
    let document = document(text);
    told(&document, &complaints(&document, false)).join("\n")
}

#[test]
fn a_block_that_nobody_runs_or_makes_is_found() {
    for (text, says) in [
        (
            "```text\nok\n```\n",
            "README.md:1: a block or table without",
        ),
        ("|a|\n|---|\n|b|\n", "without `<!-- from: NAME -->`"),
        (
            "<!-- from: nothing -->\n```text\nok\n```\n",
            "nothing is called nothing",
        ),
        (
            "<!-- from: features -->\n\nText.\n\n```text\nok\n```\n",
            "without",
        ),
        (
            "<!-- from: features -->\n|a|\n|---|\n|b|\n",
            "features is stale; it is\n| feature | adds | default |",
        ),
        ("```rust,ignore\n```\n", "Rust that is not compiled"),
        ("```rust\n```\n", "rustdoc does not read"),
        ("```\n```\n", "rustdoc does not read"),
        ("```toml\n[a]\n```\n", "without"),
        (
            "```sh\ncurl http://127.0.0.1\n```\n",
            "`curl http://127.0.0.1`: nobody runs it",
        ),
        (
            "```sh\ncargo run --example none\n```\n",
            "no example \"none\"",
        ),
        (
            "```sh\ncargo run --example boundary\n```\n",
            "it needs --features test-util",
        ),
        (
            "```sh\ncargo bench --bench none\n```\n",
            "no bench \"none\"",
        ),
        (
            "```sh\ncd nowhere && tests/run\n```\n",
            "no directory nowhere",
        ),
        (
            "```sh\ntests/run nothing  # so\n```\n",
            "`tests/run nothing`: nobody runs it",
        ),
        ("```sh\ntests/run --test none\n```\n", "no test \"none\""),
        (
            "```sh\ntests/run --all-features --test parity --test=none\n```\n",
            "no test \"none\"",
        ),
        (
            "```sh\ncargo test --test parity --test none\n```\n",
            "no test \"none\"",
        ),
        (
            "So says `tests/run nothing`.\n",
            "README.md:1: `tests/run nothing`: nobody runs it",
        ),
        (
            "By `cargo run --all-features --example none`.\n",
            "no example \"none\"",
        ),
        (
            "<!-- from: items -->\n|a|\n|---|\n|`Quota::per_decade`|\n",
            "per_decade",
        ),
        (
            "<!-- from: items -->\n|a|\n|---|\n|for 3 s|\n",
            "has a number",
        ),
        (
            "<!-- from: contestants -->\n|a|\n|---|\n|`bare`|\n",
            "the table has {\"bare\"}",
        ),
        (
            "<!-- from: paths -->\n|a|\n|---|\n|`src/nothing.rs`|\n",
            "there is no src/nothing.rs",
        ),
        (
            "<!-- from: items -->\n```sh\ntollgate --invented\n```\n",
            "items: it looks at tables only",
        ),
        (
            "<!-- from: paths -->\n```text\n`src/nothing.rs`\n```\n",
            "paths: it looks at tables only",
        ),
        (
            "<!-- from: guide-tests -->\n```sh\ntollgate --invented\n```\n",
            "guide-tests: it looks at tables and `text` only, not at `sh`",
        ),
    ] {
        assert!(
            complaint(text).contains(says),
            "{text}\n{}",
            complaint(text)
        );
    }
    for text in [
        "```sh\n# All tests.\nTOLLGATE_STORE=memory: cargo run --example axum   # so\n```\n",
        "```sh\ntests/run --test parity proptest -- --test-threads 1\n```\n",
        "```sh\ncargo bench --all-features \\\n  --bench memory\n```\n",
        "<!-- from: items -->\n|a|\n|---|\n|`Quota::per_day(..)`, [x](crate::x1)|\n",
        "<!-- from: guide-tests -->\n```text\nok\n```\n",
    ] {
        assert_eq!(complaint(text), "", "{text}");
    }
}

#[test]
fn what_is_stale_is_written_anew_and_nothing_else_is() {
    let stale = "Before.\n\n<!-- from: features -->\n| a |\n|---|\n| b |\n\nAfter.\n";
    let document = document(stale);
    let text = anew(&document, &complaints(&document, false));
    assert!(
        text.starts_with("Before.\n\n<!-- from: features -->\n| feature | adds |"),
        "{text}"
    );
    assert!(text.ends_with("|\n\nAfter.\n"), "{text}");
    assert_eq!(complaint(&text), "");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let links = "[a](nowhere.md) [b](LICENSE-MIT) [c](#none) [d](#here) [e](lua/README.md#the-script)\n\n# Here\n";
    let document = Document::parse(Path::new("README.md"), links.into());
    let broken = told(&document, &broken_links(&document));
    assert_eq!(
        broken,
        [
            "README.md:1: nowhere.md leads nowhere",
            "README.md:1: #none leads nowhere"
        ]
    );
}
