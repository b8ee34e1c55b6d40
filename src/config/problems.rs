//! Collects every mistake in a settings file, so that a person repairs the file in one go.
//!
//! Elements say what is wrong with a [`Wrong`]; the place and the line are added here. Nothing here knows a key,
//! and no text kept here may hold a secret, a phone number or an address with a password in it.

use std::cell::RefCell;
use std::fmt;

/// Longest piece of a wrong value that is shown again, characters.
const SHOWN_CHARS_MAX: usize = 40;

/// One mistake, ready to be shown after the name of the file: `LINE: PLACE: WHAT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// `[section].key`; empty where the file as a whole is meant.
    pub place: String,
    /// What is wrong, what was expected, and what may have been meant.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            write!(f, "{}: {}", self.line, self.what)
        } else {
            write!(f, "{}: {}: {}", self.line, self.place, self.what)
        }
    }
}

/// An element's verdict over a value, without its place: a lower-case fragment without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    what: String,
    meant: Option<String>,
}

impl Wrong {
    /// What is wrong and what was expected.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), meant: None }
    }

    /// Adds a suggestion, if there is one.
    pub(super) fn meant(mut self, meant: Option<impl Into<String>>) -> Self {
        self.meant = meant.map(Into::into);
        self
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.meant {
            Some(meant) => write!(f, " (did you mean {meant}?)"),
            None => Ok(()),
        }
    }
}

/// A wrong value as it may be shown: quoted, on one line, cut when long. Never for secrets or phone numbers.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

/// All mistakes of one file; shared by everything that reads it.
pub(super) struct Problems {
    line_starts: Vec<usize>,
    found: RefCell<Vec<Problem>>,
}

impl Problems {
    /// For this text; it is looked at only to count lines.
    pub(super) fn new(text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { line_starts, found: RefCell::new(Vec::new()) }
    }

    /// The line (from 1) of a byte offset.
    pub(super) fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Takes one mistake in.
    pub(super) fn add(&self, line: usize, place: &str, wrong: &Wrong) {
        let problem = Problem { line, place: place.to_owned(), what: wrong.to_string() };
        self.found.borrow_mut().push(problem);
    }

    /// Everything found, in the order of lines.
    pub(super) fn into_sorted(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|problem| problem.line);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one_and_are_sorted() {
        let problems = Problems::new("a\nbc\n\nd");
        let lines: Vec<usize> = (0..=7).map(|offset| problems.line_of(offset)).collect();
        assert_eq!(lines, [1, 1, 2, 2, 2, 3, 4, 4]);
        problems.add(4, "[b].y", &Wrong::new("second"));
        problems.add(2, "", &Wrong::new("first").meant(Some("this")));
        let shown: Vec<String> = problems.into_sorted().iter().map(Problem::to_string).collect();
        assert_eq!(shown, ["2: first (did you mean this?)", "4: [b].y: second"]);
    }

    #[test]
    fn long_and_odd_values_are_shown_on_one_short_line() {
        assert_eq!(shown("a\nb"), r#""a\nb""#);
        let long = shown(&"가".repeat(500));
        assert_eq!(long.chars().count(), SHOWN_CHARS_MAX + 5);
    }
}
