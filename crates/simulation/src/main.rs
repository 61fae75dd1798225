//! Runs worlds: `tests/run simulation` has the arguments.

#[cfg(all(target_os = "linux", tollgate_simulation))]
fn main() -> std::process::ExitCode {
    tollgate_simulation::program::main()
}

#[cfg(not(all(target_os = "linux", tollgate_simulation)))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "a world needs Linux, and a build with `--cfg tollgate_simulation`: run `tests/run simulation`"
    );
    std::process::ExitCode::FAILURE
}
