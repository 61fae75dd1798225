//! The results: a line for each attack, and the tables of RESULTS.md.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use crate::attacks::ALL;
use crate::contestant::Failure;
use crate::oracle::{Finding, Measure};

/// The result of one attack on one contestant.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) contestant: String,
    pub(crate) attack: &'static str,
    pub(crate) is_promised: bool,
    /// `None` if the contestant does not offer what is attacked. An error if the attack could not be made.
    pub(crate) finding: Option<Result<Finding, Failure>>,
}

/// How a promise fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    NotOffered,
    NotPromised,
    Held,
    /// The attack could not be made.
    NotRun,
    BrokenBy(u64, Measure),
}

impl Row {
    pub(crate) fn grade(&self) -> Grade {
        match &self.finding {
            None => Grade::NotOffered,
            Some(_) if !self.is_promised => Grade::NotPromised,
            Some(Err(_)) => Grade::NotRun,
            Some(Ok(finding)) if finding.broken_by > 0 => {
                Grade::BrokenBy(finding.broken_by, finding.unit)
            }
            Some(Ok(_)) => Grade::Held,
        }
    }

    pub(crate) fn seen(&self) -> String {
        match &self.finding {
            None => "–".to_owned(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(finding)) if !self.is_promised && finding.broken_by > 0 => {
                let excess = finding.unit.text(finding.broken_by);
                format!("{} (broken by {excess})", finding.seen)
            }
            Some(Ok(finding)) => finding.seen.clone(),
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered => f.write_str("–"),
            Self::NotPromised => f.write_str("not promised"),
            Self::Held => f.write_str("held"),
            Self::NotRun => f.write_str("not run"),
            Self::BrokenBy(by, unit) => write!(f, "**broken by {}**", unit.text(*by)),
        }
    }
}

/// The columns of the short table, each for one attack or several.
const COLUMNS: [(&str, &[&str]); 10] = [
    ("threads race", &["threads"]),
    ("processes race", &["processes"]),
    ("bursts around the end of a window", &["edges"]),
    ("costs of 1 to 7, some given back", &["costs"]),
    ("callers give up", &["cancelled"]),
    ("requests and replies are lost", &["cut"]),
    (
        "the server stops, restarts, is emptied or full",
        &["paused", "killed", "emptied", "full"],
    ),
    ("clocks are wrong", &["clock", "skew"]),
    ("slots of crashed processes", &["slots"]),
    ("calls just before and after a wait", &["waits"]),
];

/// Returns the text of RESULTS.md. `about` tells how it was made, `versions` has those of all contestants, and `former`
/// is the text before this run.
pub(crate) fn page(
    rows: &[Row],
    about: &str,
    versions: &[(String, String)],
    former: &str,
) -> String {
    let mut page = String::from("# Results\n\n");
    let _ = writeln!(page, "{about}\n\n{}\n", comparison(rows, former));
    let _ = writeln!(page, "## In short\n\n{}", short_table(rows, versions));
    page.push_str("## Attacks\n\n| attack | what is done |\n|---|---|\n");
    for attack in &ALL {
        let _ = writeln!(page, "| {} | {} |", attack.name, attack.about);
    }
    page.push_str(
        "\n## All results\n\n| contestant | attack | result | seen |\n|---|---|---|---|\n",
    );
    for row in rows.iter().filter(|row| row.grade() != Grade::NotOffered) {
        page.push_str(&line(row));
    }
    page.push_str(&commands(rows));
    page
}

/// The command that shows each broken promise.
fn commands(rows: &[Row]) -> String {
    let commands: String = rows
        .iter()
        .filter(|row| row.grade() >= Grade::NotRun)
        .map(command)
        .collect();
    let commands = if commands.is_empty() {
        "None.\n"
    } else {
        &commands
    };
    format!("\n## Broken promises\n\n{commands}")
}

fn command(row: &Row) -> String {
    let contestant = &row.contestant;
    let attack = row.attack;
    format!(
        "- {contestant}, {attack}: `tests/run torture --contestant {contestant} --attack {attack}`\n"
    )
}

fn line(row: &Row) -> String {
    let contestant = &row.contestant;
    let attack = row.attack;
    let grade = row.grade();
    let seen = row.seen().replace('|', "/");
    format!("| {contestant} | {attack} | {grade} | {seen} |\n")
}

