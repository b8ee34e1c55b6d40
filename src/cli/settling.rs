//! The settling part of `show`: reports, look-ups and verdicts of one message; and, while it is ERROR, what to ask whom.

use jiff::tz::TimeZone;
use rusqlite::{Connection, OptionalExtension, params};

use super::output;
use super::views::{Fate, Line};

/// Tables and sentences, empty where there is nothing to tell.
pub fn story(
    inbox: &Connection,
    line: &Line,
    fate: Option<&Fate>,
    zone: &TimeZone,
) -> rusqlite::Result<String> {
    let at = |ms: i64| output::local_time(ms, zone);
    let mut out = String::new();
    let reports: Vec<Vec<String>> = inbox
        .prepare(
            "SELECT first_at_ms, verdict, code, meaning, item, way, copies, counts FROM report
              WHERE consumer = ?1 AND message_id = ?2 AND message_id <> '' ORDER BY id",
        )?
        .query_map(params![line.destination, line.message_id], |row| {
            let counts: bool = row.get(7)?;
            Ok(vec![
                at(row.get(0)?),
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get::<_, i64>(6)?.to_string(),
                if counts { String::new() } else { "QUARANTINED: contradicts an earlier one".into() },
            ])
        })?
        .collect::<rusqlite::Result<_>>()?;
    let count = reports.len();
    table(&mut out, &["REPORT", "SAYS", "CODE", "MEANING", "ITEM", "BY", "TIMES", ""], reports);
    let verdicts: Vec<Vec<String>> = inbox
        .prepare("SELECT at_ms, verb, who, state_before, state_after, note FROM audit WHERE target = ?1 ORDER BY id")?
        .query_map([&line.message_id], |row| {
            Ok(vec![at(row.get(0)?), row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?])
        })?
        .collect::<rusqlite::Result<_>>()?;
    table(&mut out, &["VERDICT", "VERB", "WHO", "BEFORE", "AFTER", "NOTE"], verdicts);
    let asked: Option<(u32, i64, Option<i64>, String)> = inbox
        .query_row(
            "SELECT asked, last_at_ms, next_at_ms, last_said FROM inquiry WHERE consumer = ?1 AND message_id = ?2",
            params![line.destination, line.message_id],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .optional()?;
    if let Some((asked, last_at_ms, next_at_ms, said)) = &asked {
        let next = match next_at_ms {
            _ if fate.is_none_or(|fate| fate.status != "ERROR") => String::new(),
            Some(next) => format!("; next {}", at(*next)),
            None => "; not asked again".into(),
        };
        out.push_str(&format!(
            "\nlook-up asked {}, last {}: {said}{next}\n",
            output::count(i64::from(*asked), "time", "times"),
            at(*last_at_ms)
        ));
    }
    let Some(fate) = fate.filter(|fate| fate.status == "ERROR") else { return Ok(out) };
    // All of them, also those before a verdict of "not sent"; a crash leaves a call without a line of its own.
    let calls: i64 = inbox.query_row(
        "SELECT count(*) FROM attempt WHERE message_id = ?1 AND outcome = 'UNKNOWN'",
        [&line.message_id],
        |row| row.get(0),
    )?;
    let unknown =
        output::count(calls.max(1), "call whose answer is not known", "calls whose answers are not known");
    let tried = [
        Some(unknown),
        asked.as_ref().map(|(asked, ..)| output::count(i64::from(*asked), "look-up", "look-ups")),
        Some(match count {
            0 => "no report has named it".to_owned(),
            1 => "1 report, which does not decide".to_owned(),
            count => format!("{count} reports, none of which decides"),
        }),
    ];
    let tried: Vec<String> = tried.into_iter().flatten().collect();
    out.push_str(&format!(
        "\ntried: {}\nask the vendor of {:?}: did a request with the reference {} reach you between {} and {}, and what \
         became of it?\nthen: onceward settle {id} --sent, --failed, or --not-sent --i-checked-the-vendor, with --note \
         TEXT\n",
        tried.join("; "),
        line.destination,
        line.message_id,
        at(fate.claimed_at_ms),
        at(fate.finished_at_ms.unwrap_or(fate.claimed_at_ms)),
        id = line.message_id,
    ));
    Ok(out)
}

fn table(out: &mut String, head: &[&str], rows: Vec<Vec<String>>) {
    if !rows.is_empty() {
        let mut all = vec![head.iter().map(|word| (*word).to_owned()).collect()];
        all.extend(rows);
        out.push('\n');
        out.push_str(&output::table(&all));
    }
}
