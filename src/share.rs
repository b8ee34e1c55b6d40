//! Fair room for the relays of all sources before the workers of one destination, and order lanes across
//! sources.
//!
//! [`Places`] counts what is in a destination's channel or in its workers' hands, whichever relay put it
//! there. A relay that is alone may take every place; as soon as another one has work that does not fit, each
//! may hold its equal part, and whoever waits is rung when a place is given back. A [`Place`] travels with
//! its hand-off and is given back when the worker is done with it, so a source whose file is locked holds up
//! no other.
//!
//! [`Keys`] keeps two sources from having the same `ordering_key` under way at once. Which of them goes first is
//! `order.rs`'s to say; within a file the schema keeps the order.
//!
//! Never: blocks, touches a file, decides what is due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;

use crate::message::Message;
use crate::order::Files;
use crate::relay::Event;

/// What travels with a hand-off and is given back when the worker is done with it.
#[derive(Debug, Default)]
pub struct Held {
    /// Its place at the destination.
    pub place: Option<Place>,
    /// Its order lane.
    pub key: Option<HeldKey>,
}

/// The places of one destination.
#[derive(Debug)]
pub struct Places {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    taken: usize,
    /// Who takes part, by number; a number is used again after its member has left and all its places are
    /// back.
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    live: bool,
    taken: usize,
    /// It has due work and no place.
    wants: bool,
    rung: bool,
    bell: Sender<Event>,
}

/// One relay's part in the places of a destination; leaves when dropped.
#[derive(Debug)]
pub struct Share {
    places: Arc<Places>,
    number: usize,
}

/// One place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: usize,
}

impl Places {
    /// None taken.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { table: Mutex::default() })
    }

    /// Takes part. `bell` is rung when there is room again after [`Share::want`].
    pub fn join(self: &Arc<Self>, bell: Sender<Event>) -> Share {
        let mut table = self.table();
        let member = Member { live: true, taken: 0, wants: false, rung: false, bell };
        let free = table.members.iter().position(|member| !member.live && member.taken == 0);
        let number = match free {
            Some(number) => {
                table.members[number] = member;
                number
            }
            None => {
                table.members.push(member);
                table.members.len() - 1
            }
        };
        drop(table);
        Share { places: self.clone(), number }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// How many of `window` places the member may still take.
    fn room(&self, number: usize, window: usize) -> usize {
        let others = self
            .members
            .iter()
            .enumerate()
            .filter(|(other, member)| *other != number && member.live && (member.taken > 0 || member.wants))
            .count();
        let part = (window / (others + 1)).max(1);
        part.saturating_sub(self.members[number].taken).min(window.saturating_sub(self.taken))
    }
}

impl Share {
    /// Takes as many places as there are for this relay within `window`, at most `wanted`.
    pub fn take(&self, wanted: usize, window: usize) -> Vec<Place> {
        let mut table = self.places.table();
        let count = table.room(self.number, window).min(wanted);
        table.taken += count;
        let member = &mut table.members[self.number];
        member.taken += count;
        if count > 0 {
            member.wants = false;
        }
        drop(table);
        (0..count).map(|_| Place { places: self.places.clone(), number: self.number }).collect()
    }

    /// Whether this relay could take a place within `window` now.
    pub fn has_room(&self, window: usize) -> bool {
        self.places.table().room(self.number, window) > 0
    }

    /// Says that this relay has due work and found no place (or, with `false`, that it has none after all).
    pub fn want(&self, wants: bool) {
        let mut table = self.places.table();
        let member = &mut table.members[self.number];
        member.wants = wants;
        member.rung = false;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut table = self.places.table();
        let member = &mut table.members[self.number];
        member.live = false;
        member.wants = false;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.table();
        table.taken -= 1;
        table.members[self.number].taken -= 1;
        let number = self.number;
        for (other, member) in table.members.iter_mut().enumerate() {
            if other != number && member.wants && !member.rung {
                member.rung = true;
                let _ = member.bell.send(Event::Wake); // a relay that is gone wants nothing
            }
        }
    }
}

/// The `ordering_key`s under way.
#[derive(Debug, Default)]
pub struct Keys {
    /// The files whose rows share lanes.
    pub files: Files,
    held: Mutex<HashMap<String, Holder>>,
}

