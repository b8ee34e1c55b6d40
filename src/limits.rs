//! Every bound with its unit and its reason, and the relations between them checked at compile time.
//!
//! Settings move some of these within the ranges that `config` checks; nothing else in the crate holds a bound.

use std::time::Duration;

/// Longest `dedup_key`, characters (also a CHECK in `schema.sql`).
pub const DEDUP_KEY_CHARS_MAX: usize = 200;
/// Longest `message_id`, characters (also a CHECK); adapters ask for less where the vendor's field is shorter.
pub const MESSAGE_ID_CHARS_MAX: usize = 100;
/// Largest payload, bytes: far above any vendor's text limit, small enough that a full channel stays small.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Longest `kind`, `ordering_key`, `recipient`, characters.
pub const FIELD_CHARS_MAX: usize = 200;
/// Longest `consumer`, `event_id` and `effect_key` of `once`, characters (also CHECKs).
pub const ONCE_KEY_CHARS_MAX: usize = 200;
/// Largest result that `once` keeps, bytes of JSON: what a redelivery is told, not a document store.
pub const ONCE_RESULT_BYTES_MAX: usize = 64 * 1024;

/// Largest answer body that is read, bytes; a vendor's answer is a few hundred.
pub const ANSWER_BYTES_MAX: u64 = 256 * 1024;
/// Largest answer head, bytes; must stay below [`HTTP_BUFFER_BYTES`] or ureq reports a disconnect instead.
pub const ANSWER_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Input and output buffer of a connection, bytes.
pub const HTTP_BUFFER_BYTES: usize = 32 * 1024;
const _: () = assert!(ANSWER_HEAD_BYTES_MAX < HTTP_BUFFER_BYTES);

/// Longest wait of an outcome for a claim to share its synced commit with. The promise is at most 50 ms.
pub const OUTCOME_LINGER: Duration = Duration::from_millis(5);
const _: () = assert!(OUTCOME_LINGER.as_millis() <= 50);

/// How long a writer waits for another process's lock before it reports busy (and keeps the work).
pub const BUSY_TIMEOUT: Duration = Duration::from_millis(5_000);

/// Most pieces of work in one commit: bounds the time others wait for the lock.
pub const WRITER_BATCH_MAX: usize = 512;
/// A mean commit above this is a slow disk: then claims wait a moment for each other.
pub const SYNC_SLOW: Duration = Duration::from_micros(500);
/// Longest such wait.
pub const SYNC_LINGER_MAX: Duration = Duration::from_millis(1);
/// First pause after a failed commit; doubled up to [`WRITER_RETRY_MAX`].
pub const WRITER_RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest pause between tries to write an outcome that is owed.
pub const WRITER_RETRY_MAX: Duration = Duration::from_secs(5);

/// Pause between two checkpoints of a busy file: long enough to copy many pages with two syncs.
pub const CHECKPOINT_PAUSE: Duration = Duration::from_millis(60);
/// Longest pause before a checkpoint that failed is tried again.
pub const CHECKPOINT_RETRY_MAX: Duration = Duration::from_secs(30);
/// Pages in the log above which the writer closes the gap itself.
pub const WAL_FRAMES_LONG: u64 = 1_000;
/// Pages in the log that cannot be copied back above which a reader is reported.
pub const WAL_FRAMES_PINNED: u64 = 4_000;

/// First pause before a closed destination is probed.
pub const GATE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between probes: a link that is back is used within a minute.
pub const GATE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Longest wait that a destination's `Retry-After` is believed.
pub const GATE_WAIT_MAX: Duration = Duration::from_secs(3600);
/// Calls in a row whose outcome is unknown that close a destination, unless its settings say otherwise.
pub const GATE_UNKNOWN_MAX: u32 = 10;
/// Pause after a 429 that names none.
pub const GATE_THROTTLE_DEFAULT: Duration = Duration::from_secs(5);

