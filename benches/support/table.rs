//! Markdown tables, and medians.

/// Prints rows under a head. The first column is text, the others are numbers.
pub(crate) fn print(title: &str, head: &[String], rows: &[Vec<String>]) {
    println!("\n**{title}**\n\n| {} |", head.join(" | "));
    println!("|---|{}", "--:|".repeat(head.len() - 1));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

/// The middle one, or the lower of two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// Three digits that matter.
pub(crate) fn short(value: f64) -> String {
    match value {
        _ if value == 0.0 => "0".to_owned(),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        ..10_000.0 => format!("{value:.0}"),
        ..1_000_000.0 => format!("{:.0}k", value / 1_000.0),
        _ => format!("{:.1}M", value / 1_000_000.0),
    }
}

/// A value, and beside it how many times another it is.
pub(crate) fn beside(value: f64, ratio: f64) -> [String; 2] {
    let ratio = match ratio {
        _ if ratio.is_finite() => format!("{ratio:.2}"),
        _ => "–".to_owned(),
    };
    [short(value), ratio]
}

/// The digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{} {:03}", grouped(number / 1_000), number % 1_000),
    }
}
