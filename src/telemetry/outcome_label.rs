//! The outcome of a check, and of its wait for the store, as labels of metrics and events.

use crate::error::ErrorKind;

/// The outcome of a check, as metrics and events label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Admitted,
    Refused,
    /// Refused in a dry run, so the request was passed on.
    WouldReject,
    /// Not checked: skipped, exempt by its plan, or without a key in a layer that exempts such requests.
    Exempt,
    /// Rejected without a check: the request has no key, or the key cannot be extracted.
    NoKey,
    /// Not decided, and not admitted by the failure policy.
    Failed,
}

impl OutcomeLabel {
    /// All outcomes, each at the index of its discriminant.
    pub(crate) const ALL: [Self; 6] = [
        Self::Admitted,
        Self::Refused,
        Self::WouldReject,
        Self::Exempt,
        Self::NoKey,
        Self::Failed,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::WouldReject => "would_reject",
            Self::Exempt => "exempt",
            Self::NoKey => "no_key",
            Self::Failed => "failed",
        }
    }
}

/// The end of a check's wait for the store, as metrics label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// The store admitted or refused the check.
    Answered,
    Failed(ErrorKind),
    /// The caller gave up.
    Abandoned,
}

impl WaitOutcome {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::Failed(kind) => kind.text(),
            Self::Abandoned => "abandoned",
        }
    }
}
