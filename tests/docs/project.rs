//! The manifest as cargo reads it, and the files of the repository.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use crate::support;

pub(crate) struct Project {
    /// The features that each feature turns on.
    features: BTreeMap<String, Vec<String>>,
    pub(crate) rust_version: String,
    /// Those of all packages of the workspace.
    targets: Vec<Target>,
}

pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) source: PathBuf,
    pub(crate) required_features: Vec<String>,
}

impl Project {
    pub(crate) fn get() -> &'static Self {
        static PROJECT: LazyLock<Project> = LazyLock::new(Project::read);
        &PROJECT
    }

    fn read() -> Self {
        let arguments = ["metadata", "--no-deps", "--format-version=1"];
        let metadata: Value = serde_json::from_str(&cargo(&arguments)).expect("JSON");
        let packages = metadata["packages"].as_array().expect("a list");
        let mut named = packages.iter();
        let package = named.find(|package| package["name"] == "tollgate");
        let package = package.expect("the package tollgate");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
        let features = package["features"].as_object().expect("a table");
        let targets = packages
            .iter()
            .flat_map(|package| package["targets"].as_array().expect("a list"));
        // The example of a crate belongs to its README and its tests.
        let targets = targets.filter(|target| {
            target["kind"][0] != "example" || !text(&target["src_path"]).contains("/crates/")
        });
        let targets = targets.map(|target| Target {
            kind: text(&target["kind"][0]),
            name: text(&target["name"]),
            source: text(&target["src_path"]).into(),
            required_features: texts(&target["required-features"]),
        });
        Self {
            features: features
                .iter()
                .map(|(name, on)| (name.clone(), texts(on)))
                .collect(),
            rust_version: text(&package["rust_version"]),
            targets: targets.collect(),
        }
    }

    /// Returns all features but `default`.
    pub(crate) fn named_features(&self) -> impl Iterator<Item = &str> {
        let features = self.features.keys().map(String::as_str);
        features.filter(|name| *name != "default")
    }

    pub(crate) fn targets<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Target> {
        self.targets
            .iter()
            .filter(move |target| target.kind == kind)
    }

    pub(crate) fn target<'a>(&'a self, kind: &'a str, name: &str) -> Result<&'a Target, String> {
        let mut targets = self.targets(kind);
        let found = targets.find(|target| target.name == name);
        found.ok_or_else(|| format!("Cargo.toml has no {kind} {name:?}"))
    }

    pub(crate) fn is_default(&self, feature: &str) -> bool {
        self.features["default"].iter().any(|on| on == feature)
    }
}

/// Returns what cargo prints.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.current_dir(crate::root()).args(arguments).output();
    String::from_utf8(output.expect("cargo runs").stdout).expect("text")
}

/// Returns the text of a file of the repository.
pub(crate) fn read(path: &str) -> String {
    let text = std::fs::read_to_string(crate::root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files below a directory of the repository that have one of the extensions.
pub(crate) fn files(directory: &str, extensions: &[&str]) -> Vec<PathBuf> {
    support::files::files(&crate::root().join(directory), extensions)
}
