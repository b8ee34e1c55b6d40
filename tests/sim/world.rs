//! One world: its disk, clocks, producers, people and agent; the steps; and its end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use onceward::clock;
use onceward::config::Settings;
use onceward::db::{self, Durability, Part};
use onceward::deed::Deed;
use onceward::hand;
use onceward::message::{Class, Destination, MessageId, Outcome};
use onceward::poller::{Stored, take_in};
use onceward::relay::{Answer, Confirm, Event};
use onceward::report::intake::Taken;
use onceward::report::{self, Way};
use onceward::settle::{self, End, Settle, Settled, Speaker};
use onceward::store::outbox::verbs::{By, Verb};
use onceward::store::outbox::{self, NewMessage, Put};
use onceward::sweeper::Sweep;
use rusqlite::Connection;

use crate::agent::{Agent, GATEWAY, Place};
use crate::ledger::{self, Told};
use crate::plan::{Dice, Kind, Mistake, Op};
use crate::vendor::Truth;

/// Deepest nesting of steps: a thread's stack, and three calls at once are enough.
const DEPTH_MAX: u32 = 3;
/// Steps at the end of a world after which it must have come to rest.
const END_ROUNDS: u32 = 600;

pub struct World {
    ops: Vec<Op>,
    next: usize,
    depth: u32,
    /// The step under way, and how many steps it still takes in.
    pub current: Op,
    inside: u8,
    number: u64,
    wall_ms: i64,
    mono_us: u64,
    starts: u32,
    agent: Option<Agent>,
    producer: Option<Connection>,
    foreigner: Option<Connection>,
    end_of_process: simvfs::End,
    pub truth: Truth,
    told: Told,
    keys: Vec<String>,
    /// Ids that a report names, and the step at which it was acknowledged to the vendor.
    reported: BTreeMap<String, u64>,
    reports: Vec<(String, Receiver<Stored>)>,
    settles: Vec<Verdict>,
    calls: Vec<String>,
    /// When the hand-off under way was begun.
    begun: Vec<u64>,
    leapt: bool,
    waits: u32,
    pub mistake: Mistake,
    pub called_before: Option<(MessageId, Outcome)>,
    failure: Option<String>,
    story: bool,
    pub figures: Figures,
}

/// A verdict on an id that was handed in, with how many requests it excuses if it is taken.
type Verdict = (String, u32, Receiver<Result<Settled, String>>);

/// What was tried.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub worlds: u64,
    pub messages: u64,
    pub calls: u64,
    pub starts: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub reports: u64,
    pub settles: u64,
    pub nested: u64,
    /// Failed, torn, lying and full calls of the disk, and those a process died at.
    pub struck: u64,
    pub disk_calls: u64,
    pub failed_starts: u64,
    pub sent: u64,
    pub errors: u64,
}

impl Figures {
    fn all(&self) -> [(&'static str, u64); 14] {
        [
            ("worlds", self.worlds),
            ("messages", self.messages),
            ("calls", self.calls),
            ("SENT", self.sent),
            ("ERROR", self.errors),
            ("starts", self.starts),
            ("failed starts", self.failed_starts),
            ("kills", self.kills),
            ("power cuts", self.power_cuts),
            ("reports", self.reports),
            ("verdicts", self.settles),
            ("nested steps", self.nested),
            ("disk faults", self.struck),
            ("disk calls", self.disk_calls),
        ]
    }

    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.messages += other.messages;
        self.calls += other.calls;
        self.starts += other.starts;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.reports += other.reports;
        self.settles += other.settles;
        self.nested += other.nested;
        self.struck += other.struck;
        self.disk_calls += other.disk_calls;
        self.failed_starts += other.failed_starts;
        self.sent += other.sent;
        self.errors += other.errors;
    }

