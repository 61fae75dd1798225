//! Planted faults: rules of the code or of a script that are left out, for each of which a world has to find a promise that
//! breaks.

use std::sync::LazyLock;

use tollgate::RedisStore;
use tollgate::planted::plant as plant_in_code;

use crate::world::Cast;

/// The list of them, which says how it is read.
const LIST: &str = include_str!("planted.txt");

static ALL: LazyLock<Vec<Planted>> = LazyLock::new(read_list);

/// A rule that is left out.
#[derive(Debug)]
pub struct Planted {
    /// As in the arguments of the program; of a rule of the models, its name there.
    pub name: &'static str,
    /// The difference.
    pub what: &'static str,
    /// The cast of the worlds that show it.
    pub(crate) shown_by: Cast,
    /// The text of a script and the one in its place. None of a rule of the code.
    texts: Vec<String>,
}

fn read_list() -> Vec<Planted> {
    let lines = LIST
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut all: Vec<Planted> = Vec::new();
    for line in lines {
        match (line.strip_prefix("    "), all.last_mut()) {
            (Some(text), Some(planted)) => planted.texts.push(text.replace("\\n", "\n")),
            _ => all.push(Planted::read(line)),
        }
    }
    all
}

impl Planted {
    fn read(line: &'static str) -> Self {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [shown_by, name, what] = fields[..] else {
            panic!("a planted fault has three fields: {line}");
        };
        let mut casts = Cast::ALL.iter().copied();
        Self {
            name,
            what,
            shown_by: casts.find(|cast| cast.name() == shown_by).expect("a cast"),
            texts: Vec::new(),
        }
    }

    fn replacement(&self) -> Option<(&str, &str)> {
        match self.texts.as_slice() {
            [rule, other] => Some((rule, other)),
            _ => None,
        }
    }

    /// Fails if a script has changed, and has no longer a rule that is to be left out of it.
    pub(crate) fn verify_all() {
        for planted in Self::all() {
            let name = planted.name;
            assert!(planted.is_current(), "no script has the rule of {name}");
        }
    }

    fn is_current(&self) -> bool {
        let mut scripts = RedisStore::scripts();
        let replacement = self.replacement();
        replacement.is_none_or(|(rule, _)| scripts.any(|(_, text)| text.contains(rule)))
    }

    /// Returns all of them.
    pub(crate) fn all() -> &'static [Self] {
        &ALL
    }

    /// Returns the planted fault of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|planted| planted.name == name)
    }
}

/// Leaves the rule out of the code of this process.
pub(crate) fn plant(planted: Option<&'static Planted>) {
    if let Some(planted) = planted
        && planted.replacement().is_none()
    {
        plant_in_code(planted.name);
    }
}

/// Leaves the rule out of a script that has it.
pub(crate) fn replaced(planted: Option<&Planted>, script: &str) -> String {
    match planted.and_then(Planted::replacement) {
        Some((rule, other)) => script.replace(rule, other),
        None => script.to_owned(),
    }
}
