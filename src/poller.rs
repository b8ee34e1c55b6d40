//! Room: fetches the reports of one account, stores them with their effect, and only then confirms them at the vendor.
//!
//! ```text
//! wait ─> fetch ─> store (inbox's one writer, synced) ─> confirm ─> again while lists are full
//! ```
//!
//! Dying between store and confirm brings the same reports again, which are repeats. Each call takes a turn of the
//! destination's budget. One asker for each account: two in one settings file are refused there, two on one machine by a
//! lock here (an abstract socket of that name, freed with the process); two machines cannot be seen, and would split the
//! reports between them. Also the one way in for webhooks ([`take_in`], [`tell`]). Serves F29. Never sends, never
//! touches the outbox.

use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::alert::{Alerts, Cause};
use crate::cli::output;
use crate::clock::wall_ms;
use crate::db::kill;
use crate::db::pool::Pool;
use crate::db::writer::{Work, Writer};
use crate::hold::Hold;
use crate::message::Destination;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::report::intake::{Effect, TakeIn, Taken};
use crate::report::{self, Report, Verdict, Way};
use crate::store::attempt;
use crate::store::inbox::Applied;
use crate::vendor::{Refused, ReportSource, Vendor};

/// Reports in one commit: claims of live messages wait for it.
const COMMIT_MAX: usize = 100;
/// Longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Failures in a row after which a person is told (and at each multiple): the vendor drops results after three days.
const FAILURES_ALERT: u32 = 10;

/// The effects of a [`TakeIn`], or why there are none.
pub type Stored = Result<Vec<Effect>, String>;

/// The destinations that send by one account: reports come to one of them and may be about messages of any.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whose webhook or poller it is.
    pub destination: Destination,
    /// The others.
    pub others: Vec<Destination>,
}

/// Work that takes reports in, and where its answer comes.
pub fn take_in(
    account: &Account,
    reports: Vec<Report>,
    way: Way,
    policy: &Policy,
) -> (Box<dyn Work>, Receiver<Stored>) {
    let (reply, answer) = crossbeam_channel::bounded(1);
    let day = policy.day(wall_ms());
    let effects = Vec::with_capacity(reports.len());
    let destinations = std::iter::once(&account.destination).chain(&account.others).cloned().collect();
    (Box::new(TakeIn { destinations, reports, way, day, reply, effects }), answer)
}

/// Log lines for what was settled, and one alert for each kind of trouble, whatever the number.
pub fn tell(
    alerts: &Alerts,
    inbox: &Pool,
    destination: &Destination,
    reports: &[Report],
    effects: &[Effect],
) {
    let (mut unmatched, mut conflicts, mut unlisted) = ((0, ""), (0, ""), (0, ""));
    for (report, effect) in reports.iter().zip(effects) {
        let note = |into: &mut (i64, &str)| into.0 += 1;
        if let Applied::Moved { from, to, .. } = effect.applied {
            log::warn!(
                "{} settled dest={destination} {from} -> {to} by a report: {} {} ({}){}",
                report.reference,
                report.verdict.as_str(),
                report.code,
                report.meaning,
                attempt::traced(inbox, &report.reference)
            );
        }
        if effect.taken == Taken::Contradiction || effect.overrules_an_answer() {
            note(&mut conflicts);
            conflicts.1 = &report.reference;
        }
        if effect.taken == Taken::New && effect.applied == Applied::NoRow {
            note(&mut unmatched);
            unmatched.1 = &report.reference;
        }
        if effect.taken == Taken::New && report.verdict == Verdict::Unlisted {
            note(&mut unlisted);
            unlisted.1 = &report.code;
        }
    }
    let raise = |cause, (count, last): (i64, &str), text: &str| {
        if count > 0 {
            let last = if last.is_empty() { "none given" } else { last };
            alerts.raise_many(
                cause,
                destination.as_str(),
                format!("{} {text} (last: {last})", output::count(count, "report", "reports")),
                count,
            );
        }
    };
    raise(
        Cause::ReportConflict,
        conflicts,
        "against an earlier report (the first stands) or the vendor's own refusal: see v_report",
    );
    raise(
        Cause::ReportUnmatched,
        unmatched,
        "of no message of this account's destinations: kept in v_report; does anything else send by this account? \
         (`onceward show` finds an id that belongs to another destination)",
    );
    raise(
        Cause::ReportUnclear,
        unlisted,
        "with a result code that is not in the table, which settles nothing: ask the vendor",
    );
}

