//! The outcomes that metrics and events tell apart.

/// The outcome of a check, as metrics and events label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Admitted,
    Refused,
    /// Refused in a dry run: the request was forwarded.
    WouldReject,
    /// Not counted: skipped, exempt by its plan, or without a key if that is permitted.
    Exempt,
    /// Without a key, or with one that cannot be extracted: answered without a check.
    NoKey,
    /// Not decided, and the failure policy is not to admit.
    Failed,
}

impl OutcomeLabel {
    /// All outcomes, each at the index of its discriminant.
    #[cfg(any(feature = "metrics", test))]
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