    /// A simulation that tries nothing proves nothing.
    pub fn must_have_tried_everything(&self) {
        for (what, count) in self.all() {
            assert!(count > 0, "no {what} in {} worlds", self.worlds);
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.all().iter().map(|(what, count)| format!("{count} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The world under way. Never held across a step of a room.
pub fn sim<T>(with: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| with(world.borrow_mut().as_mut().expect("a world is under way")))
}

/// The files' images, made once: each world begins with them.
struct Stage {
    place: Place,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        simvfs::install();
        simvfs::on_sleep(hold_on);
        // In the outbox this loses an acknowledged enqueue at a later power cut: see PROOF.md, not covered.
        simvfs::forgets_only_in("inbox.db");
        clock::simulated::on_wait(wait);
        std::panic::set_hook(Box::new(|info| {
            // The scripted adapter's panics are part of the play.
            if !info.to_string().contains("an adapter's bug") {
                eprintln!("{info}");
            }
        }));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("onceward.toml");
        let text = format!(
            "[agent]\nstate_dir = \"{}\"\n\n[[destination]]\nname = \"{GATEWAY}\"\ntype = \"http\"\n\
             url = \"http://127.0.0.1:9/send\"\nthreads = 3\ntimeout = \"30s\"\n\n\
             [[route]]\nkind = \"*\"\ndestination = \"{GATEWAY}\"\n\n[retention]\nbodies = \"1d\"\n",
            folder.path().display()
        );
        std::fs::write(&config, text).expect("settings are written");
        let settings = Settings::load_without_secrets(&config).expect("settings");
        let path = |name: &str| -> PathBuf {
            let path = folder.path().join(name);
            // `db::open` looks whether the file is there and not empty; its content is in memory.
            std::fs::write(&path, "see simvfs").expect("a file to be looked at");
            path
        };
        let place = Place { settings, outbox: path("outbox.db"), inbox: path("inbox.db") };
        simvfs::reset(&[], 1);
        simvfs::set_time(clock::built_ms());
        drop(db::create(&place.outbox, Part::Outbox).expect("an outbox"));
        drop(db::create(&place.inbox, Part::Inbox).expect("an inbox"));
        let image = |path: &PathBuf| simvfs::content(&path.to_string_lossy()).expect("was made");
        Stage { outbox: image(&place.outbox), inbox: image(&place.inbox), place, _folder: folder }
    })
}

/// In a story the agent's own log is told too.
struct Journal;

impl log::Log for Journal {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        println!("        [{}] {}", record.level(), record.args());
    }
    fn flush(&self) {}
}

/// Runs one world to its end.
pub fn run(ops: &[Op], seed: u64, mistake: Mistake, story: bool) -> Result<Figures, String> {
    let stage = stage();
    let (outbox, inbox) = (stage.place.outbox.to_string_lossy(), stage.place.inbox.to_string_lossy());
    simvfs::reset(&[(&outbox, &stage.outbox), (&inbox, &stage.inbox)], seed);
    let world = World {
        ops: ops.to_vec(),
        next: 0,
        depth: 0,
        current: Op { kind: Kind::Start, arg: 0, nest: 0 },
        inside: 0,
        number: 0,
        // Ten in the morning of a day well after the build, in Seoul.
        wall_ms: (clock::built_ms() / 86_400_000 + 10) * 86_400_000 + 3_600_000,
        mono_us: 0,
        starts: 0,
        agent: None,
        producer: None,
        foreigner: None,
        end_of_process: simvfs::End::Kill,
        truth: Truth::default(),
        told: Told::default(),
        keys: Vec::new(),
        reported: BTreeMap::new(),
        reports: Vec::new(),
        settles: Vec::new(),
        calls: Vec::new(),
        begun: Vec::new(),
        leapt: false,
        waits: 0,
        mistake,
        called_before: None,
        failure: None,
        story,
        figures: Figures::default(),
    };
    let _ = log::set_logger(&Journal);
    log::set_max_level(if story { log::LevelFilter::Info } else { log::LevelFilter::Off });
    world.show_the_clocks();
    WORLD.with(|place| *place.borrow_mut() = Some(world));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        start();
        while sim(|sim| sim.next < sim.ops.len() && sim.failure.is_none()) {
            take_next();
            bury_if_dead();
        }
        if sim(|sim| sim.failure.is_none()) {
            come_to_rest();
        }
    }));
    // Everything that holds a file goes, then the world.
    let (agent, producer, foreigner) =
        sim(|sim| (sim.agent.take(), sim.producer.take(), sim.foreigner.take()));
    drop((agent, producer, foreigner));
    let mut world = WORLD.with(|place| place.borrow_mut().take()).expect("a world is under way");
    if let Err(panic) = ended {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.failure.get_or_insert(format!("panicked: {}", text.unwrap_or_default()));
    }
    let (calls, struck) = simvfs::figures();
    world.figures.disk_calls = calls;
    world.figures.struck = struck;
    world.figures.worlds = 1;
    world.figures.messages = world.told.acknowledged.len() as u64;
    world.figures.starts = u64::from(world.starts);
    match world.failure {
        None => Ok(world.figures),
        Some(why) => Err(why),
    }
}

