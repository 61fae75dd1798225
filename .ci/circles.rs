//! Fails if files of `src` use each other in a circle: `a.rs` uses `b.rs`, and that uses `a.rs`, directly or through others.
//!
//! A name that a `mod.rs` re-exports belongs to the file that defines it. Tests do not count. `.ci/lint` compiles and runs it,
//! so it needs nothing but Rust:
//!
//!     rustc --edition 2024 -o target/circles .ci/circles.rs && target/circles src

#[path = "source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

/// The names of a path, from the root of the crate on.
type ItemPath = Vec<String>;

/// A module, and the file that it is in.
struct Module {
    file: String,
    /// The paths that it uses, as they are written.
    used: Vec<String>,
    /// The names that it re-exports, and what they stand for.
    exports: BTreeMap<String, ItemPath>,
}

struct Modules(BTreeMap<ItemPath, Module>);

fn main() -> ExitCode {
    let root = env::args().nth(1).unwrap_or_else(|| "src".to_owned());
    let mut modules = Modules(BTreeMap::new());
    modules.read(Path::new(&root));
    modules.resolve_exports();
    let circles = circles(&modules.uses());
    let mut exit_code = ExitCode::SUCCESS;
    for circle in &circles {
        let files: Vec<_> = circle.iter().map(String::as_str).collect();
        eprintln!(
            "{} files use each other in a circle: {}",
            files.len(),
            files.join(" ")
        );
        exit_code = ExitCode::FAILURE;
    }
    if modules.0.is_empty() {
        eprintln!("no modules in {root:?}");
        exit_code = ExitCode::FAILURE;
    }
    exit_code
}

impl Modules {
    fn read(&mut self, root: &Path) {
        for path in source::files(root) {
            let text = fs::read_to_string(&path).expect("text");
            let parsed = Module {
                file: path.display().to_string(),
                used: used_paths(&product_code(&text)),
                exports: BTreeMap::new(),
            };
            let inside = path.strip_prefix(root).expect("a file of the root");
            self.0.insert(module_path(inside), parsed);
        }
    }

    fn resolve_exports(&mut self) {
        let paths: Vec<_> = self.0.keys().cloned().collect();
        for path in paths {
            let mut exports = BTreeMap::new();
            for used in &self.0[&path].used {
                let (used, alias) = split_alias(used);
                if let Some(item) = self.absolute(used, &path) {
                    let name = alias.or(item.last().map(String::as_str));
                    let name = name.unwrap_or_default().to_owned();
                    exports.insert(name, item);
                }
            }
            if let Some(module) = self.0.get_mut(&path) {
                module.exports = exports;
            }
        }
    }

    /// Returns each file with the files that it uses.
    fn uses(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses = BTreeMap::new();
        for (path, module) in &self.0 {
            if declares_only(&module.file) {
                continue;
            }
            let items = module.used.iter().filter_map(|used| {
                let (used, _) = split_alias(used);
                self.absolute(used, path)
            });
            let files = items.filter_map(|item| self.file_of(&item, 0));
            let others = files.filter(|file| *file != module.file && !declares_only(file));
            uses.insert(module.file.clone(), others.collect());
        }
        uses
    }

    /// Returns the path from the root of the crate. `None` for an item of another crate.
    fn absolute(&self, used: &str, module: &[String]) -> Option<ItemPath> {
        let mut names: Vec<_> = used
            .split("::")
            .map(|name| name.trim().to_owned())
            .collect();
        let mut base = module.to_vec();
        match names.first()?.as_str() {
            "crate" => {
                base.clear();
                names.remove(0);
            }
            "self" => {
                names.remove(0);
            }
            "super" => {
                while names.first().is_some_and(|name| name == "super") {
                    base.pop();
                    names.remove(0);
                }
            }
            child => {
                let mut path = base.clone();
                path.push(child.to_owned());
                self.0.get(&path)?;
            }
        }
        base.extend(names);
        Some(base)
    }

