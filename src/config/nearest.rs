//! "Did you mean": the known word nearest to a mistyped one.
//!
//! Pure; never guesses when nothing is near.

/// The candidate within a third of the word's length (at least one edit), if any.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // A pasted essay in place of a key needs no suggestion, and the distance is quadratic.
    if word.len() > 64 {
        return None;
    }
    let edits_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean X?)`, or nothing.
pub(super) fn suggestion<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    nearest(word, candidates).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default()
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
pub(super) fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(from != to);
            let mut edits = replaced.min(last[column + 1] + 1).min(line[column] + 1);
            if row > 0 && column > 0 && *from == right[column - 1] && left[row - 1] == *to {
                edits = edits.min(before[column - 1] + 1);
            }
            line.push(edits);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let keys = ["batch", "lease", "poll", "channel"];
        for (word, expected) in [
            ("bach", Some("batch")),
            ("leaes", Some("lease")),
            ("Poll", Some("poll")),
            ("chanel", Some("channel")),
            ("threads", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(suggestion("bach", keys), " (did you mean batch?)");
    }

    #[test]
    fn distance_counts_edits() {
        for (left, right, edits) in [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("kitten", "sitting", 3)] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
            assert_eq!(distance(right, left), edits, "{right} {left}");
        }
    }
}
