//! The clock and the randomness of the operating system, which a world replaces on its thread.
//!
//! The linker takes these functions of the program before those of the C library. So `std::time`, tokio and the hash maps of
//! std read the time and the seed of the world, and no code needs a clock or a generator as an argument.
#![expect(unsafe_code, reason = "functions of the C library have raw pointers")]

use std::cell::Cell;

use crate::random::Random;

/// The time since 1970 at which a world begins, in seconds.
pub(crate) const BEGIN: u64 = 1_750_000_000;

thread_local! {
    /// The monotonic time of the process that runs, in nanoseconds. `None` outside of a world.
    static TIME: Cell<Option<u64>> = const { Cell::new(None) };
    /// The readings of the clock. Each is a nanosecond later: a timer of tokio must not end before its time by this clock.
    static READINGS: Cell<u64> = const { Cell::new(0) };
    static RANDOM: Cell<Random> = const { Cell::new(Random::new(0, 0)) };
}

/// Begins a world on this thread.
pub(crate) fn begin(random: Random) {
    READINGS.set(0);
    RANDOM.set(random);
    set_millis(1);
}

/// Sets the monotonic time of the process that runs.
pub(crate) fn set_millis(millis: u64) {
    TIME.set(Some(millis * 1_000_000));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> libc::c_int {
    let Some(now) = TIME.get() else {
        // SAFETY: the system call takes the arguments of this function.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as libc::c_int;
    };
    READINGS.set(READINGS.get() + 1);
    let nanos = now + READINGS.get();
    let first = if clock == libc::CLOCK_REALTIME {
        BEGIN
    } else {
        0
    };
    let read = libc::timespec {
        tv_sec: (first + nanos / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the caller passes a place for the time.
    unsafe { time.write(read) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(
    bytes: *mut u8,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if TIME.get().is_none() {
        // SAFETY: the system call takes the arguments of this function.
        return unsafe { libc::syscall(libc::SYS_getrandom, bytes, length, flags) }
            as libc::ssize_t;
    }
    let mut random = RANDOM.get();
    for index in 0..length {
        // SAFETY: the caller passes so many bytes.
        unsafe { bytes.add(index).write(random.next() as u8) };
    }
    RANDOM.set(random);
    length as libc::ssize_t
}
