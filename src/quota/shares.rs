//! The shares of a quota: parts of its limit that are kept for some requests, or bounded for them.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::error::ConfigError;

/// The most shares of a quota: each one is a number in every check and in every stored charge.
const MAX_SHARES: usize = 16;

/// A named share of a [`Quota`](crate::Quota): the units that are kept for some requests, and the most that they may use.
///
/// [`Quota::shares`](crate::Quota::shares) sets the shares of a quota, and has the rule. A
/// [layer](crate::RateLimitLayer::share), a [level](crate::Level::share) or a
/// [check](crate::LevelCheck::share) says to which one a request belongs.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, Share};
///
/// // 200 units are kept for critical requests. Batch jobs use at most 400.
/// let quota = Quota::per_minute(1_000)
///     .shares([Share::of("critical").reserve(200), Share::of("batch").at_most(400)]);
/// assert_eq!(quota, "1000/minute critical>=200 batch<=400".parse()?);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a share does nothing until a quota has it"]
pub struct Share {
    name: Arc<str>,
    pub(crate) id: ShareId,
    pub(crate) reserve: u32,
    /// `u32::MAX` without a bound.
    pub(crate) most: u32,
}

impl Share {
    /// Creates a share with this name, without a reserve and without a bound.
    ///
    /// The name has no spaces and none of the characters `<`, `>`, `=`, `,` and `;`.
    pub fn of(name: impl AsRef<str>) -> Self {
        Self {
            name: name.as_ref().into(),
            id: ShareId::of(name.as_ref()),
            reserve: 0,
            most: u32::MAX,
        }
    }

    /// Keeps so many units for this share: no other request may use them. The default is 0.
    pub fn reserve(self, units: u32) -> Self {
        let reserve = units;
        Self { reserve, ..self }
    }

    /// Sets the most units that this share may use. By default, it may use all that no other share has reserved.
    pub fn at_most(self, units: u32) -> Self {
        let most = units;
        Self { most, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// The shares of a quota. `None` without shares, as for most quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shares(Option<Arc<[Share]>>);

/// The first four bytes of the hash of a share's name, as they are stored. Zeros stand for a request without a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShareId(NonZeroU32);

impl ShareId {
    pub(crate) fn of(name: &str) -> Self {
        let hash = NonZeroU32::new(fnv_1a(name.as_bytes()));
        Self(hash.unwrap_or(NonZeroU32::MIN))
    }

    pub(crate) fn bytes(self) -> [u8; 4] {
        self.0.get().to_be_bytes()
    }

    /// `None` for zeros, which no share has.
    pub(crate) fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        NonZeroU32::new(u32::from_be_bytes(bytes)).map(Self)
    }
}

/// The hash is stored, so it must be the same in every version of this crate and of the standard library.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

impl Shares {
    pub(crate) const NONE: Self = Self(None);

    pub(super) fn new(shares: Vec<Share>, limit: u32) -> Result<Self, ConfigError> {
        let mut reserved: u64 = 0;
        for (index, share) in shares.iter().enumerate() {
            reserved += u64::from(share.reserve);
            let is_known = shares
                .iter()
                .take(index)
                .any(|earlier| earlier.id == share.id);
            let broken_rule = if share.name.is_empty() || share.name.contains(is_reserved) {
                Some("a name has no spaces and none of < > = , ;")
            } else if is_known {
                Some("two shares of a quota have this name, or one that is stored alike")
            } else if share.most < share.reserve {
                Some("the most units of a share are at least its reserve")
            } else if reserved > limit.into() {
                Some("the reserves of all shares are together at most the limit")
            } else {
                None
            };
            if let Some(rule) = broken_rule {
                return Err(ConfigError::quota_part("share", share.name(), rule));
            }
        }
        if let Some(share) = shares.get(MAX_SHARES) {
            let rule = "a quota has at most 16 shares";
            return Err(ConfigError::quota_part("share", share.name(), rule));
        }
        Ok(Self::from(shares))
    }

    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Share> {
        self.0.as_deref().unwrap_or_default().iter()
    }

    pub(crate) fn name_of(&self, id: ShareId) -> Option<&str> {
        self.iter().find(|share| share.id == id).map(Share::name)
    }

    /// The most units that a share can get of an unused limit: a higher cost never passes.
    #[inline]
    pub(super) fn ceiling(&self, limit: u32, asking: Option<ShareId>) -> u32 {
        if self.is_none() {
            return limit;
        }
        let mut others = 0;
        let mut reserve = 0;
        let mut most = limit;
        for share in self.iter() {
            if Some(share.id) == asking {
                reserve = share.reserve;
                most = share.most;
            } else {
                others += share.reserve;
            }
        }
        limit
            .saturating_sub(others)
            .max(reserve)
            .min(most)
            .min(limit)
    }

    /// Keeps the parts of another limit, rounded down. A bound is at least one unit, unless it is 0, as the limit is.
    pub(super) fn scaled(&self, from: u32, to: u32) -> Self {
        let scaled: Vec<_> = self
            .iter()
            .map(|share| Share {
                name: Arc::clone(&share.name),
                id: share.id,
                reserve: scaled_units(share.reserve, from, to),
                most: match share.most {
                    0 | u32::MAX => share.most,
                    most => scaled_units(most, from, to).max(1),
                },
            })
            .collect();
        Self::from(scaled)
    }
}

fn scaled_units(units: u32, from: u32, to: u32) -> u32 {
    let scaled = u64::from(units) * u64::from(to) / u64::from(from.max(1));
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

impl From<Vec<Share>> for Shares {
    fn from(shares: Vec<Share>) -> Self {
        Self((!shares.is_empty()).then(|| shares.into()))
    }
}

fn is_reserved(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | '=' | ',' | ';')
}
