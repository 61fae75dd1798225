//! Puts tollgate, and limiters of other programs, through all attacks.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_torture::main(tollgate_torture::contestants())
}