fn short_table(rows: &[Row], versions: &[(String, String)]) -> String {
    let names = COLUMNS.map(|(name, _)| name).join(" | ");
    let mut table = format!(
        "| limiter | {names} |\n|---|{}\n",
        "---|".repeat(COLUMNS.len())
    );
    for (contestant, version) in versions {
        let _ = write!(table, "| {contestant} {version} |");
        for (_, attacks) in COLUMNS {
            let own = rows.iter().filter(|row| &row.contestant == contestant);
            let own: Vec<_> = own.filter(|row| attacks.contains(&row.attack)).collect();
            let _ = write!(table, " {} |", cell(&own));
        }
        table.push('\n');
    }
    table
}

/// One grade if all attacks agree, else each grade with its attacks, in their order.
fn cell(rows: &[&Row]) -> String {
    let mut grades: Vec<(Grade, Vec<&str>)> = Vec::new();
    for row in rows {
        let grade = row.grade();
        match grades.iter_mut().find(|(known, _)| *known == grade) {
            Some((_, attacks)) => attacks.push(row.attack),
            None => grades.push((grade, vec![row.attack])),
        }
    }
    if let [(grade, _)] = grades.as_slice() {
        return grade.to_string();
    }
    let grades: Vec<_> = grades
        .iter()
        .map(|(grade, attacks)| format!("{grade} ({})", attacks.join(", ")))
        .collect();
    grades.join(", ")
}

/// Compares which promises were held and broken with the page of another run.
fn comparison(rows: &[Row], former: &str) -> String {
    let former: BTreeMap<_, _> = former.lines().filter_map(former_result).collect();
    let mut same = 0;
    let mut changed = Vec::new();
    for row in rows {
        let now = row.grade().to_string();
        match former.get(&(row.contestant.as_str(), row.attack)) {
            Some(before) if *before == kind(&now) => same += 1,
            Some(before) => {
                changed.push(format!(
                    "{}, {}: {before} before, {} now",
                    row.contestant,
                    row.attack,
                    kind(&now)
                ));
            }
            None => {}
        }
    }
    let compared = same + changed.len();
    if compared == 0 {
        "No other run to compare with.".to_owned()
    } else if changed.is_empty() {
        format!("This run and the run before it agree on all {compared} results.")
    } else {
        format!(
            "This run and the run before it agree on {same} of {compared} results; {}.",
            changed.join("; ")
        )
    }
}

/// Returns the contestant, the attack and the kind of the result in a line of a table.
fn former_result(line: &str) -> Option<((&str, &str), &str)> {
    let mut cells = line.split('|').map(str::trim).skip(1);
    let contestant = cells.next()?;
    let attack = cells.next()?;
    let grade = cells.next()?;
    Some(((contestant, attack), kind(grade)))
}

/// Whatever it was broken by.
fn kind(grade: &str) -> &str {
    if grade.starts_with("**broken") {
        "broken"
    } else {
        grade
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(attack: &'static str, is_promised: bool, broken_by: Option<u64>) -> Row {
        Row {
            contestant: "ada".to_owned(),
            attack,
            is_promised,
            finding: broken_by.map(|by| Ok(Finding::new(by, Measure::Unit, String::new()))),
        }
    }

    #[test]
    fn a_cell_names_the_attack_of_each_grade() {
        let (edges, costs) = (row("edges", true, Some(0)), row("costs", true, None));
        assert_eq!(cell(&[&edges]), "held");
        assert_eq!(cell(&[&edges, &costs]), "held (edges), – (costs)");
        let killed = row("killed", false, Some(1));
        let paused = row("paused", true, Some(0));
        let cells = cell(&[&paused, &killed, &edges]);
        assert_eq!(cells, "held (paused, edges), not promised (killed)");
    }

    #[test]
    fn an_excess_has_its_unit() {
        let broken = |by| row("edges", true, Some(by)).grade().to_string();
        assert_eq!(broken(1), "**broken by 1 unit**");
        assert_eq!(broken(7), "**broken by 7 units**");
        let seen = row("edges", false, Some(2)).seen();
        assert_eq!(seen, " (broken by 2 units)");
    }
}
