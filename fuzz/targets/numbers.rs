//! Phone numbers: one form, whichever way they are written; the same in Rust and in the table of opt-outs; never told.

use rusqlite::Connection;

use super::world::{line, tables};
use crate::db::Part;
use crate::policy::number::{canonical, forms, is_unreadable, recipient, sender, stored};

/// A country's code on the first line (or nothing), a number on the rest.
pub(super) fn run(bytes: &[u8]) {
    let (first, rest) = line(bytes);
    let (Ok(country), Ok(text)) = (std::str::from_utf8(first), std::str::from_utf8(rest)) else { return };
    let country = (!country.is_empty()).then_some(country);

    let plain = canonical(text);
    assert_eq!(canonical(&plain), plain, "one form");
    thread_local!(static OUTBOX: Connection = tables(Part::Outbox));
    if !text.contains('\0') && !text.is_empty() && text.chars().count() <= 100 {
        OUTBOX.with(|outbox| in_sql(outbox, text, &plain));
    }

    match recipient(text, country) {
        Ok(number) => {
            assert!(number.bytes().all(|byte| byte.is_ascii_digit()) && (3..=16).contains(&number.len()));
            let kept = stored(text, country).expect("what the vendor takes can be stored");
            assert_eq!(recipient(&kept, country).as_ref(), Ok(&number), "stored, it is the same number");
            assert_eq!(stored(&kept, country).as_ref(), Ok(&kept), "stored once, stored twice");
            assert!(
                forms(text, country).contains(&canonical(&kept)),
                "an opt-out of what is stored is found: {text:?} {country:?} {kept}"
            );
            if crate::policy::number::abroad(country).is_none() {
                assert_eq!(canonical(&kept), kept, "an opt-out finds it");
                assert_eq!(canonical(text.trim_matches(' ')), number, "however the opt-out was written");
            }
        }
        Err(why) => untold(&why, text),
    }
    if let Err(why) = sender(text) {
        untold(&why, text);
    }
}

/// The trigger of `suppress` makes the same form.
fn in_sql(outbox: &Connection, text: &str, plain: &str) {
    let kept: rusqlite::Result<String> = outbox.execute_batch("BEGIN").and_then(|()| {
        outbox.execute("INSERT INTO suppress (recipient) VALUES (?1)", [text])?;
        outbox.query_row("SELECT recipient FROM suppress", [], |row| row.get(0))
    });
    let undone = outbox.execute_batch("ROLLBACK");
    match (kept, undone) {
        (Ok(kept), Ok(())) => {
            assert_eq!(kept, plain, "the table's form of {text:?}");
            assert!(!is_unreadable(text), "{text:?} would never be found");
        }
        // A form that is empty names nobody, and one that cannot be read is never found; the table says so.
        (Err(error), Ok(())) => {
            assert!(plain.is_empty() || is_unreadable(text), "{text:?} is refused: {error}")
        }
        (_, Err(error)) => panic!("{error}"),
    }
}

fn untold(why: &str, text: &str) {
    for run in why.split(|character: char| !character.is_ascii_digit()).filter(|run| run.len() >= 4) {
        assert!(!text.contains(run), "the number is told: {why}");
    }
}
