//! Pure: which destination a kind goes to. First match wins; `*` stands for any text at any place.

use crate::config::Route;

/// The destination of a kind, if a route names one.
pub fn destination<'a>(routes: &'a [Route], kind: &str) -> Option<&'a str> {
    routes.iter().find(|route| matches(&route.kind, kind)).map(|route| route.destination.as_str())
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty(); // no star at all
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_anywhere() {
        for (pattern, text, expected) in [
            ("GRADE_*", "GRADE_RENEWAL", true),
            ("GRADE_*", "GRADE_", true),
            ("GRADE_*", "UPGRADE_X", false),
            ("*", "", true),
            ("*_SMS", "ORDER_SMS", true),
            ("*_SMS", "ORDER_SMS_2", false),
            ("A*B*C", "A1B2C", true),
            ("A*B*C", "A1C2B", false),
            ("A*A", "A", false),
            ("EXACT", "EXACT", true),
            ("EXACT", "EXACTLY", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }
}
