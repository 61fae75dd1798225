//! The headers that tell a client of its limit.

use std::time::Duration;

use super::x_ratelimit::Reset;

/// Which headers tell clients of their limit.
///
/// There is no standard. Most clients that wait read `Retry-After`, which every 429 has. The default adds
/// the `X-RateLimit-*` headers in the form of GitHub's API, with a reset in Unix time: the
/// [clients that read them](crate::guide::grpc_and_clients#clients-of-your-service) expect that form.
/// The IETF has a draft whose versions differ in names and syntax; the newest, 11, is about to change
/// again, no retrying client is known to read it, and one parser of the older versions fails on it. Choose
/// a draft by its version.
///
/// | dialect | what is written |
/// |---|---|
/// | [`x_ratelimit()`](Self::x_ratelimit), the default | `X-RateLimit-Limit: 100`<br>`X-RateLimit-Remaining: 42`<br>`X-RateLimit-Reset: 1793750417` |
/// | [`x_ratelimit().delta_reset()`](Self::delta_reset) | `X-RateLimit-Limit: 100`<br>`X-RateLimit-Remaining: 42`<br>`X-RateLimit-Reset: 17` |
/// | [`ietf(IetfDraft::Draft11)`](Self::ietf) | `RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400`<br>`RateLimit: "burst";r=42;t=17, "daily";r=913;t=36000` |
/// | [`ietf(IetfDraft::Draft07)`](Self::ietf) | `RateLimit-Policy: 100;w=60`<br>`RateLimit: limit=100, remaining=42, reset=17` |
/// | [`ietf(IetfDraft::Draft06)`](Self::ietf) | `RateLimit-Limit: 100`<br>`RateLimit-Remaining: 42`<br>`RateLimit-Reset: 17`<br>`RateLimit-Policy: 10;w=1, 100;w=60` |
/// | [`ietf(IetfDraft::Draft03)`](Self::ietf) | `RateLimit-Limit: 100, 100;w=60, 1000;w=86400`<br>`RateLimit-Remaining: 42`<br>`RateLimit-Reset: 17` |
/// | [`none()`](Self::none) | nothing |
///
/// They stand on every answer that was checked, admitted or not, but where the store has failed and
/// nobody counts. A 429 has a `Retry-After` in every dialect, and also with none.
///
/// # The numbers
///
/// - **limit, remaining, reset** are those of the quota that matters most: see
///   [`DecisionView`](crate::DecisionView). Remaining are the units that would be admitted now: a
///   request that costs several may be refused while some are left. `X-RateLimit-Remaining` is 0 on
///   every refusal all the same, since clients wait only then; `r` of draft 11 and `remaining` of the
///   others are what is left. In the drafts before 11, the limit is the one of the quota with the
///   fewest units left, as they demand.
/// - **reset** and **`t`** are whole seconds from now, rounded up, until more units are left;
///   `X-RateLimit-Reset` is the Unix time of that second, by this machine's clock. With
///   [`Gcra`](crate::Algorithm::Gcra), whose units come back one by one, `t` is the time until all are.
///   On a 429 they are the wait until this request is admitted, like `Retry-After`. Where no wait
///   helps, `X-RateLimit-Reset` and `t` are left out, and drafts 3 to 7, which demand a reset, tell the
///   window. A `t` of 0 is left out too.
/// - **`RateLimit-Policy`** lists all quotas. **`RateLimit`** of draft 11 lists all of them too, but on a
///   429 only those that refuse.
/// - **`w`** is the window. Where it is not whole seconds, which no draft can tell, draft 11 leaves it
///   out, and the drafts before, which demand it, get the next longer one. They also forbid two policies
///   of the same limit: the one with the longer window is listed.
/// - **`"burst"`**, the name of a policy, is that of its [quota](crate::Quota::named), else that of the
///   limiter, with the window where there are several quotas (`search-1s`, `search-1d`). Of names that
///   differ in case only, the later gets a number. What is not printable ASCII is percent-encoded.
///
/// # Nested layers
///
/// Lists get longer: each layer adds a line of `RateLimit-Policy`, and of draft 11's `RateLimit`. All
/// other headers are those of the layer with fewer units left, or of the one that answered 429. Credit
/// each layer a [name](crate::RateLimitLayer::name): of layers without, all policies are listed as
/// `"default"`, which a client cannot tell apart.
///
/// `Retry-After` is the longer wait, where a layer inside has rejected a request for which one outside
/// has no room either. For a request of one unit it is exact, and with [`Gcra`](crate::Algorithm::Gcra)
/// for any; other algorithms do not know when several units are back, and count the time until one is.
///
/// A service inside may have headers of these names, like one behind a gateway. What is told is never
/// looser than what it says: where its `X-RateLimit-Remaining`, `RateLimit-Remaining` or draft 7's
/// `remaining` is no more than what is left here, its numbers stay, and else they are replaced. To a
/// `RateLimit` or `RateLimit-Policy` of another form, such as draft 7's where draft 11 is written,
/// nothing is added, since both together would not parse; so layers around one another are best given
/// one dialect.
///
/// A redirect that has nothing left is without any of these headers: a client might not follow it.
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
    pub(crate) x_ratelimit: Option<Reset>,
    pub(crate) ietf: Option<IetfDraft>,
}

