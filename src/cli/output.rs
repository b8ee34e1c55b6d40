//! Printing to stdout: a closed pipe (`| head`) is a success, not an error.

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

/// A table with aligned columns; the first row is the head.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |text: &str| text.chars().map(|c| if c as u32 >= 0x1100 { 2 } else { 1 }).sum::<usize>();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
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

/// Local wall time of the settings' zone.
pub fn local_time(ms: i64, zone: &jiff::tz::TimeZone) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map(|at| at.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string())
        .unwrap_or_else(|_| format!("{ms} ms"))
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
