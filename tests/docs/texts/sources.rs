//! Collects the texts from the sources.
//!
//! A text is any string literal with a space in it, outside of tests, attributes and docs. So a text is found
//! whatever macro or function it is passed to. Names of headers, metrics and commands have no space.

use std::fmt;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};
use syn::LitStr;

use crate::support::files::files;

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
    let (mut texts, mut tests) = (Vec::new(), Vec::new());
    for path in files(&root.join("src"), &["rs"]) {
        let file = name_of(&path, root);
        let source = fs::read_to_string(&path).expect("a source file");
        let tokens: TokenStream = source
            .parse()
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut scan = Scan {
            file,
            texts: &mut texts,
            tests: &mut tests,
        };
        scan.tokens(tokens, "");
    }
    texts.retain(|text: &Text| {
        let is_of = |test: &String| {
            text.file
                .strip_prefix(test.as_str())
                .is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        !tests.iter().any(is_of)
    });
    for path in files(&root.join("lua"), &["lua"]) {
        let source = fs::read_to_string(&path).expect("a script file");
        let file = name_of(&path, root);
        texts.extend(errors_of_lua(&source).map(|text| Text {
            file: file.clone(),
            maker: "error".to_owned(),
            text: text.to_owned(),
        }));
    }
    texts
}

fn name_of(path: &Path, root: &Path) -> String {
    let path = path.strip_prefix(root).expect("a path below the root");
    path.display().to_string().replace('\\', "/")
}

/// Whether an attribute leaves an item to the tests.
fn is_cfg_test(attribute: &str) -> bool {
    let attribute = attribute.replace(' ', "");
    attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,")
}

/// The path, without its extension, of the module that an item of `file` declares: `mod name;`.
fn module_file(item: &[TokenTree], file: &str) -> Option<String> {
    let [
        ..,
        TokenTree::Ident(keyword),
        TokenTree::Ident(module),
        TokenTree::Punct(_),
    ] = item
    else {
        return None;
    };
    let (directory, name) = file.rsplit_once('/').expect("a file in src");
    let path = match name {
        "lib.rs" | "mod.rs" => format!("{directory}/{module}"),
        _ => format!("{directory}/{}/{module}", name.trim_end_matches(".rs")),
    };
    (*keyword == "mod").then_some(path)
}

/// Whether a literal is a text. A word alone is one if it is certain that people read it.
fn is_text(literal: &str, maker: &str) -> bool {
    const FOR_PEOPLE: [&str; 10] = [
        "panic!",
        "error!",
        "warn!",
        "info!",
        "debug!",
        "assert!",
        "Error::new",
        "KeyError::new",
        "malformed_reply",
        "with_remedy",
    ];
    let is_word = literal.contains(char::is_alphabetic) && !literal.contains("::");
    literal.trim().contains(' ') || (is_word && FOR_PEOPLE.contains(&maker))
}

/// The literals that `error('…'` raises.
fn errors_of_lua(source: &str) -> impl Iterator<Item = &str> {
    let calls = source.split("error('").skip(1);
    calls.filter_map(|call| call.split_once('\'').map(|(text, _)| text))
}

struct Scan<'a> {
    file: String,
    texts: &'a mut Vec<Text>,
    /// The modules that only tests have.
    tests: &'a mut Vec<String>,
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
                        if !inner && is_cfg_test(&attribute.stream().to_string()) {
                            let end = end_of_item(&tokens, at);
                            self.tests.extend(module_file(&tokens[at..end], &self.file));
                            at = end;
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
                TokenTree::Punct(punct) if punct.as_char() == ';' => maker.clone_into(&mut item),
                TokenTree::Group(group) => {
                    let called = called(&tokens[..at - 1], group.delimiter());
                    self.tokens(group.stream(), called.as_deref().unwrap_or(&item));
                }
                TokenTree::Literal(literal) => {
                    if let Some(text) = string(literal)
                        && is_text(&text, &item)
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

/// Returns the macro or function that a group is passed to, `warn!` or `Error::new`, unless it only formats or
/// wraps a text: what that becomes is further out.
fn called(before: &[TokenTree], delimiter: Delimiter) -> Option<String> {
    const WRAPPERS: [&str; 7] = ["format!", "write!", "concat!", "Some", "Ok", "Err", "into"];
    let (bang, before) = match before {
        [before @ .., TokenTree::Punct(bang)] if bang.as_char() == '!' => ("!", before),
        // Braces belong to an item, not to a call.
        _ if delimiter == Delimiter::Brace => return None,
        _ => ("", before),
    };
    let [before @ .., TokenTree::Ident(name)] = before else {
        return None;
    };
    let keywords = [
        "in", "if", "match", "return", "else", "as", "for", "while", "fn",
    ];
    let is_declared = matches!(before, [.., TokenTree::Ident(keyword)] if *keyword == "fn");
    let name = format!("{name}{bang}");
    if is_declared || keywords.contains(&name.as_str()) || WRAPPERS.contains(&name.as_str()) {
        return None;
    }
    match before {
        [
            ..,
            TokenTree::Ident(qualifier),
            TokenTree::Punct(_),
            TokenTree::Punct(colon),
        ] if colon.as_char() == ':' && bang.is_empty() => Some(format!("{qualifier}::{name}")),
        _ => Some(name),
    }
}

/// Returns the value of a string literal.
fn string(literal: &Literal) -> Option<String> {
    let tokens = TokenTree::from(literal.clone()).into();
    syn::parse2::<LitStr>(tokens)
        .ok()
        .map(|string| string.value())
}
