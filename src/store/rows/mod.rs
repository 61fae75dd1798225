//! A store on the rows of a database.

mod attempts;
mod batch;
mod blocked_row;
mod call;
mod counts;
pub mod for_kit;
mod groups;
mod queue;
mod requests;
mod row_name;
mod rows;
mod store_on;

pub use batch::{Batch, Write};
pub use row_name::RowName;
pub use rows::{Rows, Written};
pub use store_on::StoreOn;