impl World {
    pub fn fail(&mut self, why: String) {
        self.tell(format!("FAILS: {why}"));
        self.failure.get_or_insert(why);
    }

    pub fn tell(&self, what: String) {
        if self.story {
            println!("{:indent$}{what}", "", indent = self.depth as usize * 2);
        }
    }

    fn show_the_clocks(&self) {
        clock::simulated::set(self.wall_ms, Duration::from_micros(self.mono_us));
        simvfs::set_time(self.wall_ms);
    }

    /// Time passes, on both clocks.
    pub fn pass(&mut self, ms: i64) {
        self.wall_ms += ms;
        self.mono_us += ms as u64 * 1_000;
        self.show_the_clocks();
    }

    pub fn in_call(&self, id: &str) -> bool {
        self.calls.iter().any(|call| call == id)
    }

    /// A report that was acknowledged before this hand-off began forbids the call.
    pub fn check_no_call_after_a_report(&mut self, id: &str) {
        self.calls.push(id.to_owned());
        let begun = self.begun.last().copied().unwrap_or(0);
        if let Some(at) = self.reported.get(id)
            && *at < begun
        {
            self.fail(format!("{id} is called although the vendor had reported on it"));
        }
    }

    /// What the vendor and people have been told since the last look.
    fn hear(&mut self) {
        let number = self.number;
        let (mut reports, mut settles) =
            (std::mem::take(&mut self.reports), std::mem::take(&mut self.settles));
        reports.retain(|(id, answer)| match answer.try_recv() {
            Err(TryRecvError::Empty) => true,
            Ok(Ok(effects)) => {
                if effects.iter().any(|effect| effect.taken != Taken::Contradiction) {
                    self.reported.entry(id.clone()).or_insert(number);
                }
                false
            }
            _ => false,
        });
        settles.retain(|(id, excused, answer)| match answer.try_recv() {
            Err(TryRecvError::Empty) => true,
            // It proved nothing: it was not taken.
            Ok(Ok(
                Settled::No(_) | Settled::Missing | Settled::Reported | Settled::UnderWay | Settled::Once,
            )) => {
                self.truth.of(id).open += excused;
                false
            }
            _ => false,
        });
        self.reports = reports;
        self.settles = settles;
    }
}

/// SQLite waits for a lock.
fn hold_on(us: i64) {
    if WORLD.with(|world| world.borrow().is_some()) {
        sim(|sim| sim.pass((us / 1_000).max(1)));
    }
}

/// A room waits: for another's answer (zero), or for better times.
fn wait(span: Duration) {
    let waits = sim(|sim| {
        sim.waits += 1;
        sim.pass(i64::try_from(span.as_millis()).unwrap_or(0));
        sim.waits
    });
    assert!(waits < 100_000, "a room waits for ever");
    if simvfs::is_dead() {
        // Nothing of this happens any more: let it come to its end.
        sim(|sim| {
            if let Some(agent) = &sim.agent {
                agent.stop.store(true, Ordering::SeqCst);
            }
        });
    } else if sim(|sim| sim.inside > 0) {
        sim(|sim| sim.inside -= 1);
        take_next();
    } else if !span.is_zero() && waits % 100 == 99 {
        simvfs::heal(); // somebody makes room
        sim(|sim| sim.foreigner = None);
    }
    step_writer();
    if sim(|sim| sim.current.kind == Kind::Retention) {
        step_relay();
    }
}

/// In the middle of a call the others go on.
pub fn others_go_on() {
    while !simvfs::is_dead() && sim(|sim| sim.inside > 0) {
        sim(|sim| sim.inside -= 1);
        take_next();
    }
}

