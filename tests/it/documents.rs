//! PROOF.md's table of F1-F32 names the tests that there are: none forgotten, none made up. README names what an
//! application's file must not have of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The names of all functions below a folder.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            functions(&entry, into);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&entry).expect("readable");
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            into.extend(names.map(str::to_owned));
        }
    }
}

/// `f03_f05_a_death` stands for rows 3 and 5.
fn rows_of(name: &str) -> Vec<u32> {
    name.split('_').map_while(|part| part.strip_prefix('f')?.parse().ok()).collect()
}

#[test]
fn the_proofs_table_of_the_failure_rows_names_the_tests_that_there_are() {
    let mut all = BTreeSet::new();
    for folder in ["src", "tests"] {
        functions(&Path::new(ROOT).join(folder), &mut all);
    }
    let document = std::fs::read_to_string(Path::new(ROOT).join("PROOF.md")).expect("it is there");
    let mut table: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for line in document.lines() {
        let Some(row) = line.strip_prefix("| F").and_then(|rest| rest.split(' ').next()?.parse().ok()) else {
            continue;
        };
        let named = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(table.insert(row, named).is_none(), "F{row} stands twice");
    }
    assert_eq!(
        table.keys().copied().collect::<Vec<_>>(),
        (1..=32).collect::<Vec<_>>(),
        "one line for each row"
    );
    for (row, named) in &table {
        for name in named {
            assert!(all.contains(name), "F{row} names `{name}`, which is no test");
        }
        let numbered: Vec<&String> = all.iter().filter(|name| rows_of(name).contains(row)).collect();
        assert!(!numbered.is_empty(), "no test has the number of F{row} in its name");
        for name in numbered {
            assert!(named.contains(name), "F{row}: `{name}` is missing in PROOF.md");
        }
    }
}

#[test]
fn the_readme_names_the_tables_and_views_that_an_application_must_not_have() {
    let world = crate::support::World::new();
    let file = crate::f_source::app(&world, "shop", "wal");
    crate::f_source::add(&world, "shop", &file);
    let installed: BTreeSet<String> = rusqlite::Connection::open(&file)
        .expect("opens")
        .prepare("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name <> 'orders' AND name NOT LIKE 'sqlite_%'")
        .and_then(|mut names| names.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("it is there");
    let line = readme.lines().find(|line| line.starts_with("The names are the tables ")).expect("the list");
    let list = line.split(", and those of").next().unwrap_or(line);
    let named: BTreeSet<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(named, installed);
    for own in ["CREATE TABLE Audit (x)", "CREATE VIEW v_today AS SELECT 1"] {
        let other = crate::f_source::app(&world, "other", "wal");
        let connection = rusqlite::Connection::open(&other).expect("opens");
        connection.execute_batch(own).expect("made");
        let path = other.to_str().expect("UTF-8");
        let (code, _, error) = world.onceward(&["source", "add", "other", path]);
        assert!(code != 0 && error.contains("names that onceward needs"), "{own}: {code} {error}");
        std::fs::remove_file(&other).expect("removed");
    }
}
