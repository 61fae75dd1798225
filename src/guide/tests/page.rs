//! The tables of a page.

use std::path::Path;

const MARKER: &str = "<!-- from: guide-tests -->";

/// The cells of each row, the heads first.
pub(super) type Table = Vec<Vec<String>>;

/// A file of this repository.
pub(super) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tables of a page that are checked here.
pub(super) fn tables_of(page: &str) -> Vec<Table> {
    let text = read(&format!("src/guide/{page}.md"));
    text.split(MARKER).skip(1).map(first_table).collect()
}

/// The first table of a text, which begins with it.
pub(super) fn first_table(text: &str) -> Table {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|'));
    let is_rule = |line: &&str| line.chars().all(|each| "|-: ".contains(each));
    lines.filter(|line| !is_rule(line)).map(cells).collect()
}

/// What stands between the bars, of which one behind a backslash is a part of its cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "\u{0}");
    let cells = line.trim().trim_matches('|').split('|');
    let whole = |cell: &str| cell.trim().replace('\u{0}', "|");
    cells.map(whole).collect()
}

/// The runs of digits in a text, those of a number with spaces between its thousands as one.
pub(super) fn numbers(text: &str) -> Vec<String> {
    let mut numbers = vec![String::new()];
    let mut rest = text.chars().peekable();
    let mut last = None;
    while let Some(each) = rest.next() {
        let goes_on = rest.peek().is_some_and(char::is_ascii_digit);
        let joins = matches!(each, ' ' | '.')
            && goes_on
            && last.is_some_and(|last: char| last.is_ascii_digit());
        match numbers.last_mut() {
            Some(number) if each.is_ascii_digit() || joins => number.push(each),
            Some(number) if !number.is_empty() => numbers.push(String::new()),
            _ => {}
        }
        last = Some(each);
    }
    numbers.retain(|number| !number.is_empty());
    numbers
}
