//! Named threads, made in one place. A panic in a room stops the whole agent: rooms cannot be trusted to go on with
//! half a state, and the databases hold all that matters.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock;

/// Stack of a room's thread, bytes: enough for TLS and a debug build, small enough for hundreds of workers.
const STACK_BYTES: usize = 512 * 1024;

/// Starts a room's thread under its room's name.
pub fn spawn(
    name: impl Into<String>,
    room: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let name = name.into();
    let for_panic = name.clone();
    std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(room)).is_err() {
            log::error!("room {for_panic} panicked: this is a bug; the agent stops and keeps all data");
            // No unwinding of the other rooms: a row in SENDING tells its story at the next start.
            std::process::exit(crate::exit::SOFTWARE);
        }
    })
}

/// Starts a thread for one guest (a connection), whose panic ends that guest alone: it holds no state of a room.
pub fn spawn_guest(guest: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("guest".to_owned()).stack_size(STACK_BYTES).spawn(guest).map(drop)
}

/// Joins a thread that ends by the deadline. False if it did not, or panicked.
pub fn join_until(handle: JoinHandle<()>, deadline: Instant) -> bool {
    while !handle.is_finished() {
        if clock::mono() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    handle.join().is_ok()
}
