//! Named places where a test can make the real program die, fail or wait. Compiled into debug builds only.
//!
//! `ONCEWARD_KILL_AT=POINT[:N]` ends the process by SIGKILL at the N-th pass (default 1).
//! `ONCEWARD_FAIL_AT=POINT[:N[:COUNT]]` makes passes N.. (COUNT of them, default 1) fail as a full disk.
//! `ONCEWARD_PANIC_AT=POINT[:N[:COUNT]]` makes passes N.. panic, as a bug of ours would.
//! `ONCEWARD_WAIT_AT=POINT:FILE` waits at the point until FILE exists (a test's signal, no sleep of its own).

/// What a failing point asks of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fail;

/// Passes the point. `Err` only where a test asked for a failure here.
#[cfg(debug_assertions)]
pub fn point(name: &str) -> Result<(), Fail> {
    imp::point(name)
}

/// Passes the point: nothing to do in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_name: &str) -> Result<(), Fail> {
    Ok(())
}

#[cfg(debug_assertions)]
mod imp {
    use super::Fail;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Plan {
        name: String,
        first: u64,
        count: u64,
        passes: AtomicU64,
    }

    fn plan(variable: &str) -> Option<Plan> {
        let text = std::env::var(variable).ok()?;
        let mut parts = text.split(':');
        Some(Plan {
            name: parts.next()?.to_owned(),
            first: parts.next().and_then(|n| n.parse().ok()).unwrap_or(1),
            count: parts.next().and_then(|n| n.parse().ok()).unwrap_or(1),
            passes: AtomicU64::new(0),
        })
    }

    fn due(plan: &Option<Plan>, name: &str) -> bool {
        plan.as_ref().is_some_and(|plan| {
            plan.name == name && {
                let pass = plan.passes.fetch_add(1, Ordering::SeqCst) + 1;
                pass >= plan.first && pass < plan.first.saturating_add(plan.count)
            }
        })
    }

    pub(super) fn point(name: &str) -> Result<(), Fail> {
        static KILL: OnceLock<Option<Plan>> = OnceLock::new();
        static FAIL: OnceLock<Option<Plan>> = OnceLock::new();
        static PANIC: OnceLock<Option<Plan>> = OnceLock::new();
        static WAIT: OnceLock<Option<(String, String)>> = OnceLock::new();
        if due(KILL.get_or_init(|| plan("ONCEWARD_KILL_AT")), name) {
            // SIGKILL to ourselves: no destructor, no flush, as a real kill -9.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::process::abort();
        }
        let wait = WAIT.get_or_init(|| {
            let text = std::env::var("ONCEWARD_WAIT_AT").ok()?;
            text.split_once(':').map(|(point, file)| (point.to_owned(), file.to_owned()))
        });
        if let Some((point, file)) = wait
            && point == name
        {
            while !std::path::Path::new(file).exists() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        assert!(
            !due(PANIC.get_or_init(|| plan("ONCEWARD_PANIC_AT")), name),
            "a panic at {name}, as a test wants it"
        );
        if due(FAIL.get_or_init(|| plan("ONCEWARD_FAIL_AT")), name) { Err(Fail) } else { Ok(()) }
    }
}
