//! Pure: whether the two databases are the ones that this agent wrote last, on this machine, and no copy of them.
//!
//! Both files carry the same pair id (made by `init`) and the incarnation of the start that wrote them last; each also
//! carries where it lies (inode and time of birth). A *witness* outside the databases repeats the incarnation and counts
//! the commits that held a claim and the outbox rows that were seen. A file that is older than the witness, or that lies
//! where it was not, is a copy: it may not know what was sent since.
//!
//! A new incarnation is written to the inbox, then to the outbox, then to the witnesses; each file also names the one
//! before. So after a death in between every file still fits every witness (`Marks::fits`).
//!
//! What cannot be seen from here: a copy of the whole disk put back (a VM's snapshot, an image): then databases, witness
//! and places are all old together. Only the vendor's own lists know better.

use std::fmt;

/// What a database file says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// The same in both files of one `init`; empty = none.
    pub pair: String,
    /// The start that wrote it last.
    pub incarnation: String,
    /// The one before.
    pub before: String,
    /// Where the file lay then: `INODE@BIRTH`.
    pub place: String,
}

impl Marks {
    fn fits(&self, witness: &Witness) -> bool {
        self.incarnation == witness.incarnation || self.before == witness.incarnation
    }
}

/// What the witness says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Witness {
    /// Of the databases it was written for.
    pub pair: String,
    /// The start that wrote it last.
    pub incarnation: String,
    /// Commits with a claim that were seen in the inbox.
    pub claims: i64,
    /// Highest row number that was seen in the outbox.
    pub rows: i64,
}

/// What was found of one witness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// `init` could not make one there.
    NotExpected,
    /// It should be there.
    Missing,
    /// It is there and cannot be read.
    Unreadable,
    /// It was read.
    There(Witness),
}

/// All that was found at a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Of `inbox.db`.
    pub inbox: Marks,
    /// Of `outbox.db`.
    pub outbox: Marks,
    /// Commits with a claim, by the inbox's own count.
    pub claims: i64,
    /// Highest row number the outbox has given.
    pub rows: i64,
    /// Where `inbox.db` lies now.
    pub inbox_place: String,
    /// Where `outbox.db` lies now.
    pub outbox_place: String,
    /// The machine that is recorded.
    pub machine: String,
    /// This machine.
    pub machine_now: String,
    /// The witness in the state folder.
    pub inside: Seen,
    /// The witness beside it.
    pub outside: Seen,
}

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// `inbox.db`
    Inbox,
    /// `outbox.db`
    Outbox,
    /// `inbox/witness`
    Inside,
    /// The witness in the folder beside the state folder.
    Outside,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inbox => "inbox.db",
            Self::Outbox => "outbox.db",
            Self::Inside => "the witness inbox/witness",
            Self::Outside => "the witness beside the state folder",
        })
    }
}

/// A reason not to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// It has no pair id: not made by `init`, or made anew by hand.
    Unmarked(Which),
    /// The two files were not made together: one was swapped.
    NotAPair,
    /// The machine is another one.
    OtherMachine,
    /// The file lies elsewhere than it did.
    Copied(Which),
    /// A witness is gone.
    WitnessMissing(Which),
    /// A witness cannot be read.
    WitnessUnreadable(Which),
    /// A witness was written for other databases.
    WitnessOfOthers(Which),
    /// The file knows less than was seen in it.
    Older(Which),
    /// The file was written by another line of starts than the witness knows.
    Branched(Which),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmarked(which) => write!(f, "{which} has no pair id"),
            Self::NotAPair => f.write_str("inbox.db and outbox.db were not made together"),
            Self::OtherMachine => f.write_str("this is another machine"),
            Self::Copied(which) => write!(f, "{which} is a copy: it is not the file that the agent wrote"),
            Self::WitnessMissing(which) => write!(f, "{which} is missing"),
            Self::WitnessUnreadable(which) => write!(f, "{which} cannot be read"),
            Self::WitnessOfOthers(which) => write!(f, "{which} was written for other databases"),
            Self::Older(which) => write!(f, "{which} is older than what was seen in it before"),
            Self::Branched(which) => {
                write!(f, "{which} was written by a start that the witness does not know")
            }
        }
    }
}

