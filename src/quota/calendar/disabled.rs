//! Replaces `calendar.rs` in builds without the feature `calendar`: no quota has the windows of a calendar.

use std::fmt;

use super::calendar_windows::{AlignedWindow, CalendarUnit};
use crate::error::ConfigError;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Calendar {}

impl Calendar {
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        Err(ConfigError::quota_part(
            "calendar window",
            text,
            "windows of a calendar need the feature `calendar` of tollgate",
        ))
    }

    pub(super) fn unit(&self) -> CalendarUnit {
        match *self {}
    }

    pub(super) fn counted_micros(&self) -> u64 {
        match *self {}
    }

    pub(super) fn ordinal(&self) -> u8 {
        match *self {}
    }

    pub(super) fn counted_after(self, _: u8) -> Self {
        match self {}
    }

    #[cfg(feature = "redis")]
    pub(crate) fn starts_around(&self, _: u64) -> (u64, [u64; 6]) {
        match *self {}
    }

    pub(crate) fn window_at(&self, _: u64) -> AlignedWindow {
        match *self {}
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}
