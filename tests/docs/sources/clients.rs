//! The clients in the guide, from the packages that `tests/peers` installs.

use crate::markdown::Block;
use crate::project::read;

/// Checks that the clients marked as run are those that `tests/peers` installs, with their versions.
pub(super) fn clients(block: &Block) -> Result<(), String> {
    let installed = installed_clients();
    let page = read("src/guide/clients.md");
    if let Some(client) = installed.iter().find(|client| !page.contains(*client)) {
        return Err(format!("{client} is installed, but in no table"));
    }
    for row in block.rows() {
        let (client, known_by) = (&row[0], &row[1]);
        let is_installed = installed.iter().any(|name| client.starts_with(name));
        // The tests of tonic are in Rust.
        let is_run = known_by == "run" && !client.starts_with("`tonic`");
        if is_run != is_installed {
            return Err(format!(
                "{client}: {known_by}, but installed: {is_installed}"
            ));
        }
    }
    Ok(())
}

/// Returns the clients that `tests/peers` installs, like "`got` 14.6.6", without their dependencies.
fn installed_clients() -> Vec<String> {
    let npm = read("tests/peers/npm/package.json");
    let npm: serde_json::Value = serde_json::from_str(&npm).expect("JSON");
    let npm = npm["dependencies"].as_object().expect("packages");
    // Two are hosts of the plugins and of `axios-retry`.
    let npm = npm
        .iter()
        .filter(|(name, _)| !["@octokit/core", "axios"].contains(&name.as_str()));
    let npm = npm.map(|(name, version)| format!("`{name}` {}", version.as_str().expect("text")));
    let pypi = read("tests/peers/requirements.txt");
    let pypi = pypi
        .lines()
        .filter_map(|line| line.trim_end_matches(" \\").split_once("=="));
    let pypi = pypi.filter(|(name, _)| *name != "typing-extensions");
    let pypi = pypi.map(|(name, version)| format!("`{name}` {version}"));
    npm.chain(pypi).collect()
}
