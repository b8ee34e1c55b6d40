//! Room: a pass of retention each hour, or when a person asks; repeats of wiped rows are compared within seconds.
//!
//! It writes nothing itself: steps go to the relay (outbox) and to the inbox writer, one at a time, with pauses, so that
//! live traffic always goes first. A pass that fails is tried again later and never touches the send path.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use super::pass::{self, Files, Hands, Pass, Unfinished};
use super::{Done, InboxStep, OutboxStep, apply_inbox};
use crate::config::RetentionSettings;
use crate::db::writer::{Work, Writer};
use crate::db::{self, Part};
use crate::limits::{
    PURGE_EVERY, PURGE_FIRST, PURGE_LOOK, PURGE_PAUSE, PURGE_PAUSE_TIMES, PURGE_RETRY, PURGE_ROWS,
    PURGE_SPAN_ASKED, PURGE_SPAN_TIMED,
};
use crate::policy::Policy;
use crate::relay::Event;
use crate::source::Served;
use crate::store::purge;

/// Longest wait for a step: a writer in trouble answers no later than this, or the pass is given up.
const STEP_WAIT: Duration = Duration::from_secs(60);

/// A step on its way to the relay.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub step: OutboxStep,
    /// Where the answer goes; `Err` = not now.
    pub reply: Sender<Result<Done, String>>,
}

/// What the room is made of.
pub struct RoomParts {
    /// The agent's own outbox file and its relay.
    pub own: (PathBuf, Sender<Event>),
    /// Applications' files and their relays.
    pub served: Served,
    /// The inbox file.
    pub inbox: PathBuf,
    /// `[retention]`
    pub settings: RetentionSettings,
    /// For the local day.
    pub policy: Arc<Policy>,
    /// The inbox's one writer.
    pub writer: Writer,
}

/// The running room.
pub struct Room {
    stop: Sender<()>,
    handle: JoinHandle<()>,
}

impl Room {
    /// Starts the thread.
    pub fn start(parts: RoomParts) -> std::io::Result<Self> {
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let handle = crate::thread::spawn("retention", move || Duty::new(parts, stopped).run())?;
        Ok(Self { stop, handle })
    }

    /// Tells it to end; it does within one step.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.stop);
        self.handle
    }
}

/// The room itself: run in a thread, or look by look.
pub struct Duty {
    parts: RoomParts,
    stopped: Receiver<()>,
    /// Opened when first needed and after trouble.
    readers: HashMap<PathBuf, Connection>,
}

impl Duty {
    /// Ends when `stopped` has lost its senders.
    pub fn new(parts: RoomParts, stopped: Receiver<()>) -> Self {
        Self { parts, stopped, readers: HashMap::new() }
    }

