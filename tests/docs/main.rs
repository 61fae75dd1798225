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

use std::collections::BTreeSet;
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
fn governors_check_takes_as_long_as_the_bench_printed() {
    let results = Document::read(Path::new("benches/RESULTS.md"));
    let section = results.section("## In process");
    // The first row of a name is the one on one thread.
    let took = |name: &str| {
        let rows = section.blocks.iter().flat_map(markdown::Block::rows);
        let mut rows = rows.filter(|cells| cells[0].trim_matches('`') == name);
        rows.next().expect("a row")[2].clone()
    };
    let sentence = format!(
        "takes {} ns in governor, {} ns here with `Gcra` and {} ns with the default algorithm",
        took("governor, keyed"),
        took("Gcra"),
        took("SlidingLog")
    );
    let page = read("src/guide/migrating.md").replace('\n', " ");
    assert!(page.contains(&sentence), "{sentence}");
}

/// The pages that users read.
fn pages() -> Vec<Document> {
    let documents = documents().into_iter();
    let pages = documents
        .filter(|each| each.path.starts_with("src/guide") || each.path == Path::new("README.md"));
    pages.collect()
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 198, "{lines} lines");
}

#[test]
fn sentences_have_the_figures_of_the_results() {
    let results = Document::read(Path::new("benches/RESULTS.md"));
    let memory = results.section("## Memory and commands");
    let full = memory.table();
    let expiring = memory.section("**A log whose units expire**").table();
    let ten_units = memory.section("**A key with 10 live units").table();
    let live_key = |name: &str, column: &str| ten_units.number(name, column);
    let hashed = |after: usize| -> f64 {
        let cell = ten_units.cell_after("SlidingLog", "hashed header: name, bytes", after);
        cell.parse().expect("a number")
    };
    let live = |tasks: &str| {
        let mut lines = results
            .text
            .lines()
            .filter(|line| line.starts_with("**About 10 live units"));
        let heading = lines.find(|line| line.ends_with(&format!("; {tasks} at a time**")));
        results.section(heading.expect("a heading")).table()
    };
    let bytes = |name: &str, limit: &str| full.number(name, limit);
    let times = |limit| bytes("SortedSetLog", limit) / bytes("SlidingLog", limit);
    let observed = |row: &str, column: usize| -> u32 {
        let blocks = results.blocks.iter().flat_map(markdown::Block::rows);
        let mut rows = blocks.filter(|cells| cells[0] == row);
        rows.next().expect("a row")[column]
            .parse()
            .expect("a number")
    };
    let plain = observed("none; without the feature `metrics`", 1);
    let metric = observed("a Prometheus recorder", 1) - plain;
    let line = observed(
        "a Prometheus recorder and a log at debug: a line for each check",
        1,
    ) - plain;
    let hot = results.section("**Without HTTP, one hot key; ").table();
    let sentences = [
        (
            "algorithms",
            format!(
                "a key that has used 10 000 units takes {:.0} kB in Redis, and {:.1} kB with",
                bytes("SlidingLog", "limit 10 000") / 1e3,
                bytes("the same, no bucket empty", "limit 10 000") / 1e3
            ),
        ),
        (
            "algorithms",
            format!(
                "{:.0} bytes a unit for a full log of 10 000 units, and {:.0} while units expire",
                full.number("SlidingLog", "a unit of 10 000"),
                expiring
                    .cell_after("SlidingLog", "10 000 live units", 1)
                    .parse::<f64>()
                    .expect("a number")
            ),
        ),
        (
            "algorithms",
            format!(
                "a full set takes {:.1} times the memory of a log at a limit of 100, and {:.1} times at 10 000",
                times("limit 100"),
                times("limit 10 000")
            ),
        ),
        (
            "capacity",
            format!(
                "about {} 000 checks per second if 64 run at a time, and {} if each is sent alone. A key with the default \
                 algorithm takes {:.1} kB at a limit of 100",
                live("64")
                    .cell("SlidingLog", "decisions/s")
                    .trim_end_matches('k'),
                live("1").cell("SlidingLog", "decisions/s"),
                bytes("SlidingLog", "limit 100") / 1e3
            ),
        ),
        (
            "capacity",
            format!(
                "a hashed name, which takes {:.0} bytes more. `used_memory` counts {:.0} bytes more for each key",
                hashed(1) - live_key("SlidingLog", "`MEMORY USAGE`"),
                hashed(2) - hashed(1)
            ),
        ),
        (
            "capacity",
            format!(
                "a key with 10 units takes up to {:.0} bytes in a `SlidingLog`, and {:.0} in 60 buckets",
                live_key("SlidingLog", "the same, units expire"),
                live_key("SlidingBuckets(60)", "the same, units expire")
            ),
        ),
        (
            "migrating/scripts",
            format!(
                "A set of 1 000 members takes {:.0} kB in Redis, the default algorithm {:.0} kB",
                bytes("textbook sorted set", "limit 1 000") / 1e3,
                bytes("SlidingLog", "limit 1 000") / 1e3
            ),
        ),
        (
            "monitoring",
            format!(
                "a metric adds about {metric} ns to a check, a debug log line {}",
                line / 100 * 100
            ),
        ),
        (
            "levels",
            format!(
                "three levels serve {} times the requests of three layers",
                results
                    .section("**64 connections, 10000 users")
                    .table()
                    .cell("one layer of three levels", "× layers")
            ),
        ),
        (
            "leases",
            format!(
                "goes from {} 000 to {} million decisions per second",
                hot.cell("Redis", "a second").trim_end_matches('k'),
                hot.cell("Redis with a lease", "a second")
                    .trim_end_matches('M')
            ),
        ),
    ];
    for (page, sentence) in sentences {
        let text = read(&format!("src/guide/{page}.md"));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&sentence), "{page} lacks: {sentence}");
    }
    // A charge in a log: a time and a sum.
    assert!(read("src/guide/algorithms.md").contains("A charge takes 12 bytes"));
    assert!(read("lua/log_loop.lua").contains("local run = pack('>dI4', clock,"));
}

