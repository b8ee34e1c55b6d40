//! The mark in the outbox file that refuses new rows during a drain; the trigger `outbox_drain` reads it.
//!
//! It ends by itself at its time, at the agent's start, or by `drain --end`, so that no forgotten drain keeps producers
//! out. Kept in `onceward_meta`, written through `store/meta.rs`. Rows that are there are never touched.

use rusqlite::Connection;

use super::meta;

/// UTC milliseconds until which rows are refused.
const MARK: &str = "intake_closed_until_ms";

/// Refuses new rows until then.
pub fn close(tx: &Connection, until_ms: i64) -> rusqlite::Result<()> {
    meta::put(tx, MARK, &until_ms.to_string())
}

/// Takes new rows again. True if they were refused.
pub fn open(tx: &Connection, now_ms: i64) -> rusqlite::Result<bool> {
    let was = closed_until(tx, now_ms)?.is_some();
    if meta::get(tx, MARK)?.is_some_and(|until| until != "0") {
        meta::put(tx, MARK, "0")?;
    }
    Ok(was)
}

/// Until when rows are refused; `None` while they are taken.
pub fn closed_until(connection: &Connection, now_ms: i64) -> rusqlite::Result<Option<i64>> {
    let until = meta::get(connection, MARK)?.and_then(|text| text.parse::<i64>().ok());
    Ok(until.filter(|until| *until > now_ms))
}

/// Whether an insert was refused by the mark.
pub fn is_refusal(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(_, Some(text)) if text.starts_with("onceward: the outbox is being drained"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    #[test]
    fn rows_are_refused_with_words_until_the_mark_ends() {
        let outbox = Connection::open_in_memory().expect("opens");
        outbox.execute_batch(migrate::schema(Part::Outbox)).expect("made");
        let put = |key: &str| {
            outbox.execute(
                "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?1, 'K', '010', '{}') ON CONFLICT (dedup_key) DO NOTHING",
                [key],
            )
        };
        let now_ms = crate::clock::wall_ms();
        assert_eq!(put("a"), Ok(1));
        close(&outbox, now_ms + 60_000).expect("marked");
        let refused = put("b").expect_err("refused");
        assert!(is_refusal(&refused), "{refused}");
        assert_eq!(put("a"), Ok(0), "the same event again is harmless as ever");
        assert_eq!(open(&outbox, now_ms), Ok(true));
        assert_eq!(open(&outbox, now_ms), Ok(false));
        assert_eq!(put("b"), Ok(1));
        close(&outbox, now_ms - 1).expect("a mark whose time is over");
        assert_eq!(put("c"), Ok(1));
    }
}
