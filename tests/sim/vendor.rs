//! The scripted vendor: slow, refusing, lying, panicking; and the truth of what it received.

use std::collections::BTreeMap;

use onceward::message::{Message, MessageId, NotSentKind, NotSentProof, Outcome, Reply};
use onceward::store::inbox::Sending;
use onceward::vendor::{LookedUp, Prepared, Unfit, Vendor};

use crate::plan::{Dice, Mistake};
use crate::world::{self, sim};

/// What the vendor knows of one id.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Requests that came.
    pub requests: u32,
    /// Requests whose outcome was not (yet) proven *not sent*. Never more than one.
    pub open: u32,
    /// Messages that went on to the phone.
    pub delivered: u32,
    /// It said something untrue about this id, or somebody else did.
    pub lied: bool,
}

/// The truth, which no crash touches.
#[derive(Debug, Default)]
pub struct Truth {
    pub ids: BTreeMap<String, Known>,
    /// Healthy and honest from now on: for the end of a world.
    pub healthy: bool,
}

impl Truth {
    pub fn of(&mut self, id: &str) -> &mut Known {
        self.ids.entry(id.to_owned()).or_default()
    }
}

pub struct Scripted;

fn reply(outcome: Outcome) -> Reply {
    Reply { outcome, http_status: None, timing: Default::default(), pause: None }
}

fn not_sent(kind: NotSentKind) -> Outcome {
    Outcome::NotSent { kind, code: None, reason: "refused".into(), proof: NotSentProof::for_tests() }
}

fn unknown() -> Outcome {
    Outcome::Unknown { code: None, reason: "time-out".into() }
}

impl Scripted {
    /// One call, from its first byte to its outcome. Other rooms go on in the middle of it.
    fn call(&self, message: &Message) -> Outcome {
        let id = message.message_id.as_str();
        if simvfs::is_dead() {
            return unknown(); // the process is gone: nothing of this happens
        }
        let mut dice = sim(|sim| Dice(sim.current.arg ^ 0x5EED));
        let healthy = sim(|sim| sim.truth.healthy);
        let said = sim(|sim| sim.current.said());
        let way = if healthy { 0 } else { said.unwrap_or_else(|| dice.below(20)) };
        let panics = said.is_none() && dice.one_in(8);
        let early = dice.one_in(2);
        let slow_ms = dice.below(20_000);
        sim(|sim| {
            sim.figures.calls += 1;
            if !matches!(way, 12 | 13) {
                sim.check_no_call_after_a_report(id);
            }
        });
        // 0-9 accepted, 10 rejected, 11 refused at the door, 12 unreachable, 13 denied, 14 throttled, 15 a lie: taken
        // and "refused", 16-17 unknown and taken, 18 unknown and not taken, 19 taken, answer too late.
        let (comes, delivers) = match way {
            0..=9 | 15..=17 | 19 => (true, true),
            10 | 11 | 14 | 18 => (true, false),
            _ => (false, false),
        };
        let arrive = || {
            sim(|sim| {
                if simvfs::is_dead() {
                    return;
                }
                let known = sim.truth.of(id);
                if comes {
                    known.requests += 1;
                    known.open += 1;
                    known.delivered += u32::from(delivers);
                    if known.open > 1 {
                        sim.fail(format!("{id} reached the vendor twice"));
                    }
                }
            });
        };
        if early {
            arrive();
        }
        if !healthy {
            world::others_go_on();
        }
        sim(|sim| sim.pass(i64::try_from(slow_ms).unwrap_or(0)));
        if !early {
            arrive();
        }
        if simvfs::is_dead() {
            return unknown();
        }
        let outcome = match way {
            0..=9 => Outcome::Accepted { code: "200".into(), vendor_ref: Some(format!("v-{id}")) },
            10 => Outcome::Rejected { code: "400".into(), reason: "no such number".into() },
            11 => not_sent(NotSentKind::Refused),
            12 => not_sent(NotSentKind::Unreachable),
            13 => not_sent(NotSentKind::Denied),
            14 => not_sent(NotSentKind::Throttled(None)),
            15 => not_sent(NotSentKind::Refused),
            _ if panics => panic!("an adapter's bug"),
            _ => unknown(),
        };
        sim(|sim| {
            let known = sim.truth.of(id);
            if matches!(outcome, Outcome::NotSent { .. }) && comes {
                known.open = known.open.saturating_sub(1);
                known.lied |= delivers;
            }
            sim.tell(format!("call of {id}: {outcome:?} came={comes} delivered={delivers}"));
        });
        outcome
    }
}

impl Vendor for Scripted {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        if message.payload.contains("unfit") {
            return Err(Unfit::new("too long"));
        }
        if sim(|sim| sim.mistake) == Mistake::CallBeforeClaim {
            let outcome = self.call(message);
            sim(|sim| sim.called_before = Some((message.message_id.clone(), outcome)));
        }
        Ok(Prepared { body: Vec::new(), headers: Vec::new(), begin_before: None })
    }

    fn send(&self, _sending: &Sending, message: &Message, _prepared: &Prepared) -> Reply {
        let before = sim(|sim| sim.called_before.take());
        let outcome = match before {
            Some((id, outcome)) if id == message.message_id => outcome,
            _ => self.call(message),
        };
        if sim(|sim| sim.mistake) == Mistake::ReleaseOnTimeout && matches!(outcome, Outcome::Unknown { .. }) {
            return reply(not_sent(NotSentKind::Unreachable));
        }
        reply(outcome)
    }

    fn look_up(&self, message_id: &MessageId) -> Option<LookedUp> {
        if simvfs::is_dead() {
            return Some(LookedUp::Unclear("gone".into()));
        }
        Some(sim(|sim| {
            let code = "200".to_owned();
            let known = *sim.truth.of(message_id.as_str());
            let mut dice = Dice(sim.current.arg ^ 0x100C);
            match known {
                _ if dice.one_in(4) => LookedUp::Unclear("ask later".into()),
                Known { delivered: 1.., .. } => LookedUp::Accepted { code, vendor_ref: None },
                Known { requests: 0, .. } => {
                    // Nothing came, and nothing of it is under way: a documented answer.
                    if sim.in_call(message_id.as_str()) {
                        LookedUp::Unclear("ask later".into())
                    } else {
                        sim.truth.of(message_id.as_str()).open = 0;
                        LookedUp::NeverReceived { code }
                    }
                }
                _ => LookedUp::Rejected { code },
            }
        }))
    }

    fn probe(&self) -> Result<String, String> {
        Ok("scripted".into())
    }
}