/// Every reason not to send; empty = these are the files, and nothing is missing in them.
pub fn judge(found: &Found) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let Found { inbox, outbox, .. } = found;
    for (which, marks) in [(Which::Inbox, inbox), (Which::Outbox, outbox)] {
        if marks.pair.is_empty() {
            doubts.push(Doubt::Unmarked(which));
        }
    }
    if doubts.is_empty() && inbox.pair != outbox.pair {
        doubts.push(Doubt::NotAPair);
    }
    if found.machine != found.machine_now {
        doubts.push(Doubt::OtherMachine);
    }
    if inbox.place != found.inbox_place {
        doubts.push(Doubt::Copied(Which::Inbox));
    }
    if outbox.place != found.outbox_place {
        doubts.push(Doubt::Copied(Which::Outbox));
    }
    for (which, seen) in [(Which::Inside, &found.inside), (Which::Outside, &found.outside)] {
        match seen {
            Seen::NotExpected => {}
            Seen::Missing => doubts.push(Doubt::WitnessMissing(which)),
            Seen::Unreadable => doubts.push(Doubt::WitnessUnreadable(which)),
            Seen::There(witness) if witness.pair != inbox.pair => {
                doubts.push(Doubt::WitnessOfOthers(which));
            }
            Seen::There(witness) => {
                let own = [(Which::Inbox, inbox, found.claims, witness.claims)];
                // A swapped outbox is named already.
                let other =
                    (outbox.pair == inbox.pair).then_some((Which::Outbox, outbox, found.rows, witness.rows));
                for (file, marks, has, seen) in own.into_iter().chain(other) {
                    let doubt = if has < seen {
                        Doubt::Older(file)
                    } else if !marks.fits(witness) {
                        Doubt::Branched(file)
                    } else {
                        continue;
                    };
                    if !doubts.contains(&doubt) {
                        doubts.push(doubt);
                    }
                }
            }
        }
    }
    doubts
}

/// The doubts in one line.
pub fn in_words(doubts: &[Doubt]) -> String {
    doubts.iter().map(Doubt::to_string).collect::<Vec<_>>().join("; ")
}

/// Bytes of one written record of a witness; a file holds two, written in turn, so that a torn one leaves the other.
pub const RECORD_BYTES: usize = 512;

/// One record: a line of text with its checksum, filled up with spaces. `turn` tells the newer of two.
pub fn record(witness: &Witness, turn: u64) -> [u8; RECORD_BYTES] {
    let Witness { pair, incarnation, claims, rows } = witness;
    let body = format!("onceward-witness 1 {turn} {pair} {incarnation} {claims} {rows}");
    let mut bytes = [b' '; RECORD_BYTES];
    let line = format!("{body} {}\n", checksum(&body));
    let length = line.len().min(RECORD_BYTES);
    bytes[..length].copy_from_slice(&line.as_bytes()[..length]);
    bytes
}

/// The newer of the whole records in a witness file, with its turn. `None` = there is none.
pub fn newest(bytes: &[u8]) -> Option<(u64, Witness)> {
    bytes.chunks(RECORD_BYTES).filter_map(parse).max_by_key(|(turn, _)| *turn)
}

fn parse(bytes: &[u8]) -> Option<(u64, Witness)> {
    let line = std::str::from_utf8(bytes).ok()?.lines().next()?;
    let (body, sum) = line.rsplit_once(' ')?;
    let mut words = body.split(' ');
    if checksum(body) != sum || words.next() != Some("onceward-witness") || words.next() != Some("1") {
        return None;
    }
    let turn = words.next()?.parse().ok()?;
    let mut word = || words.next();
    let (pair, incarnation) = (word()?.to_owned(), word()?.to_owned());
    let (claims, rows) = (word()?.parse().ok()?, word()?.parse().ok()?);
    Some((turn, Witness { pair, incarnation, claims, rows }))
}