/// Hand-offs under way per worker: enough that a worker never waits for the relay, few enough that an urgent row
/// does not wait behind a full channel.
pub const HANDOFFS_PER_THREAD: usize = 12;
/// Shortest time between two commits of a busy relay: producers get the lock in between.
pub const RELAY_PAUSE: Duration = Duration::from_millis(1);
/// The same while every worker has enough at hand: marks and claims gather into one commit.
pub const RELAY_GATHER: Duration = Duration::from_millis(4);
/// Longest pause after a round that took long (a slow disk, somebody's lock): producers have had their turn by then, and
/// confirms, a stop and probes wait meanwhile.
pub const RELAY_YIELD_MAX: Duration = Duration::from_millis(250);
const _: () = assert!(RELAY_GATHER.as_millis() < RELAY_YIELD_MAX.as_millis());
/// Batches of one destination in one commit: bounds how long producers find the lock taken.
pub const BATCHES_PER_ROUND: usize = 3;
/// Waiting this long makes a message one step more urgent, so that nothing starves behind a stream of urgent ones.
pub const AGING_STEP: Duration = Duration::from_secs(600);
/// Rows closed, routed or parked by the relay itself in one commit.
pub const RELAY_SWEEP_MAX: usize = 200;
/// How often a relay compares its memory with the table and renews leases.
pub const RELAY_RECONCILE: Duration = Duration::from_secs(60);

/// A hand-off that fails for the same reason this many times in a row is parked: it would only repeat.
pub const SAME_FAILURE_MAX: u32 = 8;
/// Most attempts of a message, whatever their reasons.
pub const ATTEMPTS_MAX: u32 = 100;
/// First pass of retention after a start, and the pause between passes.
pub const PURGE_FIRST: Duration = Duration::from_secs(300);
/// See [`PURGE_FIRST`].
pub const PURGE_EVERY: Duration = Duration::from_secs(3_600);
/// How often the retention room looks whether somebody asked for a pass, or a repeat waits for its comparison.
pub const PURGE_LOOK: Duration = Duration::from_secs(5);
/// After a pass that failed.
pub const PURGE_RETRY: Duration = Duration::from_secs(60);
/// Rows changed by one step: with random keys 50 keep the live commits' p99 at 4 ms (measured).
pub const PURGE_ROWS: usize = 50;
/// Longest time of one step inside its transaction; what is left comes in the next.
pub const PURGE_STEP_MAX: Duration = Duration::from_millis(5);
/// Shortest pause between two steps; longer where steps are slow.
pub const PURGE_PAUSE: Duration = Duration::from_millis(50);
/// A step is followed by a pause of at least this many times its duration: at most a fifth of the time goes to retention.
pub const PURGE_PAUSE_TIMES: u32 = 4;
/// How much history a timed pass may forget, from the oldest key on: a clock that jumped years ahead costs a week of
/// keys for each day that nobody notices, not all of them at once.
pub const PURGE_SPAN_TIMED: Duration = Duration::from_secs(7 * 3_600);
/// The same for a pass that a person asked for.
pub const PURGE_SPAN_ASKED: Duration = Duration::from_secs(7 * 86_400);
/// Rows read at once from the inbox and the call log, in their order of arrival.
pub const PURGE_LOOK_ROWS: usize = 500;
/// So many rows in a row that are too young: the walk from the oldest on has come to its end.
pub const PURGE_YOUNG_RUN: usize = 500;

