//! Fails if an idiom stands in a directory more often than its ceiling: whoever knows other crates stumbles over it.
//!
//! Ceilings are for 1 000 lines of code. Comments, blank lines and tests do not count. `.ci/lint` compiles and runs it, so it
//! needs nothing but Rust:
//!
//!     rustc --edition 2024 -o target/idioms .ci/idioms.rs && target/idioms src && target/idioms crates

#[path = "source.rs"]
mod source;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

struct Idiom {
    name: &'static str,
    instead: &'static str,
    ceiling: f64,
    stands_in: fn(&Line) -> bool,
}

/// A line of code without its indent, whether a doc comment stands before it, and the line after it.
struct Line<'a> {
    text: &'a str,
    is_documented: bool,
    next: &'a str,
}

const IDIOMS: [Idiom; 6] = [
    Idiom {
        name: "`let (a, b) = (x, y)`",
        instead: "one binding a line",
        ceiling: 2.0,
        stands_in: is_tuple_let,
    },
    Idiom {
        name: "a closure as a local function",
        instead: "a named function or a loop",
        ceiling: 1.5,
        stands_in: is_named_closure,
    },
    Idiom {
        name: "an iterator that is cut into named halves",
        instead: "a whole chain",
        ceiling: 1.0,
        stands_in: is_half_of_chain,
    },
    Idiom {
        name: "an arm of a `match` on a bool",
        instead: "`if`",
        ceiling: 0.5,
        stands_in: is_bool_arm,
    },
    Idiom {
        name: "a function named `of`",
        instead: "what it does or returns",
        ceiling: 1.0,
        stands_in: is_named_of,
    },
    Idiom {
        name: "a private function with a doc comment",
        instead: "a name and a signature that say it",
        ceiling: 30.0,
        stands_in: is_documented_private,
    },
];

fn main() -> ExitCode {
    let root = env::args().nth(1).unwrap_or_else(|| "src".to_owned());
    let mut lines = 0_u32;
    let mut found: [Vec<String>; IDIOMS.len()] = Default::default();
    for path in source::files(Path::new(&root)) {
        let text = fs::read_to_string(&path).expect("text");
        let code = source::without_tests(&text);
        for line in code_lines(&code) {
            lines += 1;
            for (idiom, places) in IDIOMS.iter().zip(&mut found) {
                if (idiom.stands_in)(&line) {
                    places.push(format!("{}: {}", path.display(), line.text));
                }
            }
        }
    }
    if lines == 0 {
        eprintln!("no code in {root:?}");
        return ExitCode::FAILURE;
    }
    let mut exit_code = ExitCode::SUCCESS;
    for (idiom, places) in IDIOMS.iter().zip(&found) {
        let share = places.len() as f64 * 1_000.0 / f64::from(lines);
        println!(
            "{share:>5.1} of at most {:>4.1}: {}",
            idiom.ceiling, idiom.name
        );
        if share > idiom.ceiling {
            eprintln!("write {} in place of {}:", idiom.instead, idiom.name);
            places.iter().for_each(|place| eprintln!("  {place}"));
            exit_code = ExitCode::FAILURE;
        }
    }
    exit_code
}

fn code_lines(code: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line> = Vec::new();
    let mut is_documented = false;
    for line in code.lines() {
        let text = line.trim();
        if text.starts_with("///") {
            is_documented = true;
        }
        if text.is_empty() || text.starts_with("//") {
            continue;
        }
        if let Some(before) = lines.last_mut() {
            before.next = text;
        }
        lines.push(Line {
            text,
            is_documented,
            next: "",
        });
        // Attributes stand between an item and its docs.
        is_documented &= text.starts_with("#[");
    }
    lines
}

fn is_tuple_let(line: &Line) -> bool {
    let Some(bound) = line.text.strip_prefix("let (") else {
        return false;
    };
    match bound.split_once(") =") {
        Some((_, "")) => line.next.starts_with('('),
        Some((_, value)) => value.starts_with(" ("),
        None => false,
    }
}

fn is_named_closure(line: &Line) -> bool {
    let Some(value) = assigned(line) else {
        return false;
    };
    value.starts_with('|') || value.starts_with("move |")
}

fn is_half_of_chain(line: &Line) -> bool {
    let Some(value) = assigned(line) else {
        return false;
    };
    let iterators = [
        "iter",
        "iter_mut",
        "into_iter",
        "chars",
        "bytes",
        "keys",
        "values",
        "values_mut",
        "lines",
    ];
    let is_cut = iterators
        .iter()
        .any(|iterator| value.ends_with(&format!(".{iterator}();")));
    is_cut && !value.contains(['|', '{'])
}

/// Returns the value that a `let` binds to a name.
fn assigned<'a>(line: &Line<'a>) -> Option<&'a str> {
    let (name, value) = line.text.strip_prefix("let ")?.split_once(" = ")?;
    let name = name.strip_prefix("mut ").unwrap_or(name);
    let name = name.split(':').next().unwrap_or(name);
    let is_name = name
        .chars()
        .all(|letter| letter.is_alphanumeric() || letter == '_');
    is_name.then_some(value)
}

fn is_bool_arm(line: &Line) -> bool {
    line.text.starts_with("true =>") || line.text.starts_with("false =>")
}

fn is_named_of(line: &Line) -> bool {
    function_name(line).is_some_and(|name| name.split('_').any(|word| word == "of"))
}

fn is_documented_private(line: &Line) -> bool {
    line.is_documented && function_name(line).is_some() && !line.text.starts_with("pub ")
}

fn function_name<'a>(line: &Line<'a>) -> Option<&'a str> {
    let (before, after) = line.text.split_once("fn ")?;
    let mut words = before.split_whitespace();
    words
        .all(is_modifier)
        .then(|| after.split(['(', '<']).next())?
}

fn is_modifier(word: &str) -> bool {
    // `pub(in crate::store)` is two words.
    word.starts_with("pub") || word.starts_with("crate::") || word == "const" || word == "async"
}
