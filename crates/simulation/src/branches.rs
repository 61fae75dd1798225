//! The branches of the scripts that have run.
//!
//! A branch is the beginning of a block: a line that ends with `then`, `else`, `do` or `repeat`, or opens a function. It is named by
//! its file and its text, so that its name outlives changes to other lines.

use std::collections::{BTreeMap, BTreeSet};

use mlua::{Lua, Table};
use tollgate::RedisStore;

/// The table of the branches that have run, a global of Lua.
const TABLE: &str = "BRANCHES";

/// The branches that worlds need not reach, each with its reason.
const UNREACHED: &str = include_str!("unreached.txt");

/// A mark that branches are counted.
pub(crate) struct Branches;

impl Branches {
    /// Begins to count.
    pub(crate) fn new(lua: &Lua) -> Self {
        let table = lua.create_table().expect("Lua has memory");
        lua.globals().set(TABLE, table).expect("a global");
        Self
    }

    /// Adds a statement to each branch of a script.
    pub(crate) fn counted(script: &str) -> String {
        let mut names = Names::default();
        let lines = script.lines().map(|line| match names.branch(line) {
            Some(name) => format!("{line} {TABLE}[ [==[{name}]==] ] = true\n"),
            None => format!("{line}\n"),
        });
        lines.collect()
    }

    /// Returns the branches that have run.
    pub(crate) fn reached(lua: &Lua) -> BTreeSet<String> {
        let Ok(table) = lua.globals().get::<Table>(TABLE) else {
            return BTreeSet::new();
        };
        let pairs = table.pairs::<String, bool>().filter_map(Result::ok);
        pairs.map(|(name, _)| name).collect()
    }
}

/// Gives the branches of a script their names.
#[derive(Default)]
struct Names {
    file: String,
    is_comment: bool,
    seen: BTreeMap<String, u32>,
}

impl Names {
    /// Takes in the next line. Returns the name of its branch, if it begins one.
    fn branch(&mut self, line: &str) -> Option<String> {
        let code = line.trim();
        if let Some(file) = code.strip_prefix("-- lua/") {
            self.file = file.to_owned();
        }
        self.is_comment |= code.starts_with("--[[");
        let is_comment = self.is_comment || code.starts_with("--");
        self.is_comment &= !code.contains("]]");
        let begins = ["then", "else", "do", "repeat"];
        let last = code.rsplit(' ').next().unwrap_or_default();
        let opens_function =
            code.contains("function") && code.ends_with(')') && !code.contains("end");
        if is_comment || !(begins.contains(&last) || opens_function) {
            return None;
        }
        let name = format!("{}: {code}", self.file);
        let seen = self.seen.entry(name.clone()).or_default();
        *seen += 1;
        Some(if *seen == 1 {
            name
        } else {
            format!("{name} ({seen})")
        })
    }
}

/// Returns the branches that have to be reached and were not.
pub(crate) fn missing(reached: &BTreeSet<String>) -> Vec<String> {
    let mut all = BTreeSet::new();
    for (_, script) in RedisStore::scripts() {
        let mut names = Names::default();
        all.extend(script.lines().filter_map(|line| names.branch(line)));
    }
    let excused: BTreeSet<&str> = excused().collect();
    let missing = all
        .into_iter()
        .filter(|branch| !reached.contains(branch) && !excused.contains(branch.as_str()));
    missing.collect()
}

/// Returns the names in the list of what worlds need not reach: lines that are no comment.
pub(crate) fn excused() -> impl Iterator<Item = &'static str> {
    let lines = UNREACHED.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}