    fn run(mut self) {
        let mut next = Instant::now() + PURGE_FIRST;
        let mut not_before = Instant::now();
        // The first look is at once: somebody may have asked while the agent was down.
        loop {
            if Instant::now() >= not_before {
                match self.look(Instant::now() >= next) {
                    Ok(false) => {}
                    Ok(true) => next = Instant::now() + PURGE_EVERY,
                    Err(Unfinished::Stopping) => return,
                    Err(error) => {
                        log::warn!(
                            "retention did not come to its end and is tried again in {} s: {error}",
                            PURGE_RETRY.as_secs()
                        );
                        self.readers.clear();
                        not_before = Instant::now() + PURGE_RETRY;
                    }
                }
            }
            if self.stopped.recv_timeout(PURGE_LOOK) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// A pass if one is due or asked for. True after a whole pass.
    pub fn look(&mut self, due: bool) -> Result<bool, Unfinished> {
        let mut relays = vec![self.parts.own.clone()];
        relays.extend(self.parts.served.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        self.readers.retain(|path, _| relays.iter().any(|(served, _)| served == path));
        for (number, (path, _)) in relays.iter().enumerate() {
            if !self.readers.contains_key(path) {
                let opened = if number == 0 {
                    db::open_reader(path, Part::Outbox)
                } else {
                    crate::source::open_reader(path)
                };
                match opened {
                    Ok(opened) => drop(self.readers.insert(path.clone(), opened)),
                    Err(error) if due => log::warn!("retention leaves it alone: {error}"),
                    Err(_) => {}
                }
            }
        }
        let mut hands = AgentHands { relays: &relays, parts: &self.parts, stopped: &self.stopped };
        let outboxes: Vec<Option<&Connection>> =
            relays.iter().map(|(path, _)| self.readers.get(path)).collect();
        for (source, reader) in outboxes.iter().enumerate() {
            while let Some(reader) = reader
                && purge::recheck_waits(reader)?
            {
                hands.outbox(source, OutboxStep::Recheck)?;
            }
        }
        let asked_ms = outboxes.first().copied().flatten().map(pass::asked).transpose()?.flatten();
        if !due && asked_ms.is_none() {
            return Ok(false);
        }
        let inbox = open(&self.parts.inbox, Part::Inbox)?;
        let mut also = Vec::new();
        // A file that is listed and not served now may have messages that the inbox must still know.
        let is_served = |file: &str| relays.iter().any(|(path, _)| path == std::path::Path::new(file));
        if crate::store::source::list(&inbox)?.iter().any(|source| !is_served(&source.file)) {
            also.push(None);
        }
        let begun = Instant::now();
        let counts = Pass {
            files: Files { outboxes: &outboxes, also: &also, inbox: Some(&inbox) },
            settings: &self.parts.settings,
            policy: &self.parts.policy,
            span: if asked_ms.is_some() { PURGE_SPAN_ASKED } else { PURGE_SPAN_TIMED },
        }
        .run(&mut hands, &mut |_| {})?;
        pass::finish(&mut hands, &counts, asked_ms)?;
        log::info!("retention: {counts} in {} ms", begun.elapsed().as_millis());
        Ok(true)
    }
}

fn open(path: &std::path::Path, part: Part) -> Result<Connection, Unfinished> {
    db::open_reader(path, part).map_err(|error| Unfinished::Write(error.to_string()))
}

struct AgentHands<'a> {
    relays: &'a [(PathBuf, Sender<Event>)],
    parts: &'a RoomParts,
    stopped: &'a Receiver<()>,
}

impl AgentHands<'_> {
    fn answer(&self, reply: &Receiver<Result<Done, String>>) -> Result<Done, Unfinished> {
        #[cfg(debug_assertions)]
        if let Some(answer) = crate::clock::simulated::answer(reply) {
            return answer.ok_or(Unfinished::Stopping)?.map_err(Unfinished::Write);
        }
        match reply.recv_timeout(STEP_WAIT) {
            Ok(answer) => answer.map_err(Unfinished::Write),
            Err(RecvTimeoutError::Disconnected) => Err(Unfinished::Stopping),
            Err(RecvTimeoutError::Timeout) => {
                Err(Unfinished::Write(format!("no answer within {} s", STEP_WAIT.as_secs())))
            }
        }
    }
}

impl Hands for AgentHands<'_> {
    fn rows(&self) -> usize {
        PURGE_ROWS
    }
    fn outbox(&mut self, source: usize, step: OutboxStep) -> Result<Done, Unfinished> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let (_, relay) = &self.relays[source];
        relay.send(Event::Purge(Request { step, reply })).map_err(|_| Unfinished::Stopping)?;
        self.answer(&answer)
    }
    fn inbox(&mut self, step: InboxStep) -> Result<Done, Unfinished> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.parts.writer.submit(Box::new(InboxWork { step, done: Done::default(), reply }));
        self.answer(&answer)
    }
    fn pause(&mut self, took: Duration) -> Result<(), Unfinished> {
        #[cfg(debug_assertions)]
        if crate::clock::simulated::wait(PURGE_PAUSE) {
            return Ok(());
        }
        match self.stopped.recv_timeout(PURGE_PAUSE.max(took * PURGE_PAUSE_TIMES)) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Unfinished::Stopping),
        }
    }
}

/// Work of the inbox's writer: shares a commit with claims and outcomes.
struct InboxWork {
    step: InboxStep,
    done: Done,
    reply: Sender<Result<Done, String>>,
}

impl Work for InboxWork {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.done = apply_inbox(connection, &self.step)?;
        Ok(())
    }
    fn committed(self: Box<Self>) {
        let _ = self.reply.send(Ok(self.done));
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(Err(why.to_owned()));
    }
    fn must_land(&self) -> bool {
        false
    }
}
