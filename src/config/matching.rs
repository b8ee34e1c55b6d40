//! Rules over a vendor's answer: `{ status = ["2xx", 404], json = "/code", equals = [1000] }`.
//!
//! Reads and checks them, also against each other; never applies one.

use toml::de::DeValue;

use super::element::{integer, json_pointer, list};
use super::problems::Problems;
use super::section::{Given, Raw, Section, came, kind};
use super::{Match, StatusRange};

/// One final status or a class of them.
fn status(value: &DeValue<'_>) -> Result<StatusRange, String> {
    let wrong = || {
        Err(format!(
            "is {}, expected a status from 200 to 599 or a class from \"2xx\" to \"5xx\"",
            came(value)
        ))
    };
    if let Some(class) = value.as_str() {
        return match class {
            "2xx" | "3xx" | "4xx" | "5xx" => {
                let first = u16::from(class.as_bytes()[0] - b'0') * 100;
                Ok(StatusRange { first, last: first + 99 })
            }
            _ => wrong(),
        };
    }
    match integer(value).and_then(|number| u16::try_from(number).ok()) {
        Some(status @ 200..=599) => Ok(StatusRange { first: status, last: status }),
        _ => wrong(),
    }
}

/// One value that a JSON field may have.
fn json_value(value: &DeValue<'_>) -> Result<serde_json::Value, String> {
    match value {
        DeValue::String(text) => Ok(serde_json::Value::from(text.as_ref())),
        DeValue::Boolean(answer) => Ok(serde_json::Value::from(*answer)),
        DeValue::Integer(_) => {
            integer(value).map(serde_json::Value::from).ok_or_else(|| "is too large a number".to_owned())
        }
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(serde_json::Value::Number)
            .ok_or_else(|| "is no number that JSON has".to_owned()),
        _ => Err(format!("is {}, expected a text, a number, true or false", kind(value))),
    }
}

/// Reads one rule of a section; the default when it is missing.
pub(super) fn rule(
    section: &mut Section<'_, '_>,
    key: &'static str,
    statuses_by_default: &[StatusRange],
    problems: &mut Problems,
) -> Given<Match> {
    let default = Match { status: statuses_by_default.to_vec(), json: None };
    let at = section.at();
    match section.raw(key) {
        None => Given { value: default, at, sound: true },
        Some(raw) => read(raw, section.place(key), problems),
    }
}

fn read(raw: &Raw<'_>, place: String, problems: &mut Problems) -> Given<Match> {
    let at = raw.span();
    let unsound = Given { value: Match::default(), at: at.clone(), sound: false };
    let DeValue::Table(table) = raw.get_ref() else {
        problems.add(
            &at,
            place,
            format!("is {}, expected a rule like {{ status = [\"2xx\"] }}", kind(raw.get_ref())),
        );
        return unsound;
    };
    let mut section = Section::new(place.clone(), at.clone(), table);
    // A rule without a status would match nothing or everything, depending on who reads it.
    let hint = "expected for example status = [\"2xx\", 404]";
    let statuses = section.required(problems, "status", hint, Vec::new(), |value| {
        list(value, "a list like [\"2xx\", 404]", status)
    });
    let pointer = section.optional(problems, "json", json_pointer);
    let equals = section.optional(problems, "equals", |value| {
        match list(value, "a list of values like [1000]", json_value)? {
            values if values.is_empty() => {
                Err("is empty, expected at least one value like [1000]".to_owned())
            }
            values => Ok(values),
        }
    });
    section.finish(problems);
    let mut sound = statuses.sound && pointer.sound && equals.sound;
    let json = match (pointer.value, equals.value) {
        (Some(pointer), Some(values)) => Some((pointer, values)),
        (None, None) => None,
        _ if !sound => None,
        (Some(_), None) => {
            problems.add(
                &pointer.at,
                place,
                "has json but no equals, expected both, like { json = \"/code\", equals = [1000] }",
            );
            sound = false;
            None
        }
        (None, Some(_)) => {
            problems.add(
                &equals.at,
                place,
                "has equals but no json, expected both, like { json = \"/code\", equals = [1000] }",
            );
            sound = false;
            None
        }
    };
    Given { value: Match { status: statuses.value, json }, at, sound }
}

/// Whether the status alone may prove that the message was not taken. A time-out, a gateway's error or a
/// redirection that some servers act on prove nothing: such an answer stays unknown.
fn may_prove_not_sent(status: u16) -> bool {
    matches!(status, 307 | 308 | 400..=407 | 409..=499 | 503)
}

