//! Changes of rows for the kit of rows, and for nobody else.

use super::attempts::carry_out;
use super::batch::{Batch, RowKind};
use super::call::{Call, Operation};
use super::requests::{RequestsFor, RowValue, ToWrite};
use super::row_name::RowName;
use super::rows::Rows;
use crate::error::Error;
use crate::store::future::StoreFuture;

/// The bytes of a row of the kit, and the time from which they may be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KitRow {
    /// `None` for a row that is missing.
    pub value: Option<Vec<u8>>,
    /// In microseconds since 1970.
    pub expires_at: u64,
}

impl RowValue for KitRow {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            value: Some(bytes.to_vec()),
            expires_at: 0,
        })
    }

    fn write(&self) -> Option<(Vec<u8>, u64)> {
        Some((self.value.clone()?, self.expires_at))
    }
}

/// Whether the kit writes the rows that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "hidden, and for the kit alone")]
pub enum KitChange {
    /// It only reads them.
    Read,
    /// It writes all of them.
    Write,
}

struct ChangeKitRows<F> {
    names: Vec<RowName>,
    change: F,
}

impl<F> Operation for ChangeKitRows<F>
where
    F: FnMut(&mut [KitRow], u64) -> KitChange + Send + Sync + 'static,
{
    type Value = KitRow;
    type Answer = ();

    fn names(&self) -> Vec<RowName> {
        self.names.clone()
    }

    fn run(&mut self, values: &mut [KitRow], now: u64) -> (Result<(), Error>, ToWrite) {
        let to_write = match (self.change)(values, now) {
            KitChange::Read => ToWrite::Nothing,
            KitChange::Write => ToWrite::All,
        };
        (Ok(()), to_write)
    }
}

/// Changes rows as [`StoreOn`](super::StoreOn) changes its rows. The closure gets the rows and the time, and may run several
/// times.
///
/// # Errors
///
/// Returns the error of the rows.
pub async fn change<R: Rows>(
    rows: &R,
    names: &[String],
    change: impl FnMut(&mut [KitRow], u64) -> KitChange + Send + Sync + 'static,
) -> Result<(), Error> {
    let names = names.iter().map(|name| RowName::kit(name)).collect();
    let (caller, answer) = StoreFuture::channel();
    let call = Call::new(ChangeKitRows { names, change }, caller);
    let requests = RequestsFor::new(vec![Box::new(call)]);
    carry_out(rows, &mut Batch::new(requests, RowKind::Counts)).await;
    answer.await
}
