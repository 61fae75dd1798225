//! The dialects of rate limit headers, and the choice between them.

/// The headers that report a limit to clients.
///
/// There is no standard. Most clients that wait read `Retry-After`, which every 429 has. The default adds
/// the `X-RateLimit-*` headers in the form of GitHub's API, with a reset in Unix time: the
/// [clients that read them](crate::guide::clients#clients-of-your-service) expect that form.
///
/// The IETF has a draft whose versions differ in names and syntax. The newest, 11, is about to change
/// again. No retrying client is known to read it, and one parser of the older versions fails on it. Choose
/// a draft by its version.
///
/// | dialect | headers |
/// |---|---|
/// | [`x_ratelimit()`](Self::x_ratelimit), the default | `X-RateLimit-Limit: 100`<br>`X-RateLimit-Remaining: 42`<br>`X-RateLimit-Reset: 1793750417` |
/// | [`x_ratelimit().delta_reset()`](Self::delta_reset) | `X-RateLimit-Limit: 100`<br>`X-RateLimit-Remaining: 42`<br>`X-RateLimit-Reset: 17` |
/// | [`ietf(IetfDraft::Draft11)`](Self::ietf) | `RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400`<br>`RateLimit: "burst";r=42;t=17, "daily";r=913;t=36000` |
/// | [`ietf(IetfDraft::Draft07)`](Self::ietf) | `RateLimit-Policy: 100;w=60`<br>`RateLimit: limit=100, remaining=42, reset=17` |
/// | [`ietf(IetfDraft::Draft06)`](Self::ietf) | `RateLimit-Limit: 100`<br>`RateLimit-Remaining: 42`<br>`RateLimit-Reset: 17`<br>`RateLimit-Policy: 10;w=1, 100;w=60` |
/// | [`ietf(IetfDraft::Draft03)`](Self::ietf) | `RateLimit-Limit: 100, 100;w=60, 1000;w=86400`<br>`RateLimit-Remaining: 42`<br>`RateLimit-Reset: 17` |
/// | [`none()`](Self::none) | nothing |
///
/// Every response to a checked request has these headers, admitted or not, unless the store has failed and
/// nothing counts. A 429 has a `Retry-After` in every dialect, and also with none.
///
/// # The numbers
///
/// - **limit, remaining, reset** are those of the reported quota: see
///   [`DecisionView`](crate::DecisionView). In the drafts before 11, the limit is that of the quota with the
///   fewest units left, as they require.
/// - **remaining** is the number of units that would be admitted now: a request that costs several may be
///   refused while some are left. `X-RateLimit-Remaining` is 0 on every refusal all the same, since clients
///   wait only then. `r` of draft 11 and `remaining` of the other drafts are the units left.
/// - **reset** and **`t`** are whole seconds from now, rounded up, until more units are left.
///   `X-RateLimit-Reset` is the Unix time of that second, by the clock of this machine. With
///   [`Gcra`](crate::Algorithm::Gcra), whose units come back one by one, `t` is the time until all are back.
/// - On a 429, **reset** and **`t`** are the wait until this request is admitted, like `Retry-After`. If no
///   wait helps, `X-RateLimit-Reset` and `t` are left out, and drafts 3 to 7, which require a reset, report
///   the window. A `t` of 0 is left out too.
/// - **`RateLimit-Policy`** lists all quotas. **`RateLimit`** of draft 11 lists all of them too, but on a
///   429 only those that refuse.
/// - **`w`** is the window. No draft can express a window that is not whole seconds: draft 11 leaves it out,
///   and the drafts before, which require it, round it up. They also forbid two policies with the same
///   limit: the one with the longer window is listed.
/// - **`"burst"`**, the name of a policy, is that of its [quota](crate::Quota::named), else that of the
///   limiter. With several quotas, the limiter's name is followed by the window (`search-1s`, `search-1d`).
///   If names differ only in case, the later ones get a number. Characters other than printable ASCII are
///   percent-encoded.
///
/// # Nested layers
///
/// Each layer adds a line of `RateLimit-Policy`, and of draft 11's `RateLimit`. All other headers are those
/// of the layer with fewer units left, or of the one that answered 429. Give each layer a
/// [name](crate::RateLimitLayer::name): the policies of unnamed layers are all listed as `"default"`, which
/// a client cannot tell apart.
///
/// `Retry-After` is the longer wait if an inner layer has rejected a request for which an outer one has no
/// units left either. It is exact for a request of one unit, and with [`Gcra`](crate::Algorithm::Gcra) for
/// any. Other algorithms do not know when several units are back, and report the time until one is.
///
/// An inner service may set headers with these names, for example behind a gateway. The reported numbers
/// are never looser than its own. If its `X-RateLimit-Remaining`, `RateLimit-Remaining` or draft 7's
/// `remaining` is no more than what is left here, its numbers stay; otherwise they are replaced. Nothing is
/// added to a `RateLimit` or `RateLimit-Policy` in another syntax, such as draft 7's in a layer that writes
/// draft 11, since both together would not parse. So give nested layers one dialect.
///
/// A redirect with no units left has none of these headers: a client might not follow it.
///
/// Scripts in a browser can read these headers if CORS exposes them: see [`cors`](crate::cors).
///
/// # Examples
///
/// ```
/// use tollgate::{Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer};
///
/// // For clients that expect seconds from now.
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .headers(Headers::x_ratelimit().delta_reset());
///
/// // The IETF's draft beside the default.
/// let layer = layer.headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(super) x_ratelimit: Option<ResetFormat>,
    pub(super) ietf: Option<IetfDraft>,
}

