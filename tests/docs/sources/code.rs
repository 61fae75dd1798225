//! Code that pages show: of the package `examples/migrating`, and of snippets.

use crate::markdown::Block;
use crate::project::read;

const MIGRATING: &str = "examples/migrating/src";

/// The name of a source, its directory, and the file there that declares its modules. Others are not compiled.
const SOURCES: [(&str, &str, &str); 3] = [
    ("migrating", MIGRATING, "lib.rs"),
    ("own_store", "examples/own_store/src", "lib.rs"),
    ("snippets", "tests/docs/snippets/shown", "mod.rs"),
];

/// Returns the code that a block should have: a region of a module, or a script that one includes.
pub(super) fn code(block: &Block) -> Result<String, String> {
    let marker = block.marker().unwrap_or_default();
    let mut regions = regions().into_iter();
    if let Some((_, code)) = regions.find(|(region, _)| *region == marker) {
        return Ok(code);
    }
    let script = Some(&block.arguments).filter(|file| file.ends_with(".lua"));
    let script = script.filter(|file| {
        let included = format!("include_str!(\"{file}\")");
        let mut modules = modules(MIGRATING, "lib.rs").into_iter();
        modules.any(|module| read(&format!("{MIGRATING}/{module}")).contains(&included))
    });
    match script {
        Some(file) => Ok(read(&format!("{MIGRATING}/{file}"))),
        None => Err("no module has such a `// page: REGION`".to_owned()),
    }
}

/// Returns all regions, each with the source, file and name that stand for it in a page.
pub(crate) fn regions() -> Vec<(String, String)> {
    let mut regions = Vec::new();
    for (source, directory, root) in SOURCES {
        for module in modules(directory, root) {
            let text = read(&format!("{directory}/{module}"));
            let regions_of = regions_of(&text).into_iter();
            regions
                .extend(regions_of.map(|(name, code)| (format!("{source} {module} {name}"), code)));
        }
    }
    regions
}

/// Returns the files of the modules that a file declares.
fn modules(directory: &str, root: &str) -> Vec<String> {
    let text = read(&format!("{directory}/{root}"));
    let lines = text.lines().map(|line| line.trim_start_matches("pub "));
    let names = lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let files = names.map(|name| format!("{name}.rs"));
    // Modules of tests are elsewhere.
    files
        .filter(|file| crate::root().join(directory).join(file).exists())
        .collect()
}

/// Returns the name and the lines of each region, which begins with `// page: NAME` and ends with `// page: end`.
fn regions_of(text: &str) -> Vec<(String, String)> {
    let regions = text.split("// page: ").collect::<Vec<_>>();
    let named = regions.windows(2).filter_map(|parts| {
        let indentation = parts[0].rsplit('\n').next()?;
        let (name, lines) = parts[1].split_once('\n')?;
        let lines = lines.trim_end_matches(' ').lines();
        let lines =
            lines.map(|line| line.strip_prefix(indentation).unwrap_or(line).to_owned() + "\n");
        (name != "end").then(|| (name.to_owned(), lines.collect()))
    });
    named.collect()
}
