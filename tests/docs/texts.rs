//! All texts of the crate that people read, in one list: `tests/docs/texts.txt`.
//!
//! An operator reads errors and log lines next to each other, so they are reviewed next to each other: for the same words,
//! a remedy in each, and one form. They begin in lower case and end without a full stop.
//!
//! A text is any string literal with a space in it, outside of tests and attributes. To write the list anew, run
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test docs texts`, and review the difference.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::LitStr;

use crate::project::{files, read};
use crate::root;

const LIST: &str = "tests/docs/texts.txt";

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
    let texts = texts();
    assert!(texts.len() > 100, "only {} texts were found", texts.len());
    let expected: String = texts.iter().map(|text| format!("{text}\n")).collect();
    if env::var_os("TOLLGATE_REGENERATE").is_some() {
        fs::write(root().join(LIST), &expected).expect("the list can be written");
    }
    let list = read(LIST);
    let [listed, found] = [&list, &expected].map(|text| text.lines().collect::<BTreeSet<_>>());
    let differing: Vec<_> = listed.symmetric_difference(&found).collect();
    assert!(
        list == expected,
        "{LIST} is stale, see the top of this test: {differing:#?}"
    );
}
