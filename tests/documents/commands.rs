//! Who runs the commands that documents tell to type. A command that nobody runs may be stale.

use crate::project::{Project, files, read, text_of};

/// The commands of a block of `sh`: without what comments say, and what goes on in the next line joined.
pub(crate) fn of(block: &str) -> Vec<String> {
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

/// Looks who runs it; else says what to do.
pub(crate) fn is_run(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command
        .split(' ')
        .skip_while(|word| is_setting(word))
        .collect();
    let after = |word: &str| {
        let at = words.iter().position(|each| *each == word);
        at.and_then(|at| words.get(at + 1))
            .copied()
            .unwrap_or_default()
    };
    match *words {
        ["cd", directory] => {
            let there = crate::root().join(directory).is_dir();
            there
                .then_some(())
                .ok_or_else(|| format!("there is no directory {directory}"))
        }
        ["cargo", "run", ..] if words.contains(&"--example") => {
            example_is_run(after("--example"), &words)
        }
        ["cargo", "doc", .., "--open"] => is_in_ci(command.trim_end_matches(" --open")),
        // Where the benches beside peers are.
        ["cargo", "run", "--release", "--ignore-rust-version", ..] => {
            is_in_ci("cargo run --release --ignore-rust-version")
        }
        ["cargo", "bench", ..] => {
            let bench = after("--bench");
            Project::get().target("bench", bench)?;
            features_are_named(
                &Project::get().target("bench", bench)?.required_features,
                &words,
            )?;
            is_in_ci(&format!("--bench {bench}"))
        }
        ["cargo", "test", ..] if !tests(&words).is_empty() => tests_are_there(&words),
        // Which hands it all to `cargo test`.
        ["tests/run", suite, ..] if suite.starts_with('-') => tests_are_there(&words),
        ["tests/run"] => is_in_ci("tests/run"),
        ["tests/run", suite, ..] => is_in_ci(&format!("tests/run {suite}")),
        _ => is_in_ci(&words.join(" ")),
    }
}

/// `NAME=value` before a command.
fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

/// What follows each `--test`.
fn tests<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let follows = |at: usize| match words[at] {
        "--test" => Some(words.get(at + 1).copied().unwrap_or_default()),
        word => word.strip_prefix("--test="),
    };
    (0..words.len()).filter_map(follows).collect()
}

fn tests_are_there(words: &[&str]) -> Result<(), String> {
    let mut tests = tests(words).into_iter();
    tests.try_for_each(|name| Project::get().target("test", name).map(drop))
}

/// An example that some test starts, with the features that it needs.
fn example_is_run(name: &str, words: &[&str]) -> Result<(), String> {
    let example = Project::get().target("example", name)?;
    features_are_named(&example.required_features, words)?;
    let tests = files("tests", &["rs"]);
    let tests = text_of(
        tests
            .into_iter()
            .filter(|path| !path.starts_with(crate::root().join("tests/documents"))),
    );
    let run = tests.contains(&format!("\"{name}\"")) || tests.contains(&format!("examples/{name}"));
    run.then_some(())
        .ok_or_else(|| format!("no test runs the example {name}: add one to tests/examples.rs"))
}

/// Cargo refuses to build a target whose features are off.
fn features_are_named(required: &[String], words: &[&str]) -> Result<(), String> {
    let project = Project::get();
    let all = words.contains(&"--all-features");
    let mut missing = required.iter().filter(|feature| {
        let named = words
            .iter()
            .any(|word| word.split(',').any(|each| each == **feature));
        !(all || named || project.is_default(feature))
    });
    missing.next().map_or(Ok(()), |feature| {
        Err(format!("it needs --features {feature}"))
    })
}

/// A line of what decides on changes, or of what runs each week.
fn is_in_ci(command: &str) -> Result<(), String> {
    let ci = [read(".ci/run"), read(".github/workflows/ci.yml")].join("\n");
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
        "nobody runs it: add it to .ci/run or .github/workflows/ci.yml, or have a maker of \
         tests/documents/makers/ run it and put `<!-- from: NAME -->` before the block"
            .to_owned()
    })
}