#[test]
fn of_the_clients_in_the_table_so_many_wait() {
    let clients = Document::read(Path::new("src/guide/clients.md"));
    let table = clients.section("# Clients of your service").table();
    let wait = |column: &str| {
        let rows = table.rows().iter();
        rows.filter(|row| table.cell(&row[0], column) == "waits")
            .count()
    };
    let sentence = format!(
        "Of the {} HTTP clients below, {} wait by this header, and none waits by the IETF's draft 11",
        table.rows().len(),
        wait("`Retry-After: 4`")
    );
    assert_eq!(wait("`RateLimit: \"api\";r=0;t=4` (draft 11)"), 0);
    assert!(
        clients.text.replace('\n', " ").contains(&sentence),
        "{sentence}"
    );
}

#[test]
fn each_fact_is_told_in_one_way() {
    for page in pages() {
        let path = page.path.display();
        for block in &page.blocks {
            let markdown::Kind::Table(rows) = &block.kind else {
                continue;
            };
            let mut heads = rows[0].clone();
            // Ratios to one column, all better if lower.
            heads.retain(|head| head != "×" && !head.is_empty());
            heads.sort_unstable();
            let columns = heads.len();
            heads.dedup();
            assert_eq!(columns, heads.len(), "{path}:{}: {heads:?}", block.line);
        }
    }
    let docs = read("src/lib.rs");
    let (_, not_done) = docs
        .split_once("//! # What this does not do\n")
        .expect("a section");
    let (not_done, _) = not_done.split_once("//! # ").expect("the next one");
    assert!(
        !not_done.contains("calendar"),
        "the feature `calendar` does it"
    );
}