/// The next step of the plan, inside of whatever is under way.
fn take_next() {
    let Some(op) = sim(|sim| {
        let op = sim.ops.get(sim.next).copied().filter(|_| sim.depth < DEPTH_MAX)?;
        sim.next += 1;
        sim.number += 1;
        sim.figures.nested += u64::from(sim.depth > 0);
        sim.tell(op.to_string());
        Some(op)
    }) else {
        return;
    };
    let before = sim(|sim| {
        sim.depth += 1;
        (
            std::mem::replace(&mut sim.current, op),
            std::mem::replace(&mut sim.inside, if op.said().is_some() { 0 } else { op.nest }),
        )
    });
    take(op);
    sim(|sim| {
        (sim.current, sim.inside) = before;
        sim.depth -= 1;
        sim.hear();
    });
}

/// The room, taken out for its step; `None` while it is at work further down, or the agent is down.
fn with_room<R, T>(
    place: impl Fn(&mut Agent) -> &mut Option<R>,
    step: impl FnOnce(&mut R) -> T,
) -> Option<T> {
    let mut room = sim(|sim| sim.agent.as_mut().and_then(|agent| place(agent).take()))?;
    let done = step(&mut room);
    sim(|sim| {
        if let Some(agent) = &mut sim.agent {
            *place(agent) = Some(room);
        }
    });
    Some(done)
}

fn step_writer() {
    with_room(|agent| &mut agent.writer_room, |room| room.step());
}

fn step_relay() {
    with_room(|agent| &mut agent.relay, |relay| relay.step());
}

fn step_worker(which: u64) {
    let Some(handoff) = sim(|sim| {
        let agent = sim.agent.as_mut()?;
        let free = agent.workers.iter().any(Option::is_some) && agent.writer_room.is_some();
        let handoff = free.then(|| agent.handoffs.try_recv().ok()).flatten()?;
        sim.begun.push(sim.number);
        if sim.mistake == Mistake::MarkBeforeConfirm {
            let message_id = handoff.message.message_id.clone();
            let confirm = Confirm { row: handoff.row, message_id, answer: Answer::Settled };
            let _ = handoff.confirm.send(Event::Confirm(confirm));
        }
        sim.tell(format!("hands over {}", handoff.message.message_id));
        Some(handoff)
    }) else {
        return;
    };
    let id = handoff.message.message_id.to_string();
    let mut which = which as usize;
    let free = sim(|sim| {
        let workers = &sim.agent.as_ref().expect("is up").workers;
        which %= workers.len();
        (0..workers.len()).map(|step| (which + step) % workers.len()).find(|n| workers[*n].is_some())
    });
    let free = free.expect("one is free");
    with_room(|agent| &mut agent.workers[free], |worker| worker.run_once(handoff));
    sim(|sim| {
        sim.begun.pop();
        sim.calls.retain(|call| *call != id);
    });
}

