//! The dialects of rate limit headers.

/// The headers that report a limit to clients: their names and their format.
///
/// Pass them to [`RateLimitLayer::headers`](crate::RateLimitLayer::headers). The default is `X-RateLimit-*`
/// with a reset in Unix time, as in GitHub's API.
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
/// // An IETF draft in addition to the default.
/// let layer = layer.headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)));
/// ```
///
/// # Dialects
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
/// There is no standard for these headers. Most clients that wait read only `Retry-After`, which a 429 has in
/// every dialect. The [clients that read `X-RateLimit-*`](crate::guide::clients) expect the format of the
/// default.
///
/// The IETF has a draft whose versions differ in names and syntax. The newest version, 11, is expected to
/// change again. No retrying client is known to read it, and one parser of the older versions fails on it. So
/// choose the version that your clients read.
///
/// # Responses with these headers
///
/// All responses to requests that the quotas decided have these headers: to admitted requests, and to refused
/// ones. These responses do not:
///
/// - those to requests that nothing counted: [skipped](crate::RateLimitLayer::skip) requests, or requests that
///   the policy [`open`](crate::FailurePolicy::open) admitted;
/// - rejections for other reasons, with status 400, 500 or 503;
/// - responses of a [dry run](crate::RateLimitLayer::dry_run);
/// - those of a layer with [hidden](crate::RateLimitLayer::hidden) limits only;
/// - redirects with no units left: a client that reads 0 might not follow the redirect.
///
/// A 429 has a `Retry-After`, unless no wait helps: the cost is above a limit, or a [total](crate::Quota::total) is used up.
/// Scripts in a browser can read the headers only if CORS exposes them: see [`cors`](crate::cors).
///
/// # Numbers
///
/// - **limit, remaining, reset** are the numbers of one quota, if there are several: see
///   [`DecisionView`](crate::DecisionView). In the drafts before 11, the limit belongs to the quota with the
///   fewest units left, as these drafts require.
/// - **`X-RateLimit-*`** of an admitted request are the numbers of the rate with the fewest units left: a client plans by
///   its tokens, not by its streams. They are those of slots [in flight](crate::Quota::in_flight) only if there is no rate,
///   or if the slots refuse.
/// - **[Hidden](crate::Level::hidden) levels** have no numbers and no policies in any of them. So a 429 by a hidden level
///   may report units that remain. Its reset is not before the end of `Retry-After`.
/// - **remaining** is the number of units that would be admitted now. A request that costs more can be refused
///   although some units are left. Then `remaining` and `r` of the drafts report those units, but
///   `X-RateLimit-Remaining` is 0, because clients wait only at 0.
/// - **reset** and **`t`** are the time until more units are left, in whole seconds, rounded up.
///   `X-RateLimit-Reset` is the Unix time of that second, by the clock of this machine. With
///   [`Gcra`](crate::Algorithm::Gcra), where units return one by one, `t` is the time until all are back.
/// - On a 429, **reset** and **`t`** are the time until this request is admitted, like `Retry-After`. A reset, and the longest
///   `t`, are never shorter than `Retry-After`, whichever layer or level has the longest wait. If no
///   wait helps, `X-RateLimit-Reset` and `t` are omitted. Drafts 3 to 7 require a reset: there it is the
///   window. A `t` of 0 is also omitted.
/// - **`RateLimit-Policy`** lists the quotas of all [levels](crate::RateLimitLayer::and). **`RateLimit`** of
///   draft 11 lists all quotas, but on a 429 only those that refuse. It leaves out levels that were not asked or
///   not counted.
/// - **`q`** is the limit, and **`w`** the window. No draft can express a window that is not whole seconds:
///   draft 11 omits it, and the older drafts round it up. The older drafts also forbid two policies with the
///   same limit: of these, only the policy with the longer window is listed.
/// - **`"burst"`** is the name of a policy: the name of its [quota](crate::Quota::with_name), or else the name of
///   the limiter. With several quotas, the limiter's name is followed by the window: `search-1s`, `search-1d`.
///   If names are equal or differ only in case, a number is added to the later ones. Characters other than printable
///   ASCII are percent-encoded.
///
/// # Nested layers
///
/// If several layers limit a request, use the same dialect for all of them, and give each a
/// [name](crate::RateLimitLayer::name). The policies of unnamed layers are all called `"default"`, so a client
/// cannot distinguish them.
///
/// - **Lists**: each layer adds its policies to `RateLimit-Policy`, and to `RateLimit` of draft 11. A list in
///   the syntax of another draft is not changed, because both together would not parse.
/// - **Other headers** come from the layer that answered 429, or else from the layer with the fewest units
///   left.
/// - **`Retry-After` and resets**: if an inner layer rejects a request and an outer layer has no units left for a retry,
///   they are the longer wait. It is exact for requests that cost one unit, and for all requests with
///   [`Gcra`](crate::Algorithm::Gcra). Otherwise the outer layer reports the wait for one unit, so the retry
///   may be refused once more. The body of the inner layer does not change.
/// - **Headers of the service**, for example of an upstream behind a gateway: if its `X-RateLimit-Remaining`,
///   `RateLimit-Remaining` or `remaining` of draft 7 is no more than the units left here, its numbers stay.
///   Otherwise they are replaced. On a 429 of the service, no reset of the layer is before the end of its `Retry-After`.
///   If it has no such numbers, its `Retry-After` in seconds is lengthened as that of an inner layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(super) x_ratelimit: Option<ResetFormat>,
    pub(super) ietf: Option<IetfDraft>,
}

