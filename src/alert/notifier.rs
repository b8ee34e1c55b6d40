//! Room: takes what is due from the book to the hooks and a copy of the book to the table.
//!
//! Each hook has a thread of its own, so that one that hangs holds up neither the other nor this room; a hook that
//! fails is left alone for a growing pause and everything for it stays due. The table is written through the inbox's
//! one writer, as work that the writer may refuse: then it is tried again later, and the hooks go on from memory.
//!
//! Never: blocks a room that raises, reads a database, decides what is told (the book does).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};

use super::Alerts;
use super::book::{Key, Notice};
use super::command::CommandHook;
use super::webhook::Webhook;
use super::words::Speaker;
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::writer::Writer;
use crate::store::alert::{QuarantineSeen, Save, Saved};

/// First pause of a hook that failed; doubled up to [`HOOK_PAUSE_MAX`].
const HOOK_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause: a receiver that is back hears within this time.
const HOOK_PAUSE_MAX: Duration = Duration::from_secs(120);
/// Longest pause that a receiver may ask for.
const HOOK_WAIT_MAX: Duration = Duration::from_secs(3_600);
/// Shortest time between two copies to the table: a storm adds five commits a second, not one a message. Also longer
/// than a record takes from its alert to its own time stamp, which `noted_until` relies on.
const SAVE_PAUSE: Duration = Duration::from_millis(200);
/// The same after a copy that failed.
const SAVE_PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// What a stop waits for hooks under way and for the last copy.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// A hook's "no".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// For people, without url or argument.
    pub reason: String,
    /// How long it wants to be left alone.
    pub wait: Option<Duration>,
}

/// A way out of the machine.
pub trait Hook: Send {
    /// In `alert_told` and in logs.
    fn name(&self) -> &'static str;
    /// Delivers once, in bounded time; looks at `stop` while it waits.
    fn deliver(&mut self, notice: &Notice, stop: &dyn Fn() -> bool) -> Result<(), Refusal>;
}

/// The hooks that the settings name, in a fixed order.
pub fn hooks(settings: &Settings) -> Result<Vec<Box<dyn Hook>>, String> {
    let speaker = Speaker::here(&settings.agent.environment, &settings.agent.timezone);
    let alert = &settings.alert;
    let mut hooks: Vec<Box<dyn Hook>> = Vec::new();
    if let Some(url) = &alert.webhook {
        hooks.push(Box::new(Webhook::new(url.clone(), speaker.clone())?));
    }
    if let Some(hook) = CommandHook::new(&alert.command, alert.command_timeout, speaker) {
        hooks.push(Box::new(hook));
    }
    Ok(hooks)
}

/// One hook as the room sees it.
struct Desk {
    name: &'static str,
    notices: Sender<Notice>,
    /// Under way; it may change while it is.
    busy: Option<Notice>,
    pause: Duration,
    not_before: Option<Instant>,
    /// Notices failed in a row.
    failed: u32,
}

/// The room.
pub struct Notifier {
    alerts: Alerts,
    writer: Writer,
    desks: Vec<Desk>,
    results: Receiver<(usize, Result<(), Refusal>)>,
    /// Held so that `results` never reads as ended where there is no hook: a wait on it would return at once, for ever.
    _done: Sender<(usize, Result<(), Refusal>)>,
    saved: (Sender<Saved>, Receiver<Saved>),
    saving: bool,
    save_not_before: Instant,
    save_put_off: bool,
    quarantine_seen: QuarantineSeen,
    stop: Receiver<()>,
    /// Looked at by hooks under way.
    stopping: Arc<AtomicBool>,
}

impl Notifier {
    /// Starts a thread for each hook. The room stops when `stop` is disconnected. `quarantine_seen` is moved on by the
    /// conditions room after it raised, and kept in the table with what it raised.
    pub fn new(
        alerts: Alerts,
        writer: Writer,
        hooks: Vec<Box<dyn Hook>>,
        quarantine_seen: QuarantineSeen,
        stop: Receiver<()>,
    ) -> std::io::Result<Self> {
        let (done, results) = crossbeam_channel::unbounded();
        let stopping = Arc::new(AtomicBool::new(false));
        let mut desks = Vec::new();
        for (number, mut hook) in hooks.into_iter().enumerate() {
            let (notices, to_do) = crossbeam_channel::bounded::<Notice>(1);
            let (done, stopping, name) = (done.clone(), stopping.clone(), hook.name());
            let _not_joined = crate::thread::spawn(format!("alert-{name}"), move || {
                for notice in to_do {
                    let stop = || stopping.load(Ordering::Relaxed);
                    let result = catch_unwind(AssertUnwindSafe(|| hook.deliver(&notice, &stop)))
                        .unwrap_or_else(|_| {
                            Err(Refusal { reason: "a panic in the hook: this is a bug".into(), wait: None })
                        });
                    let _ = done.send((number, result));
                }
            })?;
            desks.push(Desk {
                name,
                notices,
                busy: None,
                pause: HOOK_PAUSE_MIN,
                not_before: None,
                failed: 0,
            });
        }
        Ok(Self {
            alerts,
            writer,
            desks,
            results,
            _done: done,
            saved: crossbeam_channel::unbounded(),
            saving: false,
            save_not_before: Instant::now(),
            save_put_off: false,
            quarantine_seen,
            stop,
            stopping,
        })
    }

    /// Runs until stopped; a hook that hangs or a database in trouble delays the end by twice `STOP_GRACE` at most.
    pub fn run(mut self) {
        while self.stop.try_recv() != Err(TryRecvError::Disconnected) {
            self.alerts.tell_journal();
            self.hand_out();
            self.save(false);
            self.wait(self.until_next());
        }
        self.end();
    }

