//! `[[route]]`: which kind goes to which destination; the first match wins.
//!
//! Reads and checks the list; matching a message against it is not done here.

use super::Route;
use super::destination::ReadDestination;
use super::element::{text, word};
use super::nearest::suggestion;
use super::problems::Problems;
use super::section::{Section, came, tables};
use crate::limits::FIELD_CHARS_MAX;

/// Reads every route of the file.
pub(super) fn routes(
    root: &mut Section<'_, '_>,
    destinations: &[ReadDestination],
    problems: &mut Problems,
) -> Vec<Route> {
    let names: Vec<&str> =
        destinations.iter().filter(|read| read.name.sound).map(|read| read.name.value.as_str()).collect();
    // A destination without a usable name is a problem already; the routes to it are none of their own.
    let names_are_known = names.len() == destinations.len();
    let mut routes: Vec<Route> = Vec::new();
    for mut section in tables(root, "route", problems) {
        let hint = "expected for example kind = \"GRADE_*\"";
        let kind = section.required(problems, "kind", hint, String::new(), |value| {
            word(value, "a kind like \"GRADE_*\"", FIELD_CHARS_MAX, |c| !c.is_control())
        });
        let hint = "expected the name of a destination";
        let destination = section.required(problems, "destination", hint, String::new(), |value| {
            let given = text(value, "the name of a destination")?;
            match names.contains(&given) || (!names_are_known && !given.is_empty()) || destinations.is_empty()
            {
                true => Ok(given.to_owned()),
                false => {
                    let near = suggestion(given, names.iter().copied());
                    let mut listed = names.clone();
                    listed.dedup();
                    Err(format!("is {}, expected one of {}{near}", came(value), listed.join(", ")))
                }
            }
        });
        if kind.sound
            && let Some(first) = routes.iter().find(|route| route.kind == "*" || route.kind == kind.value)
        {
            let what = format!(
                "is never reached: the route {:?} above takes these; the first match wins",
                first.kind
            );
            problems.add(&kind.at, section.place("kind"), what);
        }
        section.finish(problems);
        routes.push(Route { kind: kind.value, destination: destination.value });
    }
    routes
}
