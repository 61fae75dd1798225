//! The guide's page *messages*, which has each code of an error or a warning, is generated from two tables:
//! `src/error/code.rs` has what happened and why, and most remedies; that of server errors has the others.

use std::collections::BTreeMap;
use std::{env, fs};

use crate::project::{files, read};
use crate::root;

const PAGE: &str = "src/guide/messages.md";
const CODES: &str = "src/error/code.rs";

/// The codes that begin with these, and their headings.
const SECTIONS: [(&str, &str); 4] = [
    ("E0", "Checks and limiters"),
    ("E1", "Redis"),
    ("E2", "Configuration"),
    ("W", "Warnings"),
];

/// Returns the paragraphs of each code: what happened and why, and the remedy unless the server errors have it.
fn codes() -> BTreeMap<String, Vec<String>> {
    let mut codes = BTreeMap::new();
    let mut docs: Vec<String> = Vec::new();
    for line in read(CODES).lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.trim().to_owned());
        } else if let Some((_, rest)) = line.split_once("\"tollgate::") {
            let (code, _) = rest.split_once('"').expect("the end of a code");
            let text = std::mem::take(&mut docs).join("\n");
            let paragraphs = text.split("\n\n").map(|text| text.replace('\n', " "));
            let before = codes.insert(code.to_owned(), paragraphs.collect());
            assert_eq!(before, None, "{code} is there twice");
        } else if !line.starts_with("#[") {
            docs.clear();
        }
    }
    codes
}

/// Returns the remedies of a code in the table of server errors.
fn remedies(code: &str) -> Vec<String> {
    let code = format!("tollgate::{code}");
    let rows = tollgate::__doctor::remedies().filter(|(of, _)| *of == code);
    let remedies = rows.map(|(_, remedy)| {
        let remedy = remedy.replace("{name}", "<command>").replace("{at}", "");
        // Outside of code, `<` begins a tag, and a bare URL is a link.
        let escaped = |text: &str| {
            let words = text.split(' ').map(|word| {
                let url = word.trim_end_matches(',');
                let is_url = url.contains("://");
                if is_url {
                    word.replacen(url, &format!("`{url}`"), 1)
                } else {
                    word.replace('<', "\\<")
                }
            });
            words.collect::<Vec<_>>().join(" ")
        };
        let parts = remedy.split('`').enumerate();
        let parts = parts.map(|(at, part)| match at % 2 {
            0 => escaped(part),
            _ => part.to_owned(),
        });
        let text = parts.collect::<Vec<_>>().join("`");
        let (first, rest) = text.split_at(1);
        first.to_uppercase() + rest
    });
    let all: Vec<_> = remedies.collect();
    let mut remedies = all.clone();
    // Some errors know more, and so have a longer remedy.
    remedies.retain(|remedy| {
        let mut others = all.iter().filter(|other| *other != remedy);
        !others.any(|other| other.starts_with(remedy))
    });
    remedies.dedup();
    remedies
}

fn entry(code: &str, paragraphs: &[String]) -> String {
    let (what, remedy) = match paragraphs {
        [what, remedy] => (what, remedy.clone()),
        [what] => match &*remedies(code) {
            [] => panic!("{code} has no remedy"),
            [remedy] => (what, remedy.clone()),
            several => (what, format!("- {}", several.join("\n- "))),
        },
        more => panic!("{code} has {more:?}"),
    };
    assert!(what.len() > 20 && what.ends_with('.'), "{code}: {what}");
    format!("\n## {code}\n\n{what}\n\n{remedy}\n")
}

#[test]
fn the_page_has_what_happened_why_and_a_remedy_for_each_code() {
    let marker = format!("<!-- from: {CODES} -->\n");
    let page = read(PAGE);
    let (written, _) = page.split_once(&marker).expect("the marker");
    let codes = codes();
    assert!((60..=80).contains(&codes.len()), "{} codes", codes.len());
    let mut expected = format!("{written}{marker}");
    for (start, heading) in SECTIONS {
        expected.push_str(&format!("\n# {heading}\n"));
        let of_section = codes.iter().filter(|(code, _)| code.starts_with(start));
        expected.extend(of_section.map(|(code, paragraphs)| entry(code, paragraphs)));
    }
    if env::var_os("TOLLGATE_REGENERATE").is_some() {
        fs::write(root().join(PAGE), &expected).expect("the page can be written");
    }
    assert!(
        read(PAGE) == expected,
        "{PAGE} is stale: see CONTRIBUTING.md"
    );
}

#[test]
fn each_code_is_reached_by_a_test() {
    let tests = files("tests", &["rs"]).into_iter();
    let tests = tests.map(|path| fs::read_to_string(path).expect("text"));
    let sources = files("src", &["rs"]).into_iter();
    let in_sources = sources.map(|path| {
        let source = fs::read_to_string(path).expect("text");
        let tests = source.split_once("#[cfg(test)]\nmod tests");
        tests.map_or_else(String::new, |(_, tests)| tests.to_owned())
    });
    let tests: String = tests.chain(in_sources).collect();
    let mut codes = codes().into_keys().collect::<Vec<_>>();
    codes.retain(|code| !tests.contains(&format!("tollgate::{code}")));
    assert_eq!(codes, [""; 0], "no test has these");
}
