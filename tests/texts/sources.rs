//! Collects the texts from the sources.
//!
//! A text is any string literal with a space in it, outside of tests, attributes and docs. So a text is found
//! whatever macro or function it is passed to. Names of headers, metrics and commands have no space.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A text, and the place that makes it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text {
    pub(crate) file: String,
    /// The macro or function that the text is passed to, or else the function or constant that it is in.
    pub(crate) maker: String,
    pub(crate) text: String,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}: {}",
            self.file,
            self.maker,
            self.text.escape_debug()
        )
    }
}

/// Returns the texts of all files in `src` and `lua`.
pub(crate) fn texts(root: &Path) -> Vec<Text> {
    let mut texts = Vec::new();
    for path in files(&root.join("src")) {
        let file = name_of(&path, root);
        if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&file) {
            let source = fs::read_to_string(&path).expect("a source file");
            let tokens: TokenStream = source
                .parse()
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            let mut scan = Scan {
                file,
                texts: &mut texts,
            };
            scan.tokens(tokens, "");
        }
    }
    for path in files(&root.join("lua")) {
        if path.extension().is_some_and(|extension| extension == "lua") {
            let source = fs::read_to_string(&path).expect("a script file");
            let file = name_of(&path, root);
            texts.extend(errors_of_lua(&source).map(|text| Text {
                file: file.clone(),
                maker: "error".to_owned(),
                text: text.to_owned(),
            }));
        }
    }
    texts
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn name_of(path: &Path, root: &Path) -> String {
    let path = path.strip_prefix(root).expect("a path below the root");
    path.display().to_string().replace('\\', "/")
}

/// Whether `#[cfg(test)] mod …;` declares the file.
fn is_test(file: &str) -> bool {
    file.ends_with("/tests.rs")
        || file.contains("/tests/")
        || ["/log_capture.rs", "/test_request.rs"]
            .iter()
            .any(|name| file.ends_with(name))
}

/// The literals that `error('…'` raises.
fn errors_of_lua(source: &str) -> impl Iterator<Item = &str> {
    let calls = source.split("error('").skip(1);
    calls.filter_map(|call| call.split_once('\'').map(|(text, _)| text))
}

struct Scan<'a> {
    file: String,
    texts: &'a mut Vec<Text>,
}

impl Scan<'_> {
    /// Scans a group of tokens that `maker` is made with.
    fn tokens(&mut self, tokens: TokenStream, maker: &str) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut item = maker.to_owned();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    let inner = matches!(tokens.get(at), Some(TokenTree::Punct(bang)) if bang.as_char() == '!');
                    let group = at + usize::from(inner);
                    if let Some(TokenTree::Group(attribute)) = tokens.get(group)
                        && attribute.delimiter() == Delimiter::Bracket
                    {
                        at = group + 1;
                        if !inner && attribute.stream().to_string().replace(' ', "") == "cfg(test)"
                        {
                            at = end_of_item(&tokens, at);
                        }
                    }
                }
                TokenTree::Ident(keyword)
                    if *keyword == "fn" || *keyword == "const" || *keyword == "static" =>
                {
                    if let Some(TokenTree::Ident(name)) = tokens.get(at) {
                        item = format!("{keyword} {name}");
                    }
                }
                TokenTree::Group(group) => {
                    let called = called(&tokens[..at - 1]);
                    // These only format or wrap a text: what it becomes is further out.
                    let passes = ["format!", "Some", "Ok", "Err", "write!", "concat!"];
                    let maker = match called {
                        Some(called) if !passes.contains(&called.as_str()) => called,
                        _ => item.clone(),
                    };
                    self.tokens(group.stream(), &maker);
                }
                TokenTree::Literal(literal) => {
                    if let Some(text) = string(&literal.to_string())
                        && text.trim().contains(' ')
                    {
                        self.texts.push(Text {
                            file: self.file.clone(),
                            maker: item.clone(),
                            text,
                        });
                    }
                }
                _ => {}
            }
        }
    }
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

/// Returns the macro or function that the tokens before a group end with: `warn!`, `Error::new`.
fn called(before: &[TokenTree]) -> Option<String> {
    let (bang, before) = match before {
        [before @ .., TokenTree::Punct(bang)] if bang.as_char() == '!' => ("!", before),
        _ => ("", before),
    };
    let [before @ .., TokenTree::Ident(name)] = before else {
        return None;
    };
    // Not a call, and not the declaration of a function.
    let keywords = [
        "in", "if", "match", "return", "else", "as", "for", "while", "move", "loop", "unsafe",
    ];
    if keywords.iter().any(|keyword| name == keyword) {
        return None;
    }
    let is_path = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    let mut reversed = before.iter().rev();
    let qualifier = if bang.is_empty() && is_path(reversed.next()) && is_path(reversed.next()) {
        match reversed.next() {
            Some(TokenTree::Ident(qualifier)) => format!("{qualifier}::"),
            _ => String::new(),
        }
    } else {
        String::new()
    };
    Some(format!("{qualifier}{name}{bang}"))
}

/// Returns the value of a string literal.
fn string(literal: &str) -> Option<String> {
    let raw = literal.strip_prefix('r').map(|rest| rest.trim_matches('#'));
    if let Some(raw) = raw {
        return Some(raw.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    }
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let (mut text, mut rest) = (String::new(), inner.chars().peekable());
    while let Some(char) = rest.next() {
        match (char, if char == '\\' { rest.next() } else { None }) {
            // The line goes on behind the white space.
            (_, Some('\n')) => while rest.next_if(|char| char.is_whitespace()).is_some() {},
            (_, Some('n')) => text.push('\n'),
            (_, Some('r')) => text.push('\r'),
            (_, Some('t')) => text.push('\t'),
            (_, Some('x' | 'u' | '0')) => text.push('\u{fffd}'),
            (_, Some(other)) => text.push(other),
            (char, None) => text.push(char),
        }
    }
    Some(text)
}
