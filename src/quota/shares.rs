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

    /// Returns the id as it is stored.
    pub(crate) fn bytes(self) -> [u8; 4] {
        self.0.get().to_be_bytes()
    }

    /// Returns the share of stored bytes. `None` for zeros, which no share has.
    pub(crate) fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        NonZeroU32::new(u32::from_be_bytes(bytes)).map(Self)
    }
}

/// Returns a hash of bytes. It is stored, so it must be the same in every version of this crate and of the standard library.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

impl Shares {
    pub(crate) const NONE: Self = Self(None);

    /// Creates the shares of a quota with this limit.
    pub(super) fn new(shares: Vec<Share>, limit: u32) -> Result<Self, ConfigError> {
        let invalid = |name: &str, rule: &str| Err(ConfigError::quota_part("share", name, rule));
        let mut reserved: u64 = 0;
        for (index, share) in shares.iter().enumerate() {
            let name = share.name();
            if name.is_empty() || name.contains(is_reserved) {
                return invalid(name, "a name has no spaces and none of < > = , ;");
            }
            let is_same = |other: &Share| other.id == share.id;
            if shares.iter().take(index).any(is_same) {
                return invalid(
                    name,
                    "two shares of a quota have this name, or one that is stored alike",
                );
            }
            if share.most < share.reserve {
                return invalid(name, "the most units of a share are at least its reserve");
            }
            reserved += u64::from(share.reserve);
            if reserved > limit.into() {
                return invalid(
                    name,
                    "the reserves of all shares are together at most the limit",
                );
            }
        }
        if let Some(share) = shares.get(MAX_SHARES) {
            return invalid(share.name(), "a quota has at most 16 shares");
        }
        Ok(Self::from(shares))
    }

    /// Returns whether there are no shares.
    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Share> {
        self.0.as_deref().unwrap_or_default().iter()
    }

    /// Returns the name of a share, if the quota has it.
    pub(crate) fn name_of(&self, id: ShareId) -> Option<&str> {
        let share = self.iter().find(|share| share.id == id);
        share.map(Share::name)
    }

    /// Returns the most units that a share can get of an unused limit: a higher cost never passes.
    #[inline]
    pub(super) fn ceiling(&self, limit: u32, asking: Option<ShareId>) -> u32 {
        if self.is_none() {
            return limit;
        }
        let (mut others, mut reserve, mut most) = (0, 0, limit);
        for share in self.iter() {
            if Some(share.id) == asking {
                (reserve, most) = (share.reserve, share.most);
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

    /// Returns the same parts of another limit, rounded down. A bound is at least one unit, unless it is 0, as the limit is.
    pub(super) fn scaled(&self, from: u32, to: u32) -> Self {
        let part = |units: u32| {
            let part = u64::from(units) * u64::from(to) / u64::from(from.max(1));
            u32::try_from(part).unwrap_or(u32::MAX)
        };
        let scale = |share: &Share| Share {
            name: Arc::clone(&share.name),
            id: share.id,
            reserve: part(share.reserve),
            most: match share.most {
                0 | u32::MAX => share.most,
                most => part(most).max(1),
            },
        };
        Self::from(self.iter().map(scale).collect::<Vec<_>>())
    }
}

impl From<Vec<Share>> for Shares {
    fn from(shares: Vec<Share>) -> Self {
        Self((!shares.is_empty()).then(|| shares.into()))
    }
}

fn is_reserved(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | '=' | ',' | ';')
}
