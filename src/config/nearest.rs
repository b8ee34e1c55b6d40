//! Guesses which known word a mistyped one was meant to be. Pure; never decides anything by itself.

/// Words longer than this are not compared, characters: nothing known is near that long.
const WORD_CHARS_MAX: usize = 60;

/// The known word that is nearest to `word`, if one is near enough to be a slip: at most a third of it differs
/// (one letter at least, three at most). Capitals and `-` for `_` cost nothing.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = plain(word);
    if word.is_empty() || word.len() > WORD_CHARS_MAX {
        return None;
    }
    let allowed = (word.len() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn plain(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
fn distance(from: &[char], to: &[char]) -> usize {
    let width = to.len() + 1;
    let mut above: Vec<usize> = vec![0; width];
    let mut last: Vec<usize> = (0..width).collect();
    for (row, from_char) in from.iter().enumerate() {
        let mut line = vec![row + 1; width];
        for (column, to_char) in to.iter().enumerate() {
            let replaced = last[column] + usize::from(from_char != to_char);
            let mut best = replaced.min(last[column + 1] + 1).min(line[column] + 1);
            let swapped = row > 0 && column > 0 && *from_char == to[column - 1] && from[row - 1] == *to_char;
            if swapped {
                best = best.min(above[column - 1] + 1);
            }
            line[column + 1] = best;
        }
        above = std::mem::replace(&mut last, line);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, expected: Option<&str>) {
        let known = ["timeout", "threads", "rate", "keep_alive", "connect_timeout", "url"];
        assert_eq!(nearest(word, known), expected, "nearest to {word:?}");
    }

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        check("timout", Some("timeout"));
        check("timeotu", Some("timeout"));
        check("Timeout", Some("timeout"));
        check("keep-alive", Some("keep_alive"));
        check("keepalive", Some("keep_alive"));
        check("thread", Some("threads"));
        check("rates", Some("rate"));
        check("ulr", Some("url"));
        check("conect_timeout", Some("connect_timeout"));
        check("speed", None);
        check("", None);
        check(&"t".repeat(500), None);
    }

    #[test]
    fn distances_are_those_counted_by_hand() {
        let count = |a: &str, b: &str| distance(&plain(a), &plain(b));
        assert_eq!(count("", ""), 0);
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("abc", ""), 3);
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!(count("ab", "ba"), 1);
    }
}
