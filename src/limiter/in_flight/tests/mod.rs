// Its counts have a clock of their own.
#[cfg(feature = "test-util")]
mod orders;
