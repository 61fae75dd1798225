//! What the blocks of documents are made from, by the name in the comment before them:
//! `<!-- from: NAME -->`. To add one, write a function here or in one of the files below, and name it
//! in [`MAKERS`].

mod algorithms;
mod code;
mod faults;
mod measured;
mod prose;
mod seen;

use std::future::Future;

use crate::markdown::{Block, Kind};

pub(crate) use code::first_line;

pub(crate) enum Maker {
    /// The block is this text.
    Same(fn(&Block) -> String),
    /// The block is this text, whatever its numbers.
    Alike(fn(&Block) -> String),
    /// The table is written by hand; this looks whether it is true. It would find nothing in code.
    True(fn(&Block) -> Result<(), String>),
    /// The same of a table or a `text` block. Commands are never taken for true: somebody has to run them.
    TrueOrText(fn(&Block) -> Result<(), String>),
}

const MAKERS: &[(&str, Maker)] = &[
    // README.
    ("algorithms", Maker::Same(algorithms::readme)),
    ("try-axum", Maker::Same(|_| seen::axum().0)),
    ("axum", Maker::Same(|_| seen::axum().1)),
    ("doctor", Maker::Alike(seen::doctor)),
    ("examples", Maker::Same(code::examples)),
    ("features", Maker::Same(|_| code::features())),
    ("redis-cost", Maker::Same(|_| measured::redis_cost())),
    ("observed", Maker::Same(|_| measured::observed())),
    ("beside-peers", Maker::Same(|_| measured::beside_peers())),
    ("faults", Maker::Same(|_| faults::faults())),
    // CONTRIBUTING and benches/README.
    ("paths", Maker::True(prose::paths)),
    ("contestants", Maker::True(prose::contestants)),
    // The guide.
    ("guide-tests", Maker::TrueOrText(prose::guide_tests)),
    ("metrics", Maker::True(prose::metrics)),
    ("clients", Maker::True(prose::clients)),
    // Tables of words, which name items of the code.
    ("items", Maker::True(prose::items)),
];

pub(crate) fn maker(name: &str) -> Option<&'static Maker> {
    MAKERS
        .iter()
        .find(|(each, _)| *each == name)
        .map(|(_, maker)| maker)
}

impl Maker {
    /// Nothing where the block is right; else what it is to be instead, or what is wrong with it.
    pub(crate) fn wants(&self, block: &Block) -> Result<Option<String>, String> {
        let (made, right) = match self {
            Self::Same(make) => {
                let made = make(block);
                let right = made == block.text;
                (made, right)
            }
            Self::Alike(make) => {
                let made = make(block);
                let right = shape(&made) == shape(&block.text);
                (made, right)
            }
            Self::True(look) | Self::TrueOrText(look) => {
                self.is_for(&block.kind)?;
                return look(block).map(|()| None);
            }
        };
        Ok((!right).then_some(made))
    }

    fn is_for(&self, kind: &Kind) -> Result<(), String> {
        match (self, kind) {
            (Self::True(_), Kind::Code(_)) => Err("it looks at tables only".into()),
            (Self::TrueOrText(_), Kind::Code(language)) if language != "text" => Err(format!(
                "it looks at tables and `text` only, not at `{language}`"
            )),
            _ => Ok(()),
        }
    }
}

/// A text with one mark for each number.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut rest = text.chars().peekable();
    while let Some(each) = rest.next() {
        let ends = !rest.peek().is_some_and(char::is_ascii_digit);
        match each {
            '0'..='9' if shape.ends_with('0') => {}
            '0'..='9' => shape.push('0'),
            '.' if shape.ends_with('0') && !ends => {}
            _ => shape.push(each),
        }
    }
    shape
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}