/// What a poller is made of.
pub struct Poller {
    /// Whose reports.
    pub account: Account,
    /// The adapter; it has a report source.
    pub vendor: Arc<dyn Vendor>,
    /// How often.
    pub every: Duration,
    /// The destination's budget.
    pub rate: Arc<Rate>,
    /// The inbox's one writer.
    pub writer: Writer,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// For the local day.
    pub policy: Arc<Policy>,
    /// To tell people.
    pub alerts: Alerts,
    /// Set by a stop.
    pub stop: Arc<AtomicBool>,
    /// Disconnected by a stop: ends the wait.
    pub stopped: Receiver<()>,
    /// The whole agent held: a copy must not take the reports of the one that sends.
    pub hold: Hold,
}

impl Poller {
    /// Runs until stopped.
    pub fn run(self) {
        let Some(source) = self.vendor.report_source() else { return };
        let mut lock = None;
        let mut failures = 0;
        let mut pause = self.every;
        loop {
            match self.stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
            pause = self.every;
            if self.hold.is_on() {
                continue;
            }
            if lock.is_none() {
                lock = self.lock(source, failures == 0);
                if lock.is_none() {
                    failures = 1;
                    continue;
                }
                failures = 0;
            }
            match self.fetch_all(source) {
                Ok(()) if failures > 0 => {
                    log::warn!("dest={} reports can be fetched again", self.account.destination);
                    failures = 0;
                }
                Ok(()) => {}
                Err(Refused { reason, wait }) => {
                    failures += 1;
                    if failures == 1 {
                        log::warn!("dest={} reports cannot be fetched: {reason}", self.account.destination);
                    }
                    if failures % FAILURES_ALERT == 0 {
                        self.alerts.raise(
                            Cause::ReportsStopped,
                            self.account.destination.as_str(),
                            format!(
                                "reports could not be fetched {failures} times: {reason}; the vendor keeps them for \
                                 three days only"
                            ),
                        );
                    }
                    pause =
                        (self.every * 2u32.saturating_pow(failures.min(8))).min(PAUSE_MAX).max(self.every);
                    pause = pause.max(wait.unwrap_or_default().min(PAUSE_MAX));
                }
            }
        }
    }

    /// Held until the end of the process.
    fn lock(&self, source: &dyn ReportSource, say: bool) -> Option<UnixDatagram> {
        let digest = ring::digest::digest(&ring::digest::SHA256, source.account().as_bytes());
        let name: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let bound = SocketAddr::from_abstract_name(format!("onceward-poller-{name}"))
            .and_then(|address| UnixDatagram::bind_addr(&address));
        match bound {
            Ok(socket) => Some(socket),
            Err(error) => {
                if say {
                    self.alerts.raise(
                        Cause::ReportsStopped,
                        self.account.destination.as_str(),
                        format!(
                            "reports are not fetched: another process on this machine fetches this account's ({error}); \
                             set reports = \"off\" here, or stop it"
                        ),
                    );
                }
                None
            }
        }
    }

    /// Store, then confirm, while lists are full.
    fn fetch_all(&self, source: &dyn ReportSource) -> Result<(), Refused> {
        loop {
            if !self.rate.take(&self.stop) {
                return Ok(());
            }
            let values = source.fetch()?;
            if values.is_empty() {
                return Ok(());
            }
            let full = values.len() >= source.batch_max();
            let (reports, unreadable): (Vec<_>, Vec<_>) =
                values.iter().map(report::normalise).partition(Result::is_ok);
            if let Some(Err(why)) = unreadable.first() {
                self.alerts.raise_many(
                    Cause::ReportUnclear,
                    self.account.destination.as_str(),
                    format!(
                        "{} fetched reports cannot be read and stay at the vendor: {why}",
                        unreadable.len()
                    ),
                    unreadable.len() as i64,
                );
            }
            let reports: Vec<Report> = reports.into_iter().flatten().collect();
            for part in reports.chunks(COMMIT_MAX) {
                let (work, reply) = take_in(&self.account, part.to_vec(), Way::Poll, &self.policy);
                self.writer.submit(work);
                let stored = reply.recv().unwrap_or_else(|_| Err("the writer has stopped".into()));
                let effects = stored
                    .map_err(|why| Refused { reason: format!("they cannot be stored: {why}"), wait: None })?;
                tell(&self.alerts, &self.inbox, &self.account.destination, part, &effects);
            }
            let _ = kill::point("poller-before-confirm");
            let items: BTreeSet<&str> = reports.iter().map(|report| report.vendor_item.as_str()).collect();
            let items: Vec<String> = items.into_iter().map(str::to_owned).collect();
            if items.is_empty() || !self.rate.take(&self.stop) {
                return Ok(());
            }
            source.confirm(&items)?;
            log::info!("dest={} {} reports fetched", self.account.destination, reports.len());
            if !full || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
}
