//! The list of everything wrong with a settings file, and the error that shows it.
//!
//! Collects and prints; never judges a value itself, and never prints one that was not handed to it as text.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing that is wrong, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the settings file, from 1.
    pub line: usize,
    /// `[section].key`; empty when the text as a whole is meant.
    pub place: String,
    /// What is wrong and what was expected.
    pub what: String,
}

/// Collects problems while the text is read.
pub(super) struct Problems {
    newlines: Vec<usize>,
    list: Vec<Problem>,
}

impl Problems {
    /// An empty list over the text whose byte offsets will be given.
    pub(super) fn over(text: &str) -> Self {
        let newlines =
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        Self { newlines, list: Vec::new() }
    }

    /// Notes one problem at a byte range of the text.
    pub(super) fn add(&mut self, at: &Range<usize>, place: impl Into<String>, what: impl Into<String>) {
        let line = 1 + self.newlines.partition_point(|newline| *newline < at.start);
        self.list.push(Problem { line, place: place.into(), what: what.into() });
    }

    /// How many were noted so far.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// Whether one of them is about such a place.
    pub(super) fn has(&self, place: impl Fn(&str) -> bool) -> bool {
        self.list.iter().any(|problem| place(&problem.place))
    }

    /// Nothing if nothing was wrong, else the error with every problem in line order.
    pub(super) fn or(mut self, origin: &Path) -> Result<(), SettingsError> {
        if self.list.is_empty() {
            return Ok(());
        }
        self.list.sort_by_key(|problem| problem.line);
        Err(SettingsError { origin: origin.to_path_buf(), kind: Kind::Wrong(self.list) })
    }
}

/// Why there are no settings. Displays one problem a line, `FILE:LINE: [section].key: what is wrong`.
#[derive(Debug)]
pub struct SettingsError {
    origin: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    NotFound,
    Unreadable(std::io::Error),
    Wrong(Vec<Problem>),
}

impl SettingsError {
    /// The file could not be read.
    pub(super) fn unreadable(origin: &Path, error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Unreadable(error),
        };
        Self { origin: origin.to_path_buf(), kind }
    }

    /// One problem with the text as a whole.
    pub(super) fn one(origin: &Path, text: &str, at: Range<usize>, what: String) -> Self {
        let mut problems = Problems::over(text);
        problems.add(&at, "", what);
        Self { origin: origin.to_path_buf(), kind: Kind::Wrong(problems.list) }
    }

    /// Every problem in line order; empty when the file could not be read at all.
    pub fn problems(&self) -> &[Problem] {
        match &self.kind {
            Kind::Wrong(list) => list,
            Kind::NotFound | Kind::Unreadable(_) => &[],
        }
    }

    /// The sysexits code: 66 no such file, 77 not permitted, 74 unreadable otherwise, 78 settings wrong.
    pub fn exit_code(&self) -> i32 {
        match &self.kind {
            Kind::NotFound => 66,
            Kind::Unreadable(error) if error.kind() == std::io::ErrorKind::PermissionDenied => 77,
            Kind::Unreadable(_) => 74,
            Kind::Wrong(_) => 78,
        }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.origin.display();
        match &self.kind {
            Kind::NotFound => {
                write!(
                    f,
                    "{file}: no such settings file; make one with `onceward init` (or `onceward init --dir DIR`), or name \
                     another by --config FILE or ONCEWARD_CONFIG"
                )
            }
            Kind::Unreadable(error) => write!(f, "{file}: cannot read the settings: {error}"),
            Kind::Wrong(list) => {
                if list.len() > 1 {
                    writeln!(f, "{} mistakes in {file}:", list.len())?;
                }
                for (index, Problem { line, place, what }) in list.iter().enumerate() {
                    let newline = if index == 0 { "" } else { "\n" };
                    let colon = if place.is_empty() { "" } else { ": " };
                    write!(f, "{newline}{file}:{line}: {place}{colon}{what}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_shown_in_line_order_with_their_file() {
        let mut problems = Problems::over("a\nb\nc");
        problems.add(&(4..5), "[x].c", "third");
        problems.add(&(0..1), "[x].a", "first");
        problems.add(&(2..3), "", "second");
        let error = problems.or(Path::new("/e/o.toml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "3 mistakes in /e/o.toml:\n/e/o.toml:1: [x].a: first\n/e/o.toml:2: second\n/e/o.toml:3: [x].c: third"
        );
        assert_eq!(error.exit_code(), 78);
    }

    #[test]
    fn each_way_of_not_reading_has_its_exit_code() {
        use std::io::ErrorKind as K;
        for (kind, code) in
            [(K::NotFound, 66), (K::PermissionDenied, 77), (K::Other, 74), (K::IsADirectory, 74)]
        {
            assert_eq!(SettingsError::unreadable(Path::new("x"), kind.into()).exit_code(), code);
        }
    }
}
