//! All texts of the crate that people read, in one list: `tests/docs/texts.txt`.
//!
//! Errors, log lines, panics and descriptions of metrics are written all over the sources, and an operator reads them
//! next to each other. In the list they are reviewed next to each other, too: for the same words, the same form, and a
//! remedy in each.
//!
//! A text is any string literal with a space in it, outside of tests, attributes and docs. To write the list anew, run
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test docs texts`, and review the difference.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::LitStr;

use crate::project::{files, read};
use crate::root;

const LIST: &str = "tests/docs/texts.txt";

/// Names, commands and errors of Redis that a text may begin with.
const NAMES: [&str; 11] = [
    "Redis",
    "Valkey",
    "Sentinel",
    "ACL",
    "CONFIG",
    "WRONGTYPE",
    "NOLISTKEY",
    "NOWINDOW",
    "ERR",
    "FAILED",
    "X-Forwarded-For",
];

/// Descriptions of metrics, and details of a problem for clients, are sentences.
const SENTENCES: [&str; 3] = [
    "src/telemetry: ",
    "src/middleware: Request cannot be satisfied ",
    "src/middleware: The ",
];

/// Returns the texts of all files in `src` and `lua`, each with its room.
fn texts() -> BTreeSet<String> {
    let mut sources = Sources::default();
    for path in files("src", &["rs"]) {
        let path = below_root(&path);
        let tokens = read(&path).parse::<TokenStream>();
        let tokens = tokens.unwrap_or_else(|error| panic!("{path}: {error}"));
        sources.read(&path, tokens);
    }
    let Sources { texts, tests } = sources;
    let is_of_tests = |path: &str| {
        let mut rests = tests.iter().filter_map(|test| path.strip_prefix(test));
        rests.any(|rest| rest.starts_with(['.', '/']))
    };
    let texts = texts.into_iter().filter(|(path, _)| !is_of_tests(path));
    let texts = texts.map(|(path, text)| {
        let room = path.split('/').take(2).collect::<Vec<_>>().join("/");
        format!("{}: {}", room.trim_end_matches(".rs"), text.escape_debug())
    });
    let scripts = files("lua", &["lua"]).into_iter();
    let errors = scripts.flat_map(|path| {
        let script = read(&below_root(&path));
        let calls = script.split("error('").skip(1);
        let texts = calls.filter_map(|call| call.split_once('\''));
        let texts = texts.map(|(text, _)| format!("lua: {text}"));
        texts.collect::<Vec<_>>()
    });
    texts.chain(errors).collect()
}

fn below_root(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("a path below the root");
    path.display().to_string().replace('\\', "/")
}

#[derive(Default)]
struct Sources {
    /// Each with its file.
    texts: Vec<(String, String)>,
    /// The modules that only tests have, without their extensions.
    tests: Vec<String>,
}

impl Sources {
    fn read(&mut self, path: &str, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    let is_inner = matches!(tokens.get(at), Some(TokenTree::Punct(_)));
                    at += usize::from(is_inner);
                    if let Some(TokenTree::Group(attribute)) = tokens.get(at) {
                        at += 1;
                        if is_cfg_test(&attribute.stream().to_string()) {
                            let end = end_of_item(&tokens, at);
                            self.tests.extend(module(&tokens[at..end], path));
                            at = end;
                        }
                    }
                }
                TokenTree::Group(group) => self.read(path, group.stream()),
                TokenTree::Literal(_) => {
                    let text = syn::parse2::<LitStr>(token.clone().into());
                    let text = text.map(|text| text.value()).unwrap_or_default();
                    if text.trim().contains(' ') {
                        self.texts.push((path.to_owned(), text));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Whether an attribute leaves an item to the tests.
fn is_cfg_test(attribute: &str) -> bool {
    let attribute = attribute.replace(' ', "");
    attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,")
}

/// Returns the index behind the item that begins at `at`: behind its `;` or its braces.
fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => matches!(punct.as_char(), ';' | ','),
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let length = tokens[at..].iter().position(ends);
    length.map_or(tokens.len(), |length| at + length + 1)
}

/// Returns the path, without its extension, of the module that an item of a file declares: `mod name;`.
fn module(item: &[TokenTree], path: &str) -> Option<String> {
    let [.., keyword, name, TokenTree::Punct(_)] = item else {
        return None;
    };
    let (directory, file) = path.rsplit_once('/').expect("a file in src");
    let directory = match file {
        "lib.rs" | "mod.rs" => directory.to_owned(),
        _ => format!("{directory}/{}", file.trim_end_matches(".rs")),
    };
    (keyword.to_string() == "mod").then(|| format!("{directory}/{name}"))
}

#[test]
fn the_list_has_every_text() {
    let expected: String = texts().iter().map(|text| format!("{text}\n")).collect();
    if env::var_os("TOLLGATE_REGENERATE").is_some() {
        fs::write(root().join(LIST), &expected).expect("the list can be written");
    }
    let list = read(LIST);
    let differing = |of: &str, from: &str| {
        let known: BTreeSet<_> = from.lines().collect();
        let lines = of.lines().filter(|line| !known.contains(line));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let (new, gone) = (differing(&expected, &list), differing(&list, &expected));
    assert!(
        list == expected,
        "{LIST} is stale, see the top of this test\nnot in the list: {new:#?}\nonly in the list: {gone:#?}"
    );
}

#[test]
fn errors_and_log_lines_begin_in_lower_case_and_end_without_a_full_stop() {
    let texts = texts();
    assert!(texts.len() > 100, "only {} texts were found", texts.len());
    let are_broken = texts.iter().filter(|line| {
        let (_, text) = line.split_once(": ").expect("a room");
        let text = text.trim();
        let is_name = NAMES.iter().any(|name| text.starts_with(name));
        let is_sentence = SENTENCES.iter().any(|start| line.starts_with(start));
        let begins_large = text.starts_with(char::is_uppercase) && !is_name;
        let ends_full = text.ends_with('.') && !text.ends_with("..");
        !is_sentence && (begins_large || ends_full)
    });
    assert_eq!(are_broken.collect::<Vec<_>>(), [""; 0]);
}
