//! The text of onceward.toml: what is wrong is said with its line and no secret; what is right can be used by `run`.

use std::path::Path;

use super::world::{MARK, is_plain};
use crate::config::{FormOnly, Settings, SettingsError};
use crate::vendor::{self, fitness::Fitness};

/// Bytes of a settings file.
pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match read(text) {
        Ok(settings) => usable(&settings, text),
        Err(error) => told(&error, text),
    }
    no_secret_is_echoed(text);
}

fn read(text: &str) -> Result<Settings, SettingsError> {
    Settings::from_text(text, Path::new("/etc/onceward/onceward.toml"), &FormOnly)
}

/// `check` and `run` build every adapter from what was accepted; `enqueue` and `show` the half without a client.
fn usable(settings: &Settings, text: &str) {
    match read(text) {
        Ok(again) => {
            assert_eq!(format!("{again:?}"), format!("{settings:?}"), "the same text, the same settings")
        }
        Err(error) => panic!("accepted, then not: {error}"),
    }
    // The one thing that is judged when an adapter is built is what a template or a file says.
    for destination in &settings.destinations {
        if destination.ca_file.is_none()
            && let Err(why) = vendor::build(destination)
        {
            assert!(why.starts_with("body:"), "accepted, but cannot be built: {why}");
            is_plain(&why);
        }
    }
    if let Err(why) = Fitness::new(settings) {
        assert!(why.contains("body:"), "accepted, but cannot be used: {why}");
    }
    let limits = &settings.relay;
    assert!((1..=1_000).contains(&limits.batch) && (1..=65_536).contains(&limits.channel), "{limits:?}");
}

/// Every problem has a line of the text and is one plain line itself.
fn told(error: &SettingsError, text: &str) {
    assert_eq!(error.exit_code(), 78);
    assert!(!error.problems().is_empty(), "refused without a reason");
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let mut last = 1;
    for problem in error.problems() {
        assert!((last..=lines).contains(&problem.line), "line {} of {lines}, after {last}", problem.line);
        last = problem.line;
        is_plain(&problem.place);
        is_plain(&problem.what);
        assert!(!problem.what.is_empty());
    }
}

/// Whatever stands where a reference to a secret belongs, that text is in no problem: it may be the secret.
fn no_secret_is_echoed(secret: &str) {
    // A JSON text is a TOML text, but for one character.
    let secret = serde_json::Value::from(format!("{MARK}{secret}")).to_string().replace('\u{7f}', "\\u007f");
    let text = format!(
        "[[destination]]\nname = \"a\"\ntype = \"bizppurio\"\nurl = \"https://a.example\"\naccount = \"b\"\n\
         password = {secret}\nfrom = \"0212345678\"\nreports = {{ webhook_secret = {secret} }}\n\
         [[destination]]\nname = \"b\"\ntype = \"http\"\nurl = \"https://b.example\"\n\
         headers = {{ Authorization = {secret}, X-Api-Key = {secret} }}\n\
         [[route]]\nkind = \"*\"\ndestination = \"a\"\n\
         [listen]\nhttp = \"127.0.0.1:7780\"\ntoken = {secret}\n[alert]\nwebhook = {secret}\n"
    );
    match read(&text) {
        // Nothing that begins with the mark is a reference.
        Ok(_) => panic!("a secret in the settings file was accepted"),
        Err(error) => {
            assert!(error.problems().len() >= 5, "{error}");
            assert!(!error.to_string().contains(MARK), "the secret is told: {error}");
        }
    }
}