/// What users can call and name. Take something away before you raise a bound.
#[test]
fn the_public_surface_does_not_grow_unnoticed() {
    const METHODS: usize = 359;
    const TYPES: usize = 90;
    let sources = ["src", "crates"].into_iter();
    let sources = sources.flat_map(|directory| files(directory, &["rs"]));
    let (mut methods, mut types) = (0, 0);
    for path in sources {
        let path = path.strip_prefix(root()).expect("in the root");
        // The attacks are a test, too: no service depends on them.
        let is_test = path.iter().any(|part| part == "tests")
            || path.starts_with("crates/torture")
            || path.ends_with("tests.rs")
            || path.ends_with("test_request.rs");
        if is_test {
            continue;
        }
        for line in read(&path.display().to_string()).lines() {
            let keywords: Vec<_> = line.split_whitespace().take(4).collect();
            let (first, rest) = keywords.split_first().unwrap_or((&"", &[]));
            if *first != "pub" {
                continue;
            }
            let mut rest = rest
                .iter()
                .skip_while(|word| ["const", "async"].contains(word));
            methods += usize::from(rest.next() == Some(&"fn"));
            let is_type = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
            types += usize::from(is_type.iter().any(|start| line.starts_with(start)));
        }
    }
    assert!(methods <= METHODS, "{methods} public methods, of {METHODS}");
    assert!(types <= TYPES, "{types} public types, of {TYPES}");
}

/// The versions in "Redis 6.2 or later" and "older than Redis 6.2", wherever a line ends.
fn oldest_versions(text: &str) -> Vec<String> {
    let words: Vec<_> = text
        .split_whitespace()
        .filter(|word| !matches!(*word, "///" | "//!"))
        .collect();
    let version = |at: usize| words[at].trim_end_matches([',', '.', ';', ':']).to_owned();
    let mut found = Vec::new();
    for at in 0..words.len().saturating_sub(3) {
        let rest = &words[at..at + 4];
        let is_minimum =
            matches!(rest, ["Redis", _, "or" | "and", later] if later.starts_with("later"));
        if is_minimum {
            found.push(version(at + 1));
        }
        if rest[..3] == ["older", "than", "Redis"] {
            found.push(version(at + 3));
        }
    }
    found
}

#[test]
fn the_oldest_server_is_the_same_everywhere() {
    let examined = read("src/store/redis/doctor/server.rs");
    let (_, constant) = examined
        .split_once("MIN_VERSION: (u32, u32) = (")
        .expect("a constant");
    let (oldest, _) = constant.split_once(");").expect("its end");
    let oldest = oldest.replace(", ", ".");
    let sources = files("src", &["rs"]).into_iter();
    let sources = sources.map(|path| path.strip_prefix(root()).expect("in the root").to_owned());
    let sources = sources.chain(["tests/docs/texts/list.txt".into()]);
    let sources = sources.map(|path| (read(&path.display().to_string()), path));
    let pages = pages().into_iter().map(|page| (page.text, page.path));
    let mut told = BTreeSet::new();
    for (text, path) in sources.chain(pages) {
        for version in oldest_versions(&text) {
            // A text with placeholders is made from the constant.
            if version.starts_with('{') {
                continue;
            }
            assert_eq!(version, oldest, "{}", path.display());
            told.insert(path.display().to_string());
        }
    }
    for path in [
        "README.md",
        "src/guide/deployment.md",
        "src/store/redis/doctor/examination.rs",
        "src/store/redis/redis_store.rs",
    ] {
        assert!(
            told.contains(path),
            "{path} does not tell the oldest server"
        );
    }
}

#[test]
fn every_start_has_the_same_reading_order() {
    let order = [
        "getting_started",
        "keys",
        "placement",
        "algorithms",
        "failures",
    ];
    let guide = read("src/guide/mod.rs");
    let mut modules = guide
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod "));
    let modules: Vec<_> = modules.by_ref().take(order.len()).collect();
    assert_eq!(modules, order.map(|name| format!("{name} {{}}")));
    for (path, links) in [
        (
            "README.md",
            order.map(|name| format!("(src/guide/{name}.md)")),
        ),
        ("src/lib.rs", order.map(|name| format!("(guide::{name})"))),
    ] {
        let text = read(path);
        // Each of them right after the one before.
        let (_, mut rest) = text.split_once(&links[0]).expect(path);
        for link in &links[1..] {
            let (between, after) = rest.split_once(link.as_str()).expect(link);
            assert!(between.len() < 40, "{path}: {link}");
            rest = after;
        }
    }
}

#[test]
fn results_name_their_date_and_their_machine() {
    for path in RESULTS {
        let text = read(path);
        let head = text.split("\n\n").nth(1).expect("a first paragraph");
        let head = head.replace('\n', " ");
        assert!(
            head.contains("cores of ") && head.contains(" on 20"),
            "{path}: {head}"
        );
    }
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
