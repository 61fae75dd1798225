//! Finds out whether a command in a document is run by a test or by CI.

use crate::project::{Project, files, read};

/// Returns the commands of a block of `sh`, without comments, one for each program.
pub(crate) fn in_block(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let line = line.split_once(" #").map_or(line, |(command, _)| command);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .flat_map(|line| line.split(" && ").map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Whether a span of code in a sentence is a command: cargo with options, or a script of this repository.
pub(crate) fn is_command(code: &str) -> bool {
    let mut words = code.split_whitespace().filter(|word| !word.contains('='));
    match words.next() {
        Some("cargo") => words.any(|word| word.starts_with('-')),
        Some(
            "tests/run" | ".ci/floors" | ".ci/lint" | ".ci/neighbours" | ".ci/quick" | ".ci/run"
            | ".ci/semver",
        ) => true,
        _ => false,
    }
}

/// Succeeds if something runs the command. The error says what to do.
pub(crate) fn is_run(command: &str) -> Result<(), String> {
    let words = command.split(' ');
    let words: Vec<&str> = words.skip_while(|word| is_variable(word)).collect();
    let project = Project::get();
    match *words {
        ["cd", directory] => {
            let exists = crate::root().join(directory).is_dir().then_some(());
            exists.ok_or_else(|| format!("there is no directory {directory}"))
        }
        ["cargo", "run", ..] if words.contains(&"--example") => {
            let name = value_of("--example", &words);
            let example = project.target("example", name)?;
            features_are_named(&example.required_features, &words)?;
            a_test_runs(name)
        }
        ["cargo", "run", ..] if words.contains(&"--package") => {
            let name = value_of("--package", &words);
            let _ = project.target("bin", name)?;
            a_test_runs(name).or_else(|_| is_in_ci(&words.join(" ")))
        }
        ["cargo", "bench", ..] => {
            let name = value_of("--bench", &words);
            let bench = project.target("bench", name)?;
            features_are_named(&bench.required_features, &words)?;
            is_in_ci(&format!("--bench {name}"))
        }
        ["cargo", "doc", .., "--open"] => is_in_ci(command.trim_end_matches(" --open")),
        // The arguments of benches/peers choose what it measures.
        ["cargo", "run", "--release", "--ignore-rust-version", ..] => {
            is_in_ci("cargo run --release --ignore-rust-version")
        }
        ["cargo", "test", ..] if !tests(&words).is_empty() => tests_exist(&words),
        // The arguments go to `cargo test`.
        ["tests/run", argument, ..] if argument.starts_with('-') => tests_exist(&words),
        ["tests/run", suite, ..] => is_in_ci(&format!("tests/run {suite}")),
        _ => is_in_ci(&words.join(" ")),
    }
}

/// Whether the word is `NAME=value`, which may stand before a command.
fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

fn value_of<'a>(option: &str, words: &[&'a str]) -> &'a str {
    let mut rest = words.iter().skip_while(|word| **word != option).skip(1);
    rest.next().copied().unwrap_or_default()
}

/// Returns the value of each `--test`.
fn tests<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let value_at = |at: usize| match words[at] {
        "--test" => Some(words.get(at + 1).copied().unwrap_or_default()),
        word => word.strip_prefix("--test="),
    };
    (0..words.len()).filter_map(value_at).collect()
}

fn tests_exist(words: &[&str]) -> Result<(), String> {
    let mut tests = tests(words).into_iter();
    tests.try_for_each(|name| Project::get().target("test", name).map(drop))
}

/// Succeeds if a test names the example or program, and so starts it.
fn a_test_runs(example: &str) -> Result<(), String> {
    let documents = crate::root().join("tests/docs");
    let mut tests = files("tests", &["rs"]).into_iter();
    let named = [format!("\"{example}\""), format!("examples/{example}")];
    let run = tests.any(|path| {
        let text = std::fs::read_to_string(&path).expect("text");
        !path.starts_with(&documents) && named.iter().any(|name| text.contains(name))
    });
    run.then_some(())
        .ok_or_else(|| format!("no test runs {example}: add one to tests/examples/main.rs"))
}

/// Cargo refuses to build a target whose features are off.
fn features_are_named(required: &[String], words: &[&str]) -> Result<(), String> {
    let words: Vec<_> = words.iter().flat_map(|word| word.split(',')).collect();
    let missing = required.iter().find(|feature| {
        let is_named = words.contains(&"--all-features") || words.contains(&feature.as_str());
        !is_named && !Project::get().is_default(feature)
    });
    missing.map_or(Ok(()), |feature| {
        Err(format!("it needs --features {feature}"))
    })
}

/// Succeeds if `.ci/run`, `.ci/lint`, `.ci/neighbours` or the workflow runs the command.
fn is_in_ci(command: &str) -> Result<(), String> {
    let files = [
        ".ci/run",
        ".ci/lint",
        ".ci/neighbours",
        ".github/workflows/ci.yml",
    ];
    let ci = files.map(read).join("\n");
    let mut lines = ci
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let run = lines.any(|line| {
        line.match_indices(command).any(|(at, _)| {
            let rest = &line[at + command.len()..];
            rest.is_empty() || rest.starts_with([' ', '"', ';'])
        })
    });
    run.then_some(()).ok_or_else(|| {
        "nothing runs it: add it to .ci/run, .ci/lint, .ci/neighbours or .github/workflows/ci.yml, or run it in \
         tests/docs/sources/ and put `<!-- from: NAME -->` before the block"
            .to_owned()
    })
}