/// Rows read at once by `verify`: one short read transaction.
pub const VERIFY_ROWS: usize = 1_000;
/// How often `verify` looks again at what seems wrong, since messages move while it reads.
pub const VERIFY_LOOKS: u32 = 4;
/// Pause between two such looks.
pub const VERIFY_PAUSE: Duration = Duration::from_millis(300);
/// Pause of a row whose `ordering_key` is under way from another source, or has its turn there: about one vendor call. The first such pause.
pub const KEY_ELSEWHERE_PAUSE: Duration = Duration::from_millis(200);
/// Longest such pause (doubled while it waits behind the same row, or until that row is due): a lane goes on within this.
pub const LANE_ELSEWHERE_PAUSE_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(KEY_ELSEWHERE_PAUSE.as_millis() < LANE_ELSEWHERE_PAUSE_MAX.as_millis());
/// Lanes whose pauses are remembered; more begin with the shortest one again.
pub const LANES_ELSEWHERE_MAX: usize = 10_000;
/// How long after a start lanes wait for the first word about a source's file: its relay opens it within a second, or
/// finds it in trouble.
pub const LANE_FILE_EXPECTED: Duration = Duration::from_secs(10);
/// How often the list of sources is looked at: `source add` is picked up within this.
pub const SOURCES_LOOK: Duration = Duration::from_secs(1);
/// A source that is only locked is told to a person after this.
pub const SOURCE_LOCKED_ALERT: Duration = Duration::from_secs(30);
/// How long a look for alerts waits for the lock of one application.
pub const SOURCE_GLANCE: Duration = Duration::from_millis(250);
/// Looks for a source's file that cannot be watched yet.
pub const SOURCE_WATCH_RETRY: Duration = Duration::from_secs(1);

/// How often stale SENDING rows are looked for.
pub const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// Rows settled by one commit of the sweeper or of recovery.
pub const SWEEP_MAX: u32 = 500;
/// At least one real commit in this time while idle: readiness is a commit, not an open file.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(300);
/// What a stop may take beyond the longest vendor timeout.
pub const STOP_MARGIN: Duration = Duration::from_secs(10);
/// Read-only connections of the agent.
pub const POOL_READERS: u32 = 3;

/// How often the wall clock is compared with the monotonic one while nothing else asks for the time.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);
/// A difference between two looks from which on it is a leap: no slewing reaches it.
pub const CLOCK_JUMP: Duration = Duration::from_secs(2);
/// A leap up to this is believed at once: a battery clock is that wrong, and NTP steps it.
pub const CLOCK_BELIEVED: Duration = Duration::from_secs(5 * 60);
/// How far the first reading of a run may be ahead of the newest recorded time and be believed at once.
pub const CLOCK_AHEAD_AT_START: Duration = Duration::from_secs(24 * 3_600);
/// How long a clock that leapt ahead must stand before it is believed.
pub const CLOCK_SETTLE: Duration = Duration::from_secs(10 * 60);
const _: () = assert!(CLOCK_JUMP.as_secs() < CLOCK_BELIEVED.as_secs());

/// Most tries again of an unknown outcome within one claim, where the receiver deduplicates: a SENDING row must end long
/// before it is called stale.
pub const DEDUPLICATED_TRIES_MAX: u32 = 5;
/// Longest pause before each of them.
pub const DEDUPLICATED_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A look at the opt-outs that is older than this is repeated right before the call.
pub const CONSENT_FRESH: Duration = Duration::from_millis(50);
/// How long a verb on a key that one file has waits for an application's lock, to see whether another has it too.
pub const KEY_ELSEWHERE_LOCK_WAIT: Duration = Duration::from_millis(1_000);
/// How long a worker waits for an application's lock to read the opt-outs in its file; a slow disk's commit is shorter.
pub const OPT_OUTS_LOCK_WAIT: Duration = Duration::from_millis(1_000);
/// The same while the look before has found it locked: other files' messages wait behind it.
pub const OPT_OUTS_LOCK_WAIT_AGAIN: Duration = Duration::from_millis(20);
/// A message whose file's opt-outs could not be read is looked at again after this.
pub const OPT_OUTS_UNREAD_PAUSE: Duration = Duration::from_millis(1_000);

/// Kept back on the disk for outcomes of calls already made (F18).
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Nothing new is claimed with less room than this beside the reserve.
pub const SEND_FREE_MIN: u64 = 4 << 20;
/// `enqueue` refuses with less room than this: intake stops first, and the reserve given back is not its to fill.
pub const INTAKE_FREE_MIN: u64 = RESERVE_BYTES + SEND_FREE_MIN;
/// Shortest time between two looks at the room on the disk.
pub const DISK_LOOK: Duration = Duration::from_millis(200);
/// How often the agent looks at its files while nothing else makes it look (every claim does).
pub const FILES_LOOK: Duration = Duration::from_secs(1);