fn take(op: Op) {
    let mut dice = Dice(op.arg);
    match op.kind {
        Kind::Dies if op.said().is_some() => simvfs::kill(),
        Kind::Tick if op.said().is_some() => sim(|sim| sim.pass(op.said().unwrap_or(0) as i64)),
        Kind::Leap if op.said().is_some() => sim(|sim| {
            sim.leapt = true;
            sim.wall_ms -= op.said().unwrap_or(0) as i64;
            sim.show_the_clocks();
        }),
        Kind::Put => put(&mut dice, false),
        Kind::PutAgain => put(&mut dice, true),
        Kind::Relay => step_relay(),
        Kind::Worker => step_worker(op.arg),
        Kind::Writer => step_writer(),
        Kind::Checkpoint => {
            let which = (op.arg % 2) as usize;
            with_room(|agent| &mut agent.checkpoints[which], |room| room.look());
        }
        Kind::Sweep => sim(|sim| {
            if let Some(agent) = &sim.agent {
                let stale = stage().place.settings.alert.stale_sending;
                let (policy, alerts) = (agent.policy.clone(), agent.alerts.clone());
                let sweep = Sweep::new(agent.owner.clone(), stale, policy, alerts, agent.seen.clone());
                agent.writer.submit(Box::new(sweep));
            }
        }),
        Kind::Rearm => {
            with_room(|agent| &mut agent.rearmer, |room| room.round().err());
        }
        Kind::LookUp => {
            with_room(|agent| &mut agent.reconciler, |(room, seen)| room.look(seen));
        }
        Kind::Retention => {
            with_room(|agent| &mut agent.retention, |room| room.look(true).err());
        }
        Kind::Report => report(&mut dice),
        Kind::Settle => settle(&mut dice),
        Kind::Operator => operator(&mut dice),
        Kind::Tick => sim(|sim| {
            // In the middle of a call no more than a call may last.
            let most =
                if sim.depth > 1 { 3_000 } else { [50, 5_000, 300_000, 7_200_000][op.arg as usize % 4] };
            sim.pass(dice.below(most) as i64 + 1);
        }),
        Kind::Leap => sim(|sim| {
            let most = [60_000, 86_400_000, 3 * 365 * 86_400_000][op.arg as usize % 3];
            let by = dice.below(most) as i64;
            sim.leapt = true;
            sim.wall_ms = if dice.one_in(8) {
                30_000
            } else if dice.one_in(2) {
                sim.wall_ms + by
            } else {
                (sim.wall_ms - by).max(0)
            };
            sim.show_the_clocks();
        }),
        Kind::Foreigner => foreigner(&mut dice),
        Kind::ForeignerGoes => sim(|sim| sim.foreigner = None),
        Kind::Dies => die(simvfs::End::Kill, &mut dice),
        Kind::PowerCut if op.said().is_some() => {
            // As planned to the call; the dice are the platter's.
            sim(|sim| {
                sim.end_of_process = simvfs::End::Power;
                sim.number += (op.arg >> 32 & 0xFF) << 40;
            });
            simvfs::arm(op.arg & 0xFFFF_FFFF, simvfs::Fault::Die);
        }
        Kind::PowerCut => die(simvfs::End::Power, &mut dice),
        Kind::Fault => {
            use simvfs::Fault;
            let way = if op.said().is_some() { op.arg >> 32 & 7 } else { dice.below(5) };
            let calls = if op.said().is_some() { op.arg & 0xFFFF_FFFF } else { dice.below(40) };
            simvfs::arm(
                calls,
                [Fault::Fails, Fault::Torn, Fault::Lies, Fault::Full, Fault::Forgets][way as usize],
            );
        }
        Kind::Full => simvfs::set_full(true),
        Kind::Room => simvfs::set_full(false),
        Kind::Stop => stop(),
        Kind::Start => {
            if sim(|sim| sim.depth == 1 && sim.agent.is_none()) {
                start();
            }
        }
    }
}

/// At once, or at a call of the disk soon.
fn die(end: simvfs::End, dice: &mut Dice) {
    sim(|sim| sim.end_of_process = end);
    if dice.one_in(4) {
        simvfs::kill();
    } else {
        let most = [8, 40, 200][dice.below(3) as usize];
        simvfs::arm(dice.below(most), simvfs::Fault::Die);
    }
}

fn bury_if_dead() {
    if !simvfs::is_dead() {
        return;
    }
    let (agent, producer, foreigner, end, seed) = sim(|sim| {
        sim.tell(format!("the process is dead ({:?})", sim.end_of_process));
        match sim.end_of_process {
            simvfs::End::Kill => sim.figures.kills += 1,
            simvfs::End::Power => sim.figures.power_cuts += 1,
        }
        let seed = sim.number ^ sim.current.arg.rotate_left(17) ^ sim.wall_ms as u64;
        (sim.agent.take(), sim.producer.take(), sim.foreigner.take(), sim.end_of_process, seed)
    });
    drop((agent, producer, foreigner));
    simvfs::revive(end, seed);
    sim(|sim| {
        sim.reports.clear();
        sim.settles.clear();
        sim.calls.clear();
        sim.begun.clear();
        sim.end_of_process = simvfs::End::Kill;
    });
    // systemd starts it again at once; sometimes the machine stays down for a while.
    if !seed.is_multiple_of(4) {
        start();
    }
}

fn start() {
    let (number, mistake) = sim(|sim| {
        sim.starts += 1;
        (sim.starts, sim.mistake)
    });
    match Agent::start(&stage().place, number, mistake) {
        Ok(agent) => sim(|sim| {
            sim.tell(format!("start {number}"));
            sim.agent = Some(agent);
        }),
        Err(why) => sim(|sim| {
            sim.figures.failed_starts += 1;
            sim.tell(format!("start {number} fails: {why}"));
        }),
    }
    // (If it died on the way, whoever called buries it.)
}

