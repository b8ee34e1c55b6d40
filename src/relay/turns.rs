//! New claims in fair turns: how many rows each destination's workers have room for, and the rules before a hand-off.
//!
//! Never: claims more than there are places for, or marks a row by other means than an answer in `relay/marks.rs`.

use std::time::Instant;

use rusqlite::Connection;

use super::round::Round;
use super::{Answer, Confirm, Handoff, Home, Lane, Relay};
use crate::clock::{self, Now, ms};
use crate::gate::Room;
use crate::lifecycle::InboxState;
use crate::limits::{BATCHES_PER_ROUND, HANDOFFS_PER_THREAD, KEY_ELSEWHERE_PAUSE};
use crate::order::{Looks, Turn};
use crate::policy::{Asking, Verdict, consent};
use crate::share::Held;
use crate::store::{outbox, suppress};

impl Relay {
    /// Whether every open destination that has work has hand-offs for all its workers and more.
    pub(super) fn workers_are_fed(&self) -> bool {
        let back = self.events.len();
        self.parts.lanes.iter().zip(&self.lane_in_flight).all(|(lane, in_flight)| {
            *in_flight == 0 || in_flight.saturating_sub(back) >= lane.threads * HANDOFFS_PER_THREAD / 2
        })
    }

    pub(super) fn lane_of(&self, destination: &str) -> Option<usize> {
        self.parts.lanes.iter().position(|lane| lane.destination.as_str() == destination)
    }

    /// How many more rows of this relay the lane's workers have room for, and in how many places for all relays;
    /// `back` of those in flight are just coming back.
    pub(super) fn room(&self, lane: usize, back: usize, now: Instant) -> (usize, usize) {
        let Lane { gate, threads, rate_per_s, .. } = &self.parts.lanes[lane];
        let in_flight = self.lane_in_flight[lane].saturating_sub(back);
        let window = (threads * HANDOFFS_PER_THREAD + self.parts.settings.batch as usize)
            .min(self.parts.settings.channel)
            // What waits in the channel is not overtaken by what is more urgent: no more than a second's worth.
            .min(rate_per_s.map_or(usize::MAX, |rate| rate.ceil() as usize + threads));
        match gate.room(now) {
            Room::Open => (window.saturating_sub(in_flight), window),
            Room::Probe => (1usize.saturating_sub(in_flight), 1),
            Room::Shut(_) | Room::Probing | Room::Paused => (0, 0),
        }
    }

    pub(super) fn claim_in_turns(
        &mut self,
        tx: &Connection,
        confirms: &[Confirm],
        clock: Now,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let now = clock::mono();
        let now_ms = clock.due_ms();
        let opt_outs = suppress::any(tx)?;
        let of_file = match &self.parts.home {
            Home::Own(_) => None,
            Home::Source(guard) => Some(guard.opt_outs()),
        };
        let lanes = self.parts.lanes.len();
        let mut back = vec![0usize; lanes];
        for confirm in confirms {
            if let Some(flight) = self.in_flight.get(&confirm.row)
                && !matches!(confirm.answer, Answer::InFlight)
            {
                back[flight.lane] += 1;
            }
        }
        let (keys, name) = (self.parts.keys.clone(), self.name.clone());
        let mut looks = Looks::new(&keys.files, &name);
        // Each round begins with another destination, so that none is always last.
        self.turn = self.turn.wrapping_add(1);
        let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
        for step in 0..lanes {
            let lane = (self.turn + step) % lanes;
            let (room, window) = self.room(lane, back[lane], now);
            let limit = room.min(self.parts.settings.batch as usize * BATCHES_PER_ROUND);
            let mut places = self.shares[lane].take(limit, window);
            let limit = places.len();
            if limit == 0 {
                continue;
            }
            let destination = self.parts.lanes[lane].destination.clone();
            for claimed in outbox::claim(tx, &destination, &self.parts.owner, lease_until_ms, now_ms, limit)?
            {
                round.worked = true;
                if !claimed.broken.is_empty() {
                    self.park_broken(tx, &claimed, now_ms, round)?;
                    continue;
                }
                if !self.may_go(tx, &claimed, clock, opt_outs, round)? {
                    continue;
                }
                let key = match looks.turn(&claimed.message, now_ms) {
                    Turn::Mine => self.parts.keys.hold(&self.name, &claimed.message).map_err(|()| {
                        (
                            KEY_ELSEWHERE_PAUSE,
                            "ORDER: its ordering_key is under way from another source".into(),
                        )
                    }),
                    Turn::After { why, pause } => Err((pause, format!("ORDER: {why}"))),
                };
                let key = match key {
                    Ok(key) => key,
                    Err((pause, reason)) => {
                        let not_before_ms = Some(now_ms.saturating_add(ms(pause)));
                        let how = outbox::Postpone { not_before_ms, give_back: true, reason };
                        outbox::postpone(tx, claimed.id, &self.parts.owner, &how, now_ms)?;
                        continue;
                    }
                };
                round.handoffs.push((
                    lane,
                    Handoff {
                        held: Held { place: places.pop(), key },
                        row: claimed.id,
                        attempts: claimed.attempts,
                        again: claimed.again,
                        message: claimed.message,
                        claimed: now,
                        until: now + self.parts.settings.lease * 3 / 4,
                        opt_outs: of_file.clone(),
                        confirm: self.to_self.clone(),
                    },
                ));
            }
        }
        Ok(())
    }

    /// The rules before the hand-off. False if the row was marked instead. Whatever closes a row is done only where the
    /// inbox does not know it: its mark may have been lost after a send.
    fn may_go(
        &self,
        tx: &Connection,
        claimed: &outbox::Claimed,
        clock: Now,
        opt_outs: bool,
        round: &mut Round,
    ) -> rusqlite::Result<bool> {
        let message = &claimed.message;
        let mut verdict = self.parts.policy.judge(message, Asking::Relay, clock);
        if verdict == Verdict::Go && opt_outs {
            let forms = consent::keys(message);
            if let Some(reason) = consent::judge(message, &suppress::find(tx, &forms)?) {
                verdict = Verdict::Skip(reason);
            }
        }
        let answer = match verdict {
            Verdict::Go => return Ok(true),
            Verdict::Wait { until_ms, last_ms, reason } => {
                log::info!(
                    "{} waits dest={} until_ms={until_ms} {reason}",
                    message.message_id,
                    message.destination
                );
                Answer::Wait { until_ms, last_ms, reason }
            }
            Verdict::Hold(reason) => Answer::Hold(reason),
            closing => match (self.inbox_knows(tx, &message.message_id)?, closing) {
                (Some(InboxState::Sending), _) => return Ok(true), // the worker waits for that call's end
                (Some(_), _) => Answer::Settled,
                (None, Verdict::Expire(reason)) => Answer::Expire(reason),
                (None, Verdict::Skip(reason)) => Answer::Skip(reason),
                (None, _) => return Ok(true),
            },
        };
        let confirm = Confirm { row: claimed.id, message_id: message.message_id.clone(), answer };
        self.mark(tx, &confirm, clock.ms, round)?;
        Ok(false)
    }
}
