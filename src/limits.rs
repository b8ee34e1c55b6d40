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
