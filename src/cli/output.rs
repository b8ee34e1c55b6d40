//! Printing to stdout: a closed pipe (`| head`) is a success, not an error; and what comes from rows or vendors reaches no
//! terminal raw: control characters are written out (`\\x1b`), so that no text can move the cursor or fake a line.

use std::io::Write;

use super::{Failure, Outcome};
use crate::exit;

/// Prints text as it is.
pub fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(exit::OK),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit::OK),
        Err(error) => Err(Failure::new(exit::IO, format!("standard output: {error}"))),
    }
}

/// A line on stderr, for people. A stderr that nobody takes (a closed pipe, a full disk) changes nothing of what was done,
/// so it is no panic either.
macro_rules! complain {
    ($($part:tt)*) => { $crate::cli::output::line_to(&mut std::io::stderr(), format_args!($($part)*)) };
}
/// The same on stdout, where the lines are not the command's result.
macro_rules! tell {
    ($($part:tt)*) => { $crate::cli::output::line_to(&mut std::io::stdout(), format_args!($($part)*)) };
}
pub(crate) use {complain, tell};

/// Writes a line, or not.
pub fn line_to(out: &mut dyn Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
}

/// A table with aligned columns; the first row is the head.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |text: &str| text.chars().map(|c| if c as u32 >= 0x1100 { 2 } else { 1 }).sum::<usize>();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(cell);
            line.push_str(&" ".repeat(widths[column].saturating_sub(width(cell)) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `3s`, `4m`, `2h 5m`, `3d 4h`.
pub fn age(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Local wall time of the settings' zone, with its offset.
pub fn local_time(ms: i64, zone: &jiff::tz::TimeZone) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map(|at| at.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M:%S%:z").to_string())
        .unwrap_or_else(|_| format!("{ms} ms"))
}

/// The content of the agent's lock for people: its UTC time as local time.
pub fn holder(text: &str, zone: &jiff::tz::TimeZone) -> String {
    let Some((rest, since)) = text.rsplit_once(", since ") else { return plain(text) };
    match since.trim().parse::<jiff::Timestamp>() {
        Ok(at) => format!("{}, since {}", plain(rest), local_time(at.as_millisecond(), zone)),
        Err(_) => plain(text),
    }
}

/// `1 attempt`, `2 attempts`.
pub fn count(number: i64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `010****78`: enough to recognise, not enough to call.
pub fn masked(number: &str) -> String {
    let all: Vec<char> = number.chars().collect();
    if all.len() < 7 {
        return "****".into();
    }
    let head: String = all[..3].iter().collect();
    let tail: String = all[all.len() - 2..].iter().collect();
    format!("{head}****{tail}")
}

/// At most so many characters; a longer text ends in an ellipsis.
pub fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// Characters that steer a terminal or turn the reading direction.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with every such character written out.
pub fn plain(text: &str) -> String {
    if !text.chars().any(steers) {
        return text.to_owned();
    }
    text.chars().map(|c| if steers(c) { written(c) } else { c.to_string() }).collect()
}

fn written(c: char) -> String {
    match c {
        '\n' | '\r' | '\t' => c.escape_default().to_string(),
        _ if (c as u32) < 0x100 => format!("\\x{:02x}", c as u32),
        _ => c.escape_unicode().to_string(),
    }
}

/// The same for a text of several lines of ours.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// JSON in one line, in which such characters are JSON escapes.
pub fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text =
        serde_json::to_string(value).map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    if !text.chars().any(steers) {
        return Ok(text);
    }
    // Below U+0020 serde_json escapes already; the others can only stand inside strings.
    let escaped = |c: char| if steers(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    Ok(text.chars().map(escaped).collect())
}

/// Writes what a formatter gives it with such characters written out: for log lines.
pub struct Plain<W>(pub W);

impl<W: Write> std::fmt::Write for Plain<W> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let done = if text.chars().any(steers) {
            self.0.write_all(plain(text).as_bytes())
        } else {
            self.0.write_all(text.as_bytes())
        };
        done.map_err(|_| std::fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        for (text, expected) in [
            ("plain \u{ac00}", "plain \u{ac00}"),
            ("a\u{1b}[1m", "a\\x1b[1m"),
            ("a\nb\tc", "a\\nb\\tc"),
            ("\u{9b}2J\u{7f}", "\\x9b2J\\x7f"),
            ("\u{202e}abc", "\\u{202e}abc"),
        ] {
            assert_eq!(plain(text), expected);
        }
        assert_eq!(plain_lines("a\nb\u{1b}"), "a\nb\\x1b");
        let table = table(&[vec!["a\nfake row".into(), "b".into()]]);
        assert_eq!(table, "a\\nfake row  b\n");
    }

    #[test]
    fn json_says_the_same_without_steering() {
        let text = "a\u{1b}\u{9b}\u{202e}\"";
        let json = json(&text).expect("JSON");
        assert!(!json.chars().any(steers), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("reads back"), text);
    }

    #[test]
    fn a_log_line_keeps_to_its_line() {
        let mut bytes = Vec::new();
        std::fmt::Write::write_fmt(&mut Plain(&mut bytes), format_args!("dest={}", "d\u{1b}[1m\nx"))
            .expect("written");
        assert_eq!(bytes, b"dest=d\\x1b[1m\\nx");
    }

    #[test]
    fn the_holder_is_shown_in_the_zone_of_the_settings() {
        let zone = jiff::tz::TimeZone::get("Asia/Seoul").expect("known");
        let text = "pid 7, settings /o.toml, since 2026-11-30T07:40:48Z\n";
        assert_eq!(holder(text, &zone), "pid 7, settings /o.toml, since 2026-11-30 16:40:48+09:00");
        assert_eq!(holder("pid 7", &zone), "pid 7");
        assert_eq!(
            (count(1, "call", "calls"), count(0, "call", "calls")),
            ("1 call".into(), "0 calls".into())
        );
    }

    #[test]
    fn long_cells_are_cut_and_short_numbers_hidden() {
        assert_eq!(cut("abcdef", 4), "abc\u{2026}");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!((masked("01012345678"), masked("119")), ("010****78".into(), "****".into()));
    }
}
