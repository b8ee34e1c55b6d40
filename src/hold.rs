//! The whole agent held: nothing is claimed, called, fetched or asked, for as long as a reason stands.
//!
//! Three reasons, each with its own end: a copy or an older file (until a person's `adopt`), a file that is not the one
//! that is open (until a restart), a full disk (until there is room). Relay, workers and the inbox writer look; what sets
//! it also raises the alert. Knows no file and no table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::alert::{Alerts, Cause};
use crate::owner::Sign;

/// Why it is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A copy, or older files (F26, F30). Ends with `onceward adopt`.
    Copy,
    /// A file was moved, replaced or deleted while it is open (F32). Ends with a restart.
    Files,
    /// The disk is full (F18). Ends by itself.
    Disk,
}

impl Why {
    const ALL: [Self; 3] = [Self::Copy, Self::Files, Self::Disk];

    /// What ends it, for people.
    fn ending(self) -> &'static str {
        match self {
            Self::Copy => "until `onceward adopt`",
            Self::Files => "put the files right, then restart the agent",
            Self::Disk => "until there is room",
        }
    }
}

/// The hold. Cheap to clone.
#[derive(Clone)]
pub struct Hold {
    shared: Arc<Shared>,
}

struct Shared {
    on: AtomicBool,
    reasons: Mutex<[Option<String>; 3]>,
    alerts: Alerts,
    sign: Option<Sign>,
}

impl Hold {
    /// Not held; an alert of an earlier run ends. What is said of it is written on the sign, too.
    pub fn new(alerts: Alerts, sign: Option<Sign>) -> Self {
        alerts.clear(Cause::Held, "");
        let (on, reasons) = (AtomicBool::new(false), Mutex::default());
        Self { shared: Arc::new(Shared { on, reasons, alerts, sign }) }
    }

    fn write_sign(&self) {
        if let Some(sign) = &self.shared.sign {
            sign.say(self.reason().as_deref());
        }
    }

    fn lock(&self) -> MutexGuard<'_, [Option<String>; 3]> {
        // Plain assignments only.
        self.shared.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing may be sent. Costs nothing.
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::SeqCst)
    }

    /// Whether it is held for this reason.
    pub fn is(&self, why: Why) -> bool {
        self.lock()[why as usize].is_some()
    }

    /// All reasons and what ends them, for people; `None` = not held.
    pub fn reason(&self) -> Option<String> {
        let reasons = self.lock();
        let parts: Vec<String> = Why::ALL
            .iter()
            .filter_map(|why| {
                reasons[*why as usize].as_ref().map(|text| format!("{text} ({})", why.ending()))
            })
            .collect();
        if parts.is_empty() { None } else { Some(parts.join("; ")) }
    }

    /// Held from now on. Says so once.
    pub fn set(&self, why: Why, text: &str) {
        {
            let mut reasons = self.lock();
            self.shared.on.store(true, Ordering::SeqCst);
            if reasons[why as usize].replace(text.to_owned()).is_some() {
                return;
            }
        }
        self.write_sign();
        log::error!("HELD: nothing is sent: {text} ({})", why.ending());
        self.shared.alerts.raise(Cause::Held, "", format!("nothing is sent: {text} ({})", why.ending()));
    }

    /// This reason is over.
    pub fn clear(&self, why: Why) {
        let all_over = {
            let mut reasons = self.lock();
            if reasons[why as usize].take().is_none() {
                return;
            }
            let over = reasons.iter().all(Option::is_none);
            self.shared.on.store(!over, Ordering::SeqCst);
            over
        };
        self.write_sign();
        if all_over {
            log::warn!("no longer held: sending goes on");
            self.shared.alerts.clear(Cause::Held, "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_reason_has_its_own_end_and_one_alert_covers_all() {
        let alerts = Alerts::new(Vec::new(), Duration::from_secs(60), &[]);
        let hold = Hold::new(alerts.clone(), None);
        assert_eq!((hold.is_on(), hold.reason()), (false, None));
        hold.set(Why::Disk, "full");
        hold.set(Why::Copy, "a copy");
        hold.clear(Why::Disk);
        assert!(hold.is_on() && hold.is(Why::Copy) && !hold.is(Why::Disk));
        assert_eq!(hold.reason().as_deref(), Some("a copy (until `onceward adopt`)"));
        assert_eq!(alerts.open(Cause::Held).len(), 1);
        hold.clear(Why::Files);
        hold.clear(Why::Copy);
        assert!(!hold.is_on());
        assert!(alerts.open(Cause::Held).is_empty());
    }
}