/// A version of the IETF's draft `draft-ietf-httpapi-ratelimit-headers` that clients are known to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IetfDraft {
    /// The draft of 2022: three fields, with the policies after the limit.
    Draft03,
    /// The draft of December 2022: four fields.
    Draft06,
    /// The draft of June 2023: two fields, of which `RateLimit` is a dictionary.
    Draft07,
    /// The draft of May 2026: two fields, both lists of named policies. Drafts 8 to 10 have the same syntax.
    Draft11,
}

/// The form of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetFormat {
    /// Seconds from now.
    Delta,
    /// Unix time.
    Epoch,
}

impl Headers {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last as Unix time: the default.
    #[must_use]
    pub const fn x_ratelimit() -> Self {
        Self {
            x_ratelimit: Some(ResetFormat::Epoch),
            ..Self::none()
        }
    }

    /// The `RateLimit` fields of a draft of the IETF.
    #[must_use]
    pub const fn ietf(draft: IetfDraft) -> Self {
        Self {
            ietf: Some(draft),
            ..Self::none()
        }
    }

    /// No headers: for limits that clients should not see. A 429 still has its `Retry-After`.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            x_ratelimit: None,
            ietf: None,
        }
    }

    /// Combines two dialects. Of two drafts, which use the same names, `other`'s is written; likewise of two
    /// forms of `X-RateLimit-Reset`.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads as the rest of the builder does"
    )]
    pub const fn and(self, other: Self) -> Self {
        Self {
            x_ratelimit: match other.x_ratelimit {
                Some(format) => Some(format),
                None => self.x_ratelimit,
            },
            ietf: match other.ietf {
                Some(draft) => Some(draft),
                None => self.ietf,
            },
        }
    }

    /// Writes `X-RateLimit-Reset` as Unix time: the default. Changes nothing if the header is not written.
    ///
    /// The time is read from the clock of this machine. A client whose clock is ahead of it retries too
    /// early, and one whose clock is behind waits too long. `Retry-After` needs no clock.
    #[must_use]
    pub const fn epoch_reset(mut self) -> Self {
        if self.x_ratelimit.is_some() {
            self.x_ratelimit = Some(ResetFormat::Epoch);
        }
        self
    }

    /// Writes `X-RateLimit-Reset` as seconds from now. Changes nothing if the header is not written.
    ///
    /// For clients that were written for this form. Clients of GitHub's API take a few seconds for a time
    /// in 1970, and retry at once.
    #[must_use]
    pub const fn delta_reset(mut self) -> Self {
        if self.x_ratelimit.is_some() {
            self.x_ratelimit = Some(ResetFormat::Delta);
        }
        self
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::x_ratelimit()
    }
}