/// A graceful stop: nothing new is begun, what is under way ends, the rest goes back.
fn stop() {
    if sim(|sim| sim.depth > 1 || sim.agent.is_none()) {
        return;
    }
    sim(|sim| {
        let agent = sim.agent.as_ref().expect("is up");
        agent.stop.store(true, Ordering::SeqCst);
        let _ = agent.relay_events.send(Event::Stop(clock::mono() + Duration::from_secs(40)));
    });
    for round in 0..40 {
        step_worker(round);
        step_writer();
        step_relay();
    }
    if !simvfs::is_dead() {
        let agent = sim(|sim| sim.agent.take());
        drop(agent);
    }
}

fn new_message(dice: &mut Dice, key: &str) -> NewMessage {
    let now_ms = clock::wall_ms();
    NewMessage {
        dedup_key: key.to_owned(),
        kind: "GRADE_RENEWAL".into(),
        class: if dice.one_in(12) { Class::Advertising } else { Class::Transactional },
        destination: if dice.one_in(2) { GATEWAY.into() } else { String::new() },
        recipient: "01000000001".into(),
        payload: if dice.one_in(25) { "{\"text\":\"unfit\"}" } else { "{\"text\":\"hello\"}" }.into(),
        ordering_key: dice.one_in(5).then(|| format!("lane-{}", dice.below(2))),
        priority: dice.below(10) as u8,
        not_before_ms: dice.one_in(6).then(|| now_ms + dice.below(600_000) as i64),
        expires_at_ms: dice.one_in(10).then(|| now_ms + 1_000 + dice.below(600_000) as i64),
        traceparent: None,
    }
}