    /// Returns the file that defines an item.
    fn file_of(&self, item: &[String], depth: usize) -> Option<String> {
        let known = (0..=item.len())
            .rev()
            .find(|length| self.0.contains_key(&item[..*length]))?;
        let module = &self.0[&item[..known]];
        let exported = item.get(known).and_then(|name| module.exports.get(name));
        match exported {
            Some(exported) if exported != item && depth < 8 => self.file_of(exported, depth + 1),
            _ => Some(module.file.clone()),
        }
    }
}

fn module_path(file: &Path) -> ItemPath {
    let names = file.with_extension("");
    let mut names: ItemPath = names
        .components()
        .map(|name| name.as_os_str().to_string_lossy().into_owned())
        .collect();
    names.pop_if(|name| name == "mod" || name == "lib");
    names
}

fn declares_only(file: &str) -> bool {
    file.ends_with("/mod.rs") || file.ends_with("/lib.rs")
}

fn split_alias(used: &str) -> (&str, Option<&str>) {
    match used.split_once(" as ") {
        Some((used, alias)) => (used.trim(), Some(alias.trim())),
        None => (used, None),
    }
}

/// Leaves out comments, and modules of tests within the file.
fn product_code(text: &str) -> String {
    let code = source::without_tests(text);
    let lines = code.lines().filter(|line| !line.trim().starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the paths of `use` declarations, one for each name, and those that the code names in full.
fn used_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut others = String::new();
    let mut declaration: Option<String> = None;
    for line in code.lines() {
        let trimmed = line.trim();
        if declaration.is_none() {
            match use_tree(trimmed) {
                Some(tree) => declaration = Some(tree.to_owned()),
                None => {
                    others.push_str(trimmed);
                    others.push('\n');
                }
            }
        } else if let Some(declaration) = &mut declaration {
            declaration.push(' ');
            declaration.push_str(trimmed);
        }
        if declaration
            .as_ref()
            .is_some_and(|declaration| declaration.ends_with(';'))
        {
            let declaration = declaration.take().unwrap_or_default();
            expand(declaration.trim_end_matches(';'), &mut paths);
        }
    }
    for (start, _) in others.match_indices("crate::") {
        let is_name = |character: char| character.is_alphanumeric() || "_:".contains(character);
        let path: String = others[start..]
            .chars()
            .take_while(|c| is_name(*c))
            .collect();
        paths.push(path.trim_end_matches(':').to_owned());
    }
    paths
}

/// Returns the tree of a line that begins a `use` declaration.
fn use_tree(line: &str) -> Option<&str> {
    if let Some(tree) = line.strip_prefix("use ") {
        return Some(tree);
    }
    let (visibility, tree) = line.split_once("use ")?;
    let visibility = visibility.trim_end();
    let is_visibility =
        visibility == "pub" || visibility.starts_with("pub(") && visibility.ends_with(')');
    is_visibility.then_some(tree)
}

/// Adds the paths of a tree, such as `crate::key::{Key, path::Path}`.
fn expand(tree: &str, paths: &mut Vec<String>) {
    let Some((prefix, names)) = tree.split_once('{') else {
        paths.push(tree.trim().to_owned());
        return;
    };
    let names = names.trim_end();
    let names = names.strip_suffix('}').unwrap_or(names);
    let mut depth = 0;
    let mut name = String::new();
    for character in names.chars().chain([',']) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !name.trim().is_empty() {
                    expand(&format!("{}{}", prefix.trim(), name.trim()), paths);
                }
                name.clear();
                continue;
            }
            _ => {}
        }
        name.push(character);
    }
}

/// Returns the largest sets of files in which each one leads to each other one.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = uses
        .keys()
        .map(|file| (file, reached_from(file, uses)))
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for file in uses.keys() {
        if found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let leads_back = |other: &&String| {
            reached
                .get(other)
                .is_some_and(|of_other| of_other.contains(file))
        };
        let circle: BTreeSet<_> = reached[file].iter().filter(leads_back).cloned().collect();
        if !circle.is_empty() {
            found.push(circle);
        }
    }
    found
}

fn reached_from(file: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(file) = open.pop() {
        for used in uses.get(file).into_iter().flatten() {
            if reached.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    reached
}