/// A version of the IETF's `draft-ietf-httpapi-ratelimit-headers`, for [`Headers::ietf`].
///
/// Clients are known to read drafts 3, 6 and 7. The newest is draft 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IetfDraft {
    /// The draft of 2022: three headers. `RateLimit-Limit` has the limit and then the policies.
    Draft03,
    /// The draft of December 2022: four headers.
    Draft06,
    /// The draft of June 2023: two headers. `RateLimit` is a dictionary.
    Draft07,
    /// The draft of May 2026: two headers, both lists of named policies. Drafts 8 to 10 have the same syntax.
    Draft11,
}

/// The format of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::middleware) enum ResetFormat {
    /// Seconds from now.
    Delta,
    /// Unix time.
    Epoch,
}

/// Whether a layer is tighter than the inner layers that have written to the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tightness {
    /// No inner layer is tighter: this layer replaces single values.
    Tightest,
    /// An inner layer is tighter: this layer only appends to lists.
    Behind,
}

impl Headers {
    /// Writes `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` as Unix time: the default.
    ///
    /// The time comes from the clock of this machine. A client with a clock ahead of it retries too early, and one
    /// with a clock behind it waits too long. `Retry-After` does not depend on clocks.
    #[must_use]
    pub const fn x_ratelimit() -> Self {
        Self {
            x_ratelimit: Some(ResetFormat::Epoch),
            ..Self::none()
        }
    }

    /// Writes the `RateLimit` headers of a draft of the IETF.
    #[must_use]
    pub const fn ietf(draft: IetfDraft) -> Self {
        Self {
            ietf: Some(draft),
            ..Self::none()
        }
    }

    /// Writes no headers, for limits that clients should not see. A 429 still has a `Retry-After`.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            x_ratelimit: None,
            ietf: None,
        }
    }

    /// Writes the headers of both dialects.
    ///
    /// Two drafts use the same names, so only the draft of `other` is written. The same holds for two formats
    /// of `X-RateLimit-Reset`.
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

    /// Writes `X-RateLimit-Reset` as seconds from now. The default is Unix time. It has no effect without that header.
    ///
    /// Use it only for clients that expect this format. Clients that expect Unix time, like clients of GitHub's
    /// API, read a small number as a time in 1970, and retry at once.
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
