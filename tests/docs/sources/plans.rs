//! The page of plans: its configuration is read as the feature `serde` reads it.

use crate::markdown::Block;

/// Checks that each value of the block deserializes to quotas.
pub(super) fn plans(block: &Block) -> Result<(), String> {
    let mut lines = block.text.lines();
    if lines.next() != Some("[plans]") {
        return Err("the block does not begin with the table `plans`".to_owned());
    }
    for line in lines {
        let (name, value) = line.split_once(" = ").ok_or("a line is not a value")?;
        read(value).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

#[cfg(feature = "serde")]
fn read(value: &str) -> Result<(), String> {
    let quotas: tollgate::Quotas =
        serde_json::from_str(&json(value)).map_err(|error| error.to_string())?;
    (!quotas.is_empty())
        .then_some(())
        .ok_or_else(|| "no quota".to_owned())
}

/// CI runs these tests with all features.
#[cfg(not(feature = "serde"))]
fn read(_: &str) -> Result<(), String> {
    Ok(())
}

/// Converts TOML's strings, integers, arrays and inline tables, which differ from JSON in the keys of tables only.
#[cfg(feature = "serde")]
fn json(toml: &str) -> String {
    let parts = toml.split(" = ").map(|part| {
        let name = part.rfind(|each: char| !each.is_alphanumeric());
        name.map_or(("", part), |at| part.split_at(at + 1))
    });
    let mut parts = parts.peekable();
    let mut json = String::new();
    while let Some((before, name)) = parts.next() {
        json.push_str(before);
        match parts.peek() {
            Some(_) => json.push_str(&format!("\"{name}\": ")),
            None => json.push_str(name),
        }
    }
    json
}