fn checksum(body: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, body.as_bytes());
    digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(incarnation: &str, before: &str, place: &str) -> Marks {
        Marks {
            pair: "p".into(),
            incarnation: incarnation.into(),
            before: before.into(),
            place: place.into(),
        }
    }
    fn witness(incarnation: &str, claims: i64, rows: i64) -> Witness {
        Witness { pair: "p".into(), incarnation: incarnation.into(), claims, rows }
    }
    /// A state folder in order.
    fn fine() -> Found {
        Found {
            inbox: marks("n2", "n1", "1@1"),
            outbox: marks("n2", "n1", "2@1"),
            claims: 10,
            rows: 20,
            inbox_place: "1@1".into(),
            outbox_place: "2@1".into(),
            machine: "m".into(),
            machine_now: "m".into(),
            inside: Seen::There(witness("n2", 10, 20)),
            outside: Seen::There(witness("n2", 10, 20)),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Found), expected: &[Doubt]) {
        let mut found = fine();
        change(&mut found);
        assert_eq!(judge(&found), expected, "{found:?}");
    }

    #[test]
    fn the_files_that_were_written_last_are_believed_at_every_step_of_a_new_incarnation() {
        check(|_| {}, &[]);
        // n2 is being written: inbox, outbox, inside, outside; a death after each.
        for step in 0..=4 {
            check(
                |found| {
                    let old = witness("n1", 10, 20);
                    if step < 1 {
                        found.inbox = marks("n1", "n0", "1@1");
                    }
                    if step < 2 {
                        found.outbox = marks("n1", "n0", "2@1");
                    }
                    if step < 3 {
                        found.inside = Seen::There(old.clone());
                    }
                    if step < 4 {
                        found.outside = Seen::There(old);
                    }
                },
                &[],
            );
        }
        // A crash before the witness was told, a power cut that took its last pages: it may be behind.
        check(|found| found.outside = Seen::There(witness("n2", 3, 7)), &[]);
        check(|found| found.outside = Seen::NotExpected, &[]);
    }

    #[test]
    fn each_kind_of_copy_is_named() {
        check(|found| found.machine_now = "other".into(), &[Doubt::OtherMachine]);
        check(|found| found.inbox_place = "9@9".into(), &[Doubt::Copied(Which::Inbox)]);
        check(|found| found.outbox_place = "2@2".into(), &[Doubt::Copied(Which::Outbox)]);
        check(|found| found.claims = 9, &[Doubt::Older(Which::Inbox)]);
        check(|found| found.rows = 19, &[Doubt::Older(Which::Outbox)]);
        check(
            |found| found.inbox.pair = String::new(),
            &[
                Doubt::Unmarked(Which::Inbox),
                Doubt::WitnessOfOthers(Which::Inside),
                Doubt::WitnessOfOthers(Which::Outside),
            ],
        );
        check(|found| found.outbox.pair = "q".into(), &[Doubt::NotAPair]);
        check(
            |found| found.inbox.pair = "q".into(),
            &[Doubt::NotAPair, Doubt::WitnessOfOthers(Which::Inside), Doubt::WitnessOfOthers(Which::Outside)],
        );
        check(|found| found.outside = Seen::Missing, &[Doubt::WitnessMissing(Which::Outside)]);
        check(|found| found.inside = Seen::Unreadable, &[Doubt::WitnessUnreadable(Which::Inside)]);
        // The state folder was put back whole, in place; the witness beside it was not.
        check(
            |found| found.outside = Seen::There(witness("n9", 10, 20)),
            &[Doubt::Branched(Which::Inbox), Doubt::Branched(Which::Outbox)],
        );
        // A copy lived on elsewhere and came back with more claims.
        check(
            |found| {
                found.inbox = marks("x", "x0", "1@1");
                found.claims = 99;
            },
            &[Doubt::Branched(Which::Inbox)],
        );
    }

    #[test]
    fn a_record_is_read_back_and_a_torn_one_leaves_the_other() {
        let (old, new) = (witness("n1", 1, 2), witness("n2", i64::MAX, 0));
        let mut bytes = [record(&old, 6), record(&new, 7)].concat();
        assert_eq!(newest(&bytes), Some((7, new)));
        bytes[RECORD_BYTES + 30] ^= 1;
        assert_eq!(newest(&bytes), Some((6, old)));
        bytes[0] = 0xff;
        assert_eq!(newest(&bytes), None);
        assert_eq!(newest(b""), None);
    }
}
