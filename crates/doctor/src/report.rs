//! The report of the doctor, and its findings.

use std::borrow::Cow;
use std::fmt;

/// The severity of a [`Finding`], in ascending order.
///
/// # Examples
///
/// ```
/// use tollgate_doctor::Severity;
///
/// assert!(Severity::Problem > Severity::Warning);
/// assert_eq!(Severity::Unknown.to_string(), "unknown");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Ok,
    /// The topic could not be examined, usually because a permission is missing. Not a fault, but not a proof of
    /// health either: a deployment that must be sure requires [`Ok`](Self::Ok).
    Unknown,
    /// Checks work, but a failover, a restart or growth may lose counts or make checks fail.
    Warning,
    /// Checks fail, or more units are admitted than the limits allow.
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

/// The result of the examination of one topic.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), tollgate::ConfigError> {
/// # let url = "memory:";
/// let report = tollgate_doctor::examine_url(url).await?;
/// for finding in report.findings() {
///     println!("{}: {} ({:?})", finding.topic, finding.text, finding.remedy);
/// }
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The topic in one or two words, such as `eviction`. [`examine`](crate::examine) lists all topics.
    pub topic: &'static str,
    /// The finding, for people.
    pub text: Cow<'static, str>,
    /// What to do, if something should be changed.
    pub remedy: Option<Cow<'static, str>>,
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

    /// Adds a remedy.
    pub(crate) fn with_remedy(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }

    /// Adds the addresses of the servers.
    pub(crate) fn at(self, servers: &str) -> Self {
        let text = format!("{servers}: {}", self.text).into();
        Self { text, ..self }
    }
}

/// The findings of [`examine`](crate::examine), in the order of the examination.
///
/// `Display` prints a line for each finding, and one for its remedy.
///
/// # Examples
///
/// ```
/// use tollgate_doctor::Severity;
///
/// # async fn example() -> Result<(), tollgate::ConfigError> {
/// # let url = "memory:";
/// let report = tollgate_doctor::examine_url(url).await?;
/// if report.worst() > Severity::Ok {
///     println!("{report}");
/// }
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Returns the findings, in the order of the examination.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the highest severity of all findings.
    #[must_use]
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(|finding| finding.severity);
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
    fn a_report_prints_aligned_lines_and_has_its_highest_severity() {
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