    /// Gives each idle hook its next notice.
    fn hand_out(&mut self) {
        let now = Instant::now();
        for (number, desk) in self.desks.iter_mut().enumerate() {
            if desk.busy.is_some() || desk.not_before.is_some_and(|at| now < at) {
                continue;
            }
            let Some(notice) = self.alerts.book().next(number + 1, now) else { continue };
            // The place is free: the hook has taken the last one and answered.
            if desk.notices.try_send(notice.clone()).is_ok() {
                desk.busy = Some(notice);
            }
        }
    }

    fn answered(&mut self, number: usize, result: Result<(), Refusal>) {
        let desk = &mut self.desks[number];
        let Some(notice) = desk.busy.take() else { return };
        match result {
            Ok(()) => {
                self.alerts.book().told(number + 1, &notice, Instant::now(), wall_ms());
                if desk.failed > 0 {
                    log::warn!("alert hook {} delivers again after {} failures", desk.name, desk.failed);
                }
                (desk.failed, desk.pause, desk.not_before) = (0, HOOK_PAUSE_MIN, None);
            }
            Err(Refusal { reason, wait }) => {
                let pause = wait.map_or(desk.pause, |wait| wait.clamp(desk.pause, HOOK_WAIT_MAX));
                if desk.failed == 0 {
                    log::warn!(
                        "alert hook {} fails: {reason}; its alerts are kept and tried again, now in {} s",
                        desk.name,
                        pause.as_secs()
                    );
                }
                desk.failed += 1;
                desk.not_before = Some(Instant::now() + pause);
                desk.pause = (desk.pause * 2).min(HOOK_PAUSE_MAX);
            }
        }
    }

    /// A copy of what changed goes to the writer, one at a time. The last one (`always`) also says how far it knows.
    fn save(&mut self, always: bool) {
        if self.saving || (!always && Instant::now() < self.save_not_before) {
            return;
        }
        // Read before the copy: what it counts has been raised, so it is in the copy.
        let quarantine_seen = self.quarantine_seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (at_ms, written) = {
            let mut book = self.alerts.book();
            if !always && !book.is_dirty() {
                return;
            }
            (wall_ms(), book.take_dirty())
        };
        self.saving = true;
        self.save_put_off = false;
        self.save_not_before = Instant::now() + SAVE_PAUSE;
        self.writer.submit(Box::new(Save {
            written,
            hooks: self.alerts.hooks().to_vec(),
            at_ms,
            quarantine_seen,
            reply: self.saved.0.clone(),
        }));
    }

    fn save_ended(&mut self, landed: bool, keys: &[Key]) {
        self.saving = false;
        if !landed {
            self.alerts.book().not_written(keys);
            self.save_not_before = Instant::now() + SAVE_PAUSE_AFTER_FAILURE;
        }
    }

    /// `None` = until something happens.
    fn until_next(&self) -> Option<Instant> {
        let now = Instant::now();
        let book = self.alerts.book();
        let hooks = self.desks.iter().enumerate().filter(|(_, desk)| desk.busy.is_none()).filter_map(
            |(number, desk)| {
                let due = book.next_at(number + 1, now)?;
                Some(desk.not_before.map_or(due, |at| at.max(due)))
            },
        );
        let save = (book.is_dirty() && !self.saving).then_some(self.save_not_before);
        hooks.chain(book.next_at(super::JOURNAL_NUMBER, now)).chain(save).min()
    }

    fn wait(&mut self, until: Option<Instant>) {
        let timer = until.map_or_else(crossbeam_channel::never, crossbeam_channel::at);
        let (bell, results, saved) =
            (self.alerts.shared.bell.1.clone(), self.results.clone(), self.saved.1.clone());
        crossbeam_channel::select! {
            recv(bell) -> _ => {
                // A raise comes right before the row it is about gets its time stamp: the copy waits a moment for it,
                // once, so that a storm cannot put it off for ever.
                if !self.save_put_off {
                    self.save_put_off = true;
                    self.save_not_before = self.save_not_before.max(Instant::now() + SAVE_PAUSE / 2);
                }
            }
            recv(results) -> result => if let Ok((number, result)) = result { self.answered(number, result) },
            recv(saved) -> result => if let Ok((landed, keys)) = result { self.save_ended(landed, &keys) },
            recv(self.stop) -> _ => {}
            recv(timer) -> _ => {}
        }
    }

    fn wait_for_hooks(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while self.desks.iter().any(|desk| desk.busy.is_some())
            && let Ok((number, result)) = self.results.recv_deadline(end)
        {
            self.answered(number, result);
        }
    }

    /// Waits a moment for hooks under way, then copies the rest to the table; nothing new is handed out.
    fn end(mut self) {
        self.alerts.tell_journal();
        self.wait_for_hooks(STOP_GRACE / 2);
        // Now a program under way is killed and waited for; a webhook under way is left to itself.
        self.stopping.store(true, Ordering::SeqCst);
        self.wait_for_hooks(STOP_GRACE / 8);
        let end = Instant::now() + STOP_GRACE;
        if self.saving
            && let Ok((landed, keys)) = self.saved.1.recv_deadline(end)
        {
            self.save_ended(landed, &keys);
        }
        self.save(true);
        if self.saving && !self.saved.1.recv_deadline(end).is_ok_and(|(landed, _)| landed) {
            log::warn!("the last alerts could not be written down before the stop; the journal has them");
        }
    }
}
