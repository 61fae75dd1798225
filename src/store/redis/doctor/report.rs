//! What was found.

use std::borrow::Cow;
use std::fmt;

/// How bad a [`Finding`] is, from nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It could not be looked at, mostly because the user has no right to.
    Unknown,
    /// It works, and promises less than it could, or will not work for long.
    Warning,
    /// Checks fail, or more is admitted than the limits say.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    severity: Severity,
    topic: &'static str,
    text: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
}

impl Finding {
    pub(crate) fn ok(topic: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Severity::Ok, topic, text)
    }

    pub(crate) fn unknown(topic: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Severity::Unknown, topic, text)
    }

    pub(crate) fn warning(topic: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Severity::Warning, topic, text)
    }

    pub(crate) fn problem(topic: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Severity::Problem, topic, text)
    }

    fn new(severity: Severity, topic: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            severity,
            topic,
            text: text.into(),
            remedy: None,
        }
    }

    /// Says what to do.
    pub(crate) fn with_remedy(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }

    /// Says of which server of several this is found.
    pub(crate) fn at(self, server: &str) -> Self {
        let text = format!("{server}: {}", self.text).into();
        Self { text, ..self }
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// What was looked at, in a word or two, such as `eviction`.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.topic
    }

    /// What was found, for people.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What to do, where something is to be done.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// All that [`RedisStore::doctor`](crate::RedisStore::doctor) found; printed, it is aligned lines.
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// What was found, in the order in which it was looked at.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How bad the worst finding is.
    #[must_use]
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(Finding::severity);
        severities.max().unwrap_or(Severity::Ok)
    }
}

impl Extend<Finding> for Report {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, iter: I) {
        self.findings.extend(iter);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Finding {
                severity,
                topic,
                text,
                remedy,
            } = finding;
            write!(f, "{severity:<7}  {topic:<11}  {text}")?;
            if let Some(remedy) = remedy {
                write!(f, "\n{:<7}  {:<11}  -> {remedy}", "", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_aligned_lines_and_as_bad_as_its_worst_finding() {
        let mut report = Report::default();
        assert_eq!(report.worst(), Severity::Ok);
        assert_eq!(report.to_string(), "");
        report.push(Finding::ok("server", "Redis 7.0.15"));
        let eviction = Finding::warning("eviction", "allkeys-lru").with_remedy("noeviction");
        report.push(eviction.at("10.0.0.1:6379"));
        report.push(Finding::unknown("round trip", "no answer"));
        assert_eq!(report.worst(), Severity::Warning);
        assert_eq!(
            report.to_string(),
            "ok       server       Redis 7.0.15\n\
             warning  eviction     10.0.0.1:6379: allkeys-lru\n\
             \x20                     -> noeviction\n\
             unknown  round trip   no answer"
        );
    }
}