#[derive(Debug)]
struct Holder {
    source: Arc<str>,
    count: usize,
}

/// A key under way; free again when dropped.
#[derive(Debug)]
pub struct HeldKey {
    keys: Arc<Keys>,
    key: String,
}

impl Keys {
    /// Nothing under way.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes the message's key for a source: `Err` while another source has it, `Ok(None)` where it has no
    /// key.
    #[expect(clippy::result_unit_err, reason = "there is one way to fail")]
    pub fn hold(self: &Arc<Self>, source: &Arc<str>, message: &Message) -> Result<Option<HeldKey>, ()> {
        let Some(key) = &message.ordering_key else { return Ok(None) };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = held.entry(key.clone()).or_insert_with(|| Holder { source: source.clone(), count: 0 });
        if holder.source != *source {
            return Err(());
        }
        // The same source may have it twice: a row that is handed over again after its lease.
        holder.count += 1;
        drop(held);
        Ok(Some(HeldKey { keys: self.clone(), key: key.clone() }))
    }
}

impl Drop for HeldKey {
    fn drop(&mut self) {
        let mut held = self.keys.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = held.get_mut(&self.key) {
            holder.count -= 1;
            if holder.count == 0 {
                let _ = held.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Class, Destination, MessageId};

    fn share(places: &Arc<Places>) -> (Share, crossbeam_channel::Receiver<Event>) {
        let (bell, rung) = crossbeam_channel::unbounded();
        (places.join(bell), rung)
    }

    #[test]
    fn one_alone_takes_all_and_two_take_halves() {
        let places = Places::new();
        let ((one, _), (two, rung)) = (share(&places), share(&places));
        let mut of_one = one.take(100, 10);
        assert_eq!(of_one.len(), 10, "alone: the whole window");
        assert!(two.take(100, 10).is_empty() && !two.has_room(10));
        two.want(true);
        drop(of_one.pop());
        assert!(matches!(rung.try_recv(), Ok(Event::Wake)), "rung when a place is free");
        assert!(one.take(100, 10).is_empty(), "over its half: the place is the other's");
        let of_two = two.take(100, 10);
        assert_eq!(of_two.len(), 1);
        of_one.truncate(3);
        drop(of_two);
        assert!(one.has_room(10));
        two.want(true);
        assert_eq!((two.take(100, 10).len(), one.take(100, 10).len()), (5, 2), "half each");
    }

    #[test]
    fn even_a_window_of_one_goes_round_and_who_left_counts_no_more() {
        let places = Places::new();
        let ((one, _), (two, _)) = (share(&places), share(&places));
        let held = one.take(1, 1);
        two.want(true);
        assert!(!two.has_room(1));
        drop(held);
        let held = two.take(1, 1);
        assert_eq!((held.len(), one.has_room(1)), (1, false));
        drop(two);
        assert!(!one.has_room(1), "its hand-off is still under way");
        drop(held);
        assert_eq!(one.take(9, 4).len(), 4);
        let (three, _) = share(&places);
        assert_eq!(three.number, 1, "the number of the one that left");
    }

    #[test]
    fn a_key_belongs_to_one_source_at_a_time() {
        let message = |key: Option<&str>, destination: &str| Message {
            message_id: MessageId::new("m"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class: Class::Transactional,
            destination: Destination::new(destination),
            recipient: String::new(),
            payload: String::new(),
            ordering_key: key.map(str::to_owned),
            priority: 5,
            not_before_ms: 0,
            expires_at_ms: None,
            created_at_ms: 0,
            traceparent: None,
        };
        let keys = Keys::new();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert!(matches!(keys.hold(&a, &message(None, "d")), Ok(None)));
        let first = keys.hold(&a, &message(Some("x"), "d")).expect("free");
        let again = keys.hold(&a, &message(Some("x"), "d")).expect("its own");
        assert!(keys.hold(&b, &message(Some("x"), "d")).is_err());
        assert!(keys.hold(&b, &message(Some("x"), "other")).is_err(), "a lane is its key, wherever it leads");
        assert!(keys.hold(&b, &message(Some("y"), "d")).is_ok());
        drop(first);
        assert!(keys.hold(&b, &message(Some("x"), "d")).is_err());
        drop(again);
        assert!(keys.hold(&b, &message(Some("x"), "d")).is_ok());
    }
}