/// Checks the three rules of a destination against each other and against at-most-once.
pub(super) fn check_together(
    section: &Section<'_, '_>,
    accepted: &Given<Match>,
    rejected: &Given<Match>,
    not_sent: &Given<Match>,
    problems: &mut Problems,
) {
    if accepted.sound && accepted.value.status.is_empty() {
        problems.add(
            &accepted.at,
            section.place("accepted"),
            "lists no status, so that nothing would ever count as sent",
        );
    }
    let plain = |rule: &Given<Match>| rule.sound && rule.value.json.is_none();
    let covers = |rule: &Given<Match>, status: u16| {
        rule.value.status.iter().any(|range| (range.first..=range.last).contains(&status))
    };
    if plain(not_sent)
        && let Some(status) =
            (200..600).find(|status| covers(not_sent, *status) && !may_prove_not_sent(*status))
    {
        problems.add(
            &not_sent.at,
            section.place("not_sent"),
            format!(
                "status {status} alone does not prove that the message was not taken, and it would be sent again; \
                 leave it out (it is then unknown), or add json and equals"
            ),
        );
    }
    for (one, one_name, other, other_name) in [
        (rejected, "rejected", accepted, "accepted"),
        (not_sent, "not_sent", accepted, "accepted"),
        (not_sent, "not_sent", rejected, "rejected"),
    ] {
        if plain(one)
            && plain(other)
            && let Some(status) = (200..600).find(|status| covers(one, *status) && covers(other, *status))
        {
            let written = if one.at == section.at() { (other, other_name) } else { (one, one_name) };
            problems.add(
                &written.0.at,
                section.place(written.1),
                format!("status {status} is in both {other_name} and {one_name}, expected in one of them (write both out)"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read as read_value;
    use super::*;

    fn range(first: u16, last: u16) -> StatusRange {
        StatusRange { first, last }
    }

    #[test]
    fn statuses() {
        for (good, expected) in [
            ("200", range(200, 200)),
            ("'2xx'", range(200, 299)),
            ("'5xx'", range(500, 599)),
            ("404", range(404, 404)),
        ] {
            assert_eq!(read_value(good, status), Ok(expected), "{good}");
        }
        for bad in ["100", "600", "-200", "'404'", "'1xx'", "'2XX'", "'xx'", "true", "2.0"] {
            assert!(read_value(bad, status).unwrap_err().contains("\"2xx\""), "{bad}");
        }
    }

    /// The rule in `accepted = …` and the problems.
    fn one(toml: &str) -> (Match, Vec<String>) {
        let (rules, problems) = together(&format!(
            "accepted = {toml}\nrejected = {{ status = [] }}\nnot_sent = {{ status = [] }}"
        ));
        (rules, problems)
    }

    fn together(text: &str) -> (Match, Vec<String>) {
        let table = toml::de::DeTable::parse(text).unwrap();
        let mut problems = Problems::over(text);
        let mut section = Section::new("[x]", 0..0, table.get_ref());
        let accepted = rule(&mut section, "accepted", &[range(200, 299)], &mut problems);
        let rejected = rule(&mut section, "rejected", &[range(400, 400)], &mut problems);
        let not_sent = rule(&mut section, "not_sent", &[range(429, 429)], &mut problems);
        check_together(&section, &accepted, &rejected, &not_sent, &mut problems);
        section.finish(&mut problems);
        let list = match problems.or(std::path::Path::new("f")) {
            Ok(()) => Vec::new(),
            Err(error) => error
                .problems()
                .iter()
                .map(|problem| format!("{}: {}", problem.place, problem.what))
                .collect(),
        };
        (accepted.value, list)
    }

    #[test]
    fn rules() {
        let (rule, problems) =
            one("{ status = ['2xx', 404], json = '/code', equals = [1000, '1000', true, 1.5] }");
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(rule.status, vec![range(200, 299), range(404, 404)]);
        let values = vec![1000.into(), "1000".into(), true.into(), 1.5.into()];
        assert_eq!(rule.json, Some(("/code".to_owned(), values)));

        for (bad, expected) in [
            ("{ status = [99] }", "[x].accepted.status: entry 1 is the number 99"),
            ("{ status = 200 }", "[x].accepted.status: is a number, expected a list"),
            ("{ json = '/code', equals = [1] }", "[x].accepted.status: is missing"),
            ("{ status = [200], json = '/code' }", "[x].accepted: has json but no equals"),
            ("{ status = [200], equals = [1] }", "[x].accepted: has equals but no json"),
            ("{ status = [200], json = '/code', equals = [] }", "[x].accepted.equals: is empty"),
            (
                "{ status = [200], json = '/code', equals = [inf] }",
                "[x].accepted.equals: entry 1 is no number",
            ),
            ("{ status = [200], jsn = '/code' }", "[x].accepted.jsn: unknown key (did you mean json?)"),
            ("{ status = [] }", "[x].accepted: lists no status"),
            ("'2xx'", "[x].accepted: is a text, expected a rule"),
        ] {
            let (_, problems) = one(bad);
            assert_eq!(problems.len(), 1, "{bad}: {problems:?}");
            assert!(problems[0].starts_with(expected), "{bad}: {problems:?}");
        }
    }

    #[test]
    fn rules_must_not_overlap_unless_json_tells_them_apart() {
        assert_eq!(together("").1, Vec::<String>::new());
        assert_eq!(
            together("rejected = { status = ['4xx'] }").1,
            vec![
                "[x].rejected: status 429 is in both rejected and not_sent, expected in one of them (write both out)"
            ]
        );
        let told_apart = "accepted = { status = [200], json = '/c', equals = [0] }\nrejected = { status = [200], json = '/c', equals = [1] }";
        assert_eq!(together(told_apart).1, Vec::<String>::new());
    }

    #[test]
    fn not_sent_needs_proof() {
        for status in ["500", "502", "504", "408", "'5xx'", "301"] {
            let (_, problems) = together(&format!("not_sent = {{ status = [{status}] }}"));
            assert!(problems[0].contains("does not prove"), "{status}: {problems:?}");
        }
        for status in ["401", "429", "503", "307"] {
            assert_eq!(
                together(&format!("not_sent = {{ status = [{status}] }}")).1,
                Vec::<String>::new(),
                "{status}"
            );
        }
        assert_eq!(
            together("not_sent = { status = [500], json = '/c', equals = ['busy'] }").1,
            Vec::<String>::new()
        );
    }
}
