//! The stop (F16): along the arrows, so that nobody is left who could hand anything to a room that has ended.
//!
//! Never: waits longer than its deadline, and never closes files that others have put at the paths.

use std::sync::atomic::Ordering;

use super::Agent;
use crate::clock;
use crate::limits::STOP_MARGIN;
use crate::relay::Event;
use crate::thread::join_until;

impl Agent {
    /// Graceful stop (F16). True if every section from claim to record came to its end.
    pub fn stop(self) -> bool {
        let deadline = clock::mono() + self.stop_within;
        // Nothing is closed over files that others have put there.
        self.ward.freeze_if_replaced();
        self.ready.store(false, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        self.flags.stop();
        let _ = self.relay_events.send(Event::Stop(deadline));
        let _ = self.stop_sources.send(deadline);
        let Self {
            relay,
            sources,
            workers,
            watch,
            clock_watch,
            settlers,
            settlers_go_on,
            server,
            writer_thread,
            checkpointers,
            writer,
            relay_events,
            sweep,
            telling,
            retention,
            ..
        } = self;
        drop(telling.conditions_stop);
        let (clock_stop, clock_watch) = clock_watch;
        drop(clock_stop);
        let _ = join_until(clock_watch, deadline);
        let served = server.stop(deadline);
        drop(settlers_go_on);
        let retention = retention.stop();
        // Their lanes drop: workers end.
        let in_time = [join_until(relay, deadline), join_until(sources, deadline), served] == [true; 3];
        let late =
            workers.into_iter().map(|worker| join_until(worker, deadline)).filter(|ended| !ended).count();
        let late = late
            + settlers
                .into_iter()
                .map(|settler| join_until(settler, deadline))
                .filter(|ended| !ended)
                .count();
        let all = in_time && late == 0;
        // After those who raise, before the writer that keeps the last of it.
        let _ = join_until(telling.conditions, deadline);
        drop(telling.notifier_stop);
        let _ = join_until(telling.notifier, deadline.max(clock::mono() + STOP_MARGIN / 2));
        drop((writer, sweep, relay_events));
        let all = join_until(retention, deadline) && all;
        if all {
            // Only now is nobody left who could hand the writer an outcome.
            let written = join_until(writer_thread, deadline);
            let _ = join_until(watch, deadline);
            for checkpointer in checkpointers {
                let _ = join_until(checkpointer, deadline);
            }
            return written;
        }
        false
    }
}
