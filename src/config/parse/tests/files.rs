//! Files on disk: the sample as `init` leaves it, files that cannot be read, secrets beside them.

use std::os::unix::fs::PermissionsExt;

use super::super::super::{SAMPLE_PASSWORD_FILE, sample};
use super::*;

/// A folder as `init` leaves it.
fn sample_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("onceward.toml");
    std::fs::write(
        &settings,
        sample(Path::new("/var/lib/onceward"), Path::new("/run/onceward/onceward.sock")),
    )
    .unwrap();
    let password = folder.path().join(SAMPLE_PASSWORD_FILE);
    std::fs::write(&password, "sandbox\n").unwrap();
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, settings)
}

#[test]
fn the_sample_loads_with_the_documented_defaults() {
    let (_folder, path) = sample_folder();
    let settings = Settings::load(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_documented_defaults(&settings);
    assert_eq!(settings.agent.state_dir, Path::new("/var/lib/onceward"));
    assert_eq!(settings.listen.socket, Path::new("/run/onceward/onceward.sock"));
    assert_eq!(settings.destinations[0].url, "http://127.0.0.1:7790");
    assert_eq!(settings.destinations[1].url, "http://127.0.0.1:7790/send");
    assert_eq!(bizppurio(&settings, 0).account, "branch01");
    assert_eq!(bizppurio(&settings, 0).password.reveal(), "sandbox");
    assert_http_defaults(http(&settings, 1));
    let routes: Vec<_> =
        settings.routes.iter().map(|route| (route.kind.as_str(), route.destination.as_str())).collect();
    assert_eq!(routes, [("GATEWAY_*", "gateway"), ("*", "bizppurio")]);
}

/// Lines `#key = value` of the sample, which are keys; comments have a space after `#`.
fn uncommented(sample: &str) -> String {
    let bare = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    sample.lines().map(|line| bare(line) + "\n").collect()
}

#[test]
fn what_the_sample_comments_out_are_the_true_defaults() {
    let text = sample(Path::new("/s"), Path::new("/r/o.sock"));
    let all = uncommented(&text);
    assert_ne!(all, text);
    let (as_written, written_out) =
        (from_text(&text), from_text(&all).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(format!("{:?}", as_written.unwrap()), format!("{written_out:?}"));
}

#[test]
fn every_key_is_in_the_sample() {
    // An unknown key makes each section list what it knows; the sample must write each of these.
    let mut section = String::new();
    let (mut with_unknown, mut written) = (String::new(), Vec::new());
    for line in uncommented(&sample(Path::new("/s"), Path::new("/r/o.sock"))).lines() {
        with_unknown.push_str(&format!("{line}\n"));
        if line.starts_with('[') {
            section = format!("{line}{}", written.len());
            with_unknown.push_str("qqqqqqqqqqqqqqq = 1\n");
            written.push((section.clone(), Vec::new()));
        } else if let (Some((key, _)), Some((_, keys))) = (line.split_once(" = "), written.last_mut()) {
            keys.push(key.trim_start_matches("# ").to_owned());
        }
    }
    let found = problems(&with_unknown);
    assert_eq!(found.len(), written.len(), "{found:#?}");
    for (problem, (section, keys)) in found.iter().zip(&written) {
        let (_, known) = problem.split_once("expected one of ").expect("nothing is near the unknown key");
        for key in known.split(", ") {
            assert!(keys.iter().any(|written| written == key), "{section} lacks {key}");
        }
    }
    assert!(!section.is_empty());
}

#[test]
fn odd_paths_are_written_so_that_they_are_read_back() {
    let odd = "/var/lib/a \"b\" \\ '한'\u{7f}\t";
    let settings =
        from_text(&sample(Path::new(odd), Path::new("/r/o.sock"))).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.agent.state_dir, Path::new(odd));
}

#[test]
fn files_that_cannot_be_read_have_their_exit_codes() {
    let (folder, path) = sample_folder();
    let none = Settings::load(&folder.path().join("none.toml")).unwrap_err();
    assert_eq!(none.exit_code(), 66);
    assert!(none.to_string().contains("onceward init"));
    assert_eq!(Settings::load(folder.path()).unwrap_err().exit_code(), 74);
    std::fs::write(&path, b"[agent]\n# \xff\n").unwrap();
    let bytes = Settings::load(&path).unwrap_err();
    assert_eq!((bytes.exit_code(), bytes.problems()[0].line), (78, 2));
}

#[test]
fn without_secrets_only_the_form_of_references_is_checked() {
    let (folder, path) = sample_folder();
    std::fs::remove_file(folder.path().join(SAMPLE_PASSWORD_FILE)).unwrap();
    let error = Settings::load(&path).unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("[[destination]].password: file:"), "{error}");
    assert!(Settings::load_without_secrets(&path).is_ok());
    let text = std::fs::read_to_string(&path).unwrap().replace("file:bizppurio.password", "hunter2");
    std::fs::write(&path, text).unwrap();
    assert_eq!(Settings::load_without_secrets(&path).unwrap_err().exit_code(), 78);
}