/// The producer's connection: a process of its own that opens when it must.
fn with_producer<T>(with: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, String> {
    let held = sim(|sim| sim.producer.take());
    let mut connection = match held {
        Some(connection) => connection,
        None => {
            let normal = sim(|sim| sim.mistake) == Mistake::ProducerNormal;
            let durability = if normal { Durability::Normal } else { Durability::Full };
            db::open_writer(&stage().place.outbox, Part::Outbox, durability)
                .map_err(|error| error.to_string())?
        }
    };
    let done = with(&mut connection).map_err(|error| error.to_string())?;
    sim(|sim| sim.producer = Some(connection));
    Ok(done)
}

fn put(dice: &mut Dice, again: bool) {
    let (key, message) = sim(|sim| {
        let known = sim.keys.get(dice.below(sim.keys.len() as u64) as usize).cloned().filter(|_| again);
        let key = known.unwrap_or_else(|| {
            let key = format!("event-{}", sim.keys.len());
            sim.keys.push(key.clone());
            key
        });
        let mut message = new_message(dice, &key);
        if let Some(deadline) = sim.current.said() {
            message.class = Class::Transactional;
            message.payload = "{}".into();
            message.not_before_ms = None;
            message.expires_at_ms = (deadline == 1).then(|| sim.wall_ms + 60_000);
        }
        (key.clone(), message)
    });
    let done = with_producer(|connection| db::write(connection, |tx| outbox::put(tx, &message)));
    if dice.one_in(10) {
        let connection = sim(|sim| sim.producer.take());
        drop(connection); // it ends
    }
    if simvfs::is_dead() {
        return; // nobody heard it
    }
    sim(|sim| match done {
        Ok(Put::New(id) | Put::Same(id) | Put::Conflict(id)) => {
            sim.tell(format!("{key} is acknowledged as {id}"));
            let known = sim.told.acknowledged.entry(key.clone()).or_insert_with(|| id.to_string()).clone();
            if known != id.as_str() && !sim.leapt {
                sim.fail(format!("{key} was acknowledged as {known} and now as {id}"));
            }
        }
        Err(why) => sim.tell(format!("put fails: {why}")),
    });
}

/// An id that the vendor or a producer knows.
fn some_id(dice: &mut Dice) -> Option<String> {
    sim(|sim| {
        let called: Vec<&String> = sim.truth.ids.keys().collect();
        let told: Vec<&String> = sim.told.acknowledged.values().collect();
        let from = if !called.is_empty() && !dice.one_in(6) { called } else { told };
        (!from.is_empty()).then(|| from[dice.below(from.len() as u64) as usize].clone())
    })
}

fn report(dice: &mut Dice) {
    let Some(id) = some_id(dice) else { return };
    let delivered = sim(|sim| sim.truth.of(&id).delivered > 0);
    // Mostly the truth. A vendor that reports on what it never had is a lie too.
    let code = match (delivered, dice.below(8)) {
        (true, 0..=4) => "4100",
        (false, 0..=1) => "4100",
        (_, 5) => "4421", // not even the vendor knows
        (_, 6) => "9999", // nor do we
        _ => "4410",
    };
    let value = serde_json::json!({
        "MSGID": format!("item-{id}-{}", dice.below(2)), "MEDIA": "SMS", "RESULT": code, "REFKEY": id,
        "UNIXTIME": (clock::wall_ms() / 1_000 - dice.below(100) as i64).to_string(),
    });
    let report = report::normalise(&value).expect("a report");
    sim(|sim| {
        sim.figures.reports += 1;
        sim.truth.of(&id).lied = true; // what is settled by reports is not the worker's word any more
        sim.tell(format!("report on {id}: {code}"));
        if let Some(agent) = &sim.agent {
            let (work, answer) = take_in(&agent.account, vec![report], Way::Webhook, &agent.policy);
            agent.writer.submit(work);
            sim.reports.push((id, answer));
        }
    });
}

fn settle(dice: &mut Dice) {
    let Some(id) = some_id(dice) else { return };
    let end = [End::Sent, End::Failed, End::NotSent, End::NotSent][dice.below(4) as usize];
    sim(|sim| {
        let Some(agent) = &sim.agent else { return };
        // A person who says "not sent" has asked the vendor, and does not speak of a call that is under way.
        if end == End::NotSent && sim.calls.contains(&id) {
            return;
        }
        let day = agent.policy.day(clock::wall_ms());
        let settle = Settle {
            consumer: Destination::new(GATEWAY),
            message_id: MessageId::new(&id),
            end,
            by: Speaker::Operator("sim".into()),
            note: "asked by telephone".into(),
            code: None,
            vendor_ref: None,
        };
        let (work, answer) = Deed::work(move |tx| settle::apply(tx, &settle, &day, clock::wall_ms()), |_| ());
        agent.writer.submit(work);
        let mut excused = 0;
        if end == End::NotSent {
            let known = sim.truth.of(&id);
            excused = std::mem::take(&mut known.open);
            known.lied |= known.delivered > 0;
        }
        sim.figures.settles += 1;
        sim.tell(format!("settle {id} as {}", end.as_str()));
        sim.settles.push((id, excused, answer));
    });
}

fn operator(dice: &mut Dice) {
    let Some(id) = some_id(dice) else { return };
    let verb = sim(|sim| sim.current.said()).unwrap_or_else(|| dice.below(4));
    let now_ms = clock::wall_ms();
    let verb = [Verb::Hold, Verb::Release, Verb::Cancel, Verb::TryNow][verb as usize];
    let done = with_producer(|connection| {
        db::write(connection, |tx| {
            // Without the inbox nothing that may have gone out is held or cancelled.
            let inbox = db::open_reader(&stage().place.inbox, Part::Inbox).ok();
            Ok(hand::one(tx, inbox.as_ref(), verb, &id, By { who: "sim", note: "" }, now_ms)?.1)
        })
    });
    sim(|sim| sim.tell(format!("operator {verb:?} on {id}: {done:?}")));
}

/// Somebody's shell: an open BEGIN, or an old snapshot.
fn foreigner(dice: &mut Dice) {
    let path = if dice.one_in(2) { &stage().place.outbox } else { &stage().place.inbox };
    let statement =
        if dice.one_in(2) { "BEGIN IMMEDIATE" } else { "BEGIN; SELECT count(*) FROM onceward_meta" };
    let opened = Connection::open(path).and_then(|connection| {
        connection.execute_batch(statement)?;
        Ok(connection)
    });
    sim(|sim| sim.foreigner = opened.ok());
}

/// The disk is healed, the vendor honest, the clock right; the agent starts once more and must bring all to its end.
fn come_to_rest() {
    simvfs::heal();
    let held = sim(|sim| (sim.producer.take(), sim.foreigner.take()));
    drop(held);
    sim(|sim| {
        sim.tell("to its end".into());
        sim.truth.healthy = true;
        if sim.leapt {
            // Set right: as much later as has really passed.
            sim.wall_ms =
                (clock::built_ms() / 86_400_000 + 10) * 86_400_000 + 3_600_000 + (sim.mono_us / 1_000) as i64;
            sim.show_the_clocks();
        }
    });
    // Either it goes on as it is, or it is started anew.
    if sim(|sim| sim.agent.is_none()) {
        start();
        if sim(|sim| sim.agent.is_none()) {
            sim(|sim| sim.fail("the agent does not start on a healthy disk".into()));
            return;
        }
    }
    clock::vouch();
    let place = &stage().place;
    let opened = db::open_reader(&place.outbox, Part::Outbox)
        .and_then(|outbox| Ok((outbox, db::open_reader(&place.inbox, Part::Inbox)?)));
    let (outbox, inbox) = match opened {
        Ok(opened) => opened,
        Err(error) => return sim(|sim| sim.fail(format!("cannot be opened at the end: {error}"))),
    };
    let mut quiet = 0;
    for round in 0..END_ROUNDS {
        step_relay();
        for worker in 0..3 {
            step_worker(worker);
        }
        step_writer();
        if round % 10 == 0 {
            for kind in [Kind::Sweep, Kind::Rearm] {
                take(Op { kind, arg: u64::from(round), nest: 0 });
            }
            step_writer();
        }
        sim(|sim| {
            sim.hear();
            sim.pass(if round < 40 {
                2_000
            } else if round < 200 {
                60_000
            } else {
                600_000
            });
        });
        if sim(|sim| sim.failure.is_some()) {
            return;
        }
        if round % 5 == 4 && is_quiet(&outbox, &inbox) {
            quiet += 1;
            if quiet == 2 {
                break;
            }
        }
    }
    if quiet < 2 {
        sim(|sim| sim.fail(format!("it does not come to rest: {}", what_is_left())));
        return;
    }
    let (agent, told, truth, leapt) = sim(|sim| {
        (sim.agent.take(), std::mem::take(&mut sim.told), std::mem::take(&mut sim.truth), sim.leapt)
    });
    drop(agent);
    let holds = ledger::holds(&outbox, &inbox, &told, &truth, leapt);
    sim(|sim| {
        sim.figures.sent += truth.ids.values().filter(|known| known.delivered > 0).count() as u64;
        let errors = inbox
            .query_row("SELECT count(*) FROM inbox WHERE status = 'ERROR'", [], |row| row.get::<_, i64>(0));
        sim.figures.errors = errors.unwrap_or(0) as u64;
        sim.told = told;
        if let Err(why) = holds {
            sim.fail(why);
        }
    });
}

/// (What a producer under a wrong clock dated months ahead stays for its date.)
const LEFT: &str = "SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'
    OR (status = 'PENDING' AND blocked = 0 AND class = 'TRANSACTIONAL' AND not_before_ms <= ?1 + 86400000)";

/// Nothing waits but what may: advertising for its hours, rows of a lane behind one that a person holds.
fn is_quiet(outbox: &Connection, inbox: &Connection) -> bool {
    let left = outbox.query_row(LEFT, [clock::wall_ms()], |row| row.get::<_, i64>(0));
    let open = inbox.query_row(
        "SELECT (SELECT count(*) FROM inbox WHERE status = 'SENDING')
              + (SELECT count(*) FROM rearm WHERE done_at_ms IS NULL)",
        [],
        |row| row.get::<_, i64>(0),
    );
    left == Ok(0) && open == Ok(0)
}

fn what_is_left() -> String {
    let Ok(reader) = db::open_reader(&stage().place.outbox, Part::Outbox) else { return "unreadable".into() };
    let sql = "SELECT group_concat(message_id || ' ' || status || ' ' || blocked || ' ' || coalesce(reason, '-') || ' due in ' || (not_before_ms - ?1), '; ')
                 FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')";
    reader
        .query_row(sql, [clock::wall_ms()], |row| row.get::<_, Option<String>>(0))
        .ok()
        .flatten()
        .unwrap_or_else(|| "a SENDING row".into())
}