/// A version of the IETF's draft `draft-ietf-httpapi-ratelimit-headers`: those that clients are known
/// to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IetfDraft {
    /// Of 2022: three fields, the policies after the limit.
    Draft03,
    /// Of December 2022: four fields.
    Draft06,
    /// Of June 2023: two fields, `RateLimit` being a dictionary.
    Draft07,
    /// Of May 2026, in the syntax that drafts 8 to 10 have as well: two fields, lists of named policies.
    Draft11,
}

impl Headers {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last as Unix time: the default.
    #[must_use]
    pub const fn x_ratelimit() -> Self {
        Self {
            x_ratelimit: Some(Reset::Epoch),
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

    /// No headers: for limits that are nobody's business. A 429 has its `Retry-After` all the same.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            x_ratelimit: None,
            ietf: None,
        }
    }

    /// These and `other`. Of two drafts, which use the same names, it is the other's; and so of two
    /// forms of `X-RateLimit-Reset`.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads as the rest of the builder does"
    )]
    pub const fn and(self, other: Self) -> Self {
        Self {
            x_ratelimit: match other.x_ratelimit {
                Some(reset) => Some(reset),
                None => self.x_ratelimit,
            },
            ietf: match other.ietf {
                Some(draft) => Some(draft),
                None => self.ietf,
            },
        }
    }

    /// Writes `X-RateLimit-Reset`, if it is written, as Unix time: the default.
    ///
    /// The time is read from this machine's clock. A client whose clock is ahead of it asks too early, and
    /// one whose clock is behind waits too long. `Retry-After` needs no clock.
    #[must_use]
    pub const fn epoch_reset(mut self) -> Self {
        if self.x_ratelimit.is_some() {
            self.x_ratelimit = Some(Reset::Epoch);
        }
        self
    }

    /// Writes `X-RateLimit-Reset`, if it is written, as seconds from now.
    ///
    /// For clients that were written for this form. Clients of GitHub's API take a few seconds for a time
    /// in 1970, and ask again at once.
    #[must_use]
    pub const fn delta_reset(mut self) -> Self {
        if self.x_ratelimit.is_some() {
            self.x_ratelimit = Some(Reset::Delta);
        }
        self
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// How many fields are written at most.
    pub(crate) fn fields(&self) -> usize {
        let x_ratelimit = self.x_ratelimit.map_or(0, |_| super::x_ratelimit::FIELDS);
        let ietf = self.ietf.map_or(0, |draft| match draft {
            IetfDraft::Draft03 | IetfDraft::Draft06 | IetfDraft::Draft07 => {
                super::drafts_03_to_07::FIELDS
            }
            IetfDraft::Draft11 => super::draft_11::FIELDS,
        });
        x_ratelimit + ietf
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::x_ratelimit()
    }
}

/// Rounded up: who waits as long as he is told must not be refused again.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    let part = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(part)
}
