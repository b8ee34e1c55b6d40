//! Secrets: references as written in settings, and the one seam through which values come in.
//!
//! A value is never echoed, whatever is wrong with it; nor is text that stands where a reference should, since
//! that is most likely the secret itself.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::Secret;
use super::element::quiet_text;

/// How to write a secret, for error texts.
pub(super) const HOW: &str =
    "a reference: \"credential:NAME\" (systemd LoadCredential), \"file:PATH\" or \"env:NAME\"";

/// Largest secret, bytes; a token or a password has a few hundred at most.
const SECRET_BYTES_MAX: usize = 16 * 1024;

/// Where a secret is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretReference {
    /// A file of this name in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// A file that only its owner may read.
    File(PathBuf),
    /// An environment variable.
    Env(String),
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretReference::Credential(name) => write!(f, "credential:{name}"),
            SecretReference::File(path) => write!(f, "file:{}", path.display()),
            SecretReference::Env(name) => write!(f, "env:{name}"),
        }
    }
}

/// Where secret values come from: the system, a stub in tests, or nowhere.
pub trait SecretSource {
    /// The text at the reference as it stands there; `None` = this source reads none (references are checked
    /// for form only). An error says what is wrong and what to do, never a value.
    fn read(&self, reference: &SecretReference) -> Result<Option<String>, String>;
}

/// Reads no secret at all: for commands that talk to no vendor.
pub struct FormOnly;

impl SecretSource for FormOnly {
    fn read(&self, _: &SecretReference) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// The machine's own: files, the environment, systemd's credentials directory.
pub struct SystemSecrets {
    credentials_directory: Option<PathBuf>,
}

impl SystemSecrets {
    /// With the directory that systemd names in the environment, if it does.
    pub fn from_environment() -> Self {
        Self::with_credentials(std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from))
    }

    /// With this credentials directory.
    pub fn with_credentials(credentials_directory: Option<PathBuf>) -> Self {
        Self { credentials_directory }
    }
}

impl SecretSource for SystemSecrets {
    fn read(&self, reference: &SecretReference) -> Result<Option<String>, String> {
        match reference {
            SecretReference::Credential(name) => {
                let directory = self.credentials_directory.as_ref().ok_or_else(|| {
                    format!(
                        "{reference} cannot be read: $CREDENTIALS_DIRECTORY is not set; start under systemd with \
                         LoadCredential={name}:PATH, or use file:PATH"
                    )
                })?;
                // systemd guards the directory itself; its modes are not ours to judge.
                file(&directory.join(name), Guard::Systemd).map_err(|what| format!("{reference} {what}"))
            }
            SecretReference::File(path) => file(path, Guard::OwnerOnly).map_err(|what| format!("{reference} {what}")),
            SecretReference::Env(name) => match std::env::var(name) {
                Ok(value) => Ok(value),
                Err(std::env::VarError::NotPresent) => Err(format!("{reference} cannot be read: the variable is not set")),
                Err(std::env::VarError::NotUnicode(_)) => Err(format!("{reference} is not UTF-8 text")),
            },
        }
        .map(Some)
    }
}

/// Who sees to it that nobody else reads the file.
#[derive(PartialEq)]
enum Guard {
    OwnerOnly,
    Systemd,
}

/// The text of a secret file.
fn file(path: &Path, guard: Guard) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // Looked at by name first: opening a FIFO would wait for a writer that may never come.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is not a plain file".to_owned());
    }
    let open = std::fs::File::open(path).map_err(unreadable)?;
    let metadata = open.metadata().map_err(unreadable)?;
    if guard == Guard::OwnerOnly && metadata.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "is open to others than its owner (mode {:04o}); run: chmod 600 '{}'",
            metadata.mode() & 0o7777,
            path.display()
        ));
    }
    let mut bytes = Vec::new();
    open.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > SECRET_BYTES_MAX {
        return Err(format!("is longer than {SECRET_BYTES_MAX} bytes, expected one line"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

/// Reads secrets while settings are parsed.
pub(super) struct SecretReader<'s> {
    /// Where values come from.
    pub(super) source: &'s dyn SecretSource,
    /// Relative `file:` paths are beside the settings file.
    pub(super) beside: &'s Path,
}

impl SecretReader<'_> {
    /// Reads a field that must be a reference. The check sees the value and may refuse it, without echoing it;
    /// it is not asked when values are not read.
    pub(super) fn secret(
        &self,
        value: &DeValue<'_>,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<Secret, String> {
        let written = quiet_text(value, HOW)?;
        let reference = self.reference(written)?.ok_or_else(|| {
            format!("is text in the file (not shown here), expected {HOW}; move the secret there and out of this file")
        })?;
        self.read(&reference, check)
    }

    /// Reads a reference that was found.
    pub(super) fn read(
        &self,
        reference: &SecretReference,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<Secret, String> {
        let Some(text) = self.source.read(reference)? else { return Ok(Secret::new(String::new())) };
        let line = one_line(&text).map_err(|what| format!("{reference} {what}"))?;
        check(line).map_err(|what| format!("{reference} {what}"))?;
        Ok(Secret::new(line.to_owned()))
    }

    /// The reference that the text is; `None` when it is none.
    pub(super) fn reference(&self, written: &str) -> Result<Option<SecretReference>, String> {
        let Some((place, name)) = written.split_once(':') else { return Ok(None) };
        let named = |allowed: fn(char) -> bool| {
            !name.is_empty() && name.len() <= 255 && name.chars().all(allowed) && !name.starts_with('.')
        };
        // The name is not echoed: somebody may have written the secret itself after the colon.
        match place {
            "credential" if named(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) => {
                Ok(Some(SecretReference::Credential(name.to_owned())))
            }
            "credential" => {
                Err("has no usable name after \"credential:\", expected letters, digits and . _ -".to_owned())
            }
            "file" if !name.is_empty() && !name.contains('\0') => {
                Ok(Some(SecretReference::File(self.beside.join(name))))
            }
            "file" => Err("has no path after \"file:\"".to_owned()),
            "env"
                if named(|c| c.is_ascii_alphanumeric() || c == '_')
                    && !name.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                Ok(Some(SecretReference::Env(name.to_owned())))
            }
            "env" => Err("has no usable name after \"env:\", expected letters, digits and _".to_owned()),
            _ => Ok(None),
        }
    }
}

/// The one line of a secret, its newline at the end trimmed.
fn one_line(text: &str) -> Result<&str, String> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.trim().is_empty() {
        return Err("is empty, expected one line".to_owned());
    }
    if line.contains(['\n', '\r']) {
        return Err("has more than one line, expected one".to_owned());
    }
    if line.chars().any(|character| character.is_control() && character != '\t') {
        return Err("has control characters, expected one line of text".to_owned());
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read;
    use super::*;

    struct Fixed(&'static str);
    impl SecretSource for Fixed {
        fn read(&self, _: &SecretReference) -> Result<Option<String>, String> {
            Ok(Some(self.0.to_owned()))
        }
    }

    fn secret_from(toml: &str, source: &dyn SecretSource, beside: &Path) -> Result<Secret, String> {
        let reader = SecretReader { source, beside };
        read(toml, |value| reader.secret(value, |_| Ok(())))
    }

    #[test]
    fn references_are_told_apart() {
        let reader = SecretReader { source: &FormOnly, beside: Path::new("/etc/onceward") };
        for (text, expected) in [
            ("credential:gw", Some(SecretReference::Credential("gw".into()))),
            ("file:gw.key", Some(SecretReference::File("/etc/onceward/gw.key".into()))),
            ("file:/run/x", Some(SecretReference::File("/run/x".into()))),
            ("env:GW_KEY", Some(SecretReference::Env("GW_KEY".into()))),
            ("Bearer abc", None),
            ("hunter2", None),
            ("vault:x", None),
        ] {
            assert_eq!(reader.reference(text), Ok(expected), "{text}");
        }
        for bad in ["credential:", "credential:a/b", "credential:..", "file:", "env:", "env:A B", "env:1A"] {
            assert!(reader.reference(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_in_the_file_is_refused_and_never_echoed() {
        for bad in [
            "'hunter2'",
            "['hunter2']",
            "'credential:hunter2!'",
            "'env:hunter2!'",
            "{ a = 'hunter2' }",
            "'https://hunter2'",
        ] {
            let what = secret_from(bad, &Fixed("x"), Path::new("/")).unwrap_err();
            assert!(!what.contains("hunter2"), "{bad}: {what}");
        }
        assert!(
            secret_from("'hunter2'", &Fixed("x"), Path::new("/"))
                .unwrap_err()
                .contains("\"credential:NAME\"")
        );
        assert!(!secret_from("12345678", &Fixed("x"), Path::new("/")).unwrap_err().contains("1234"));
    }

    #[test]
    fn values_are_one_line_that_is_not_empty() {
        for (text, value) in
            [("abc", "abc"), ("abc\n", "abc"), ("abc\r\n", "abc"), ("a b", "a b"), (" a ", " a ")]
        {
            assert_eq!(one_line(text), Ok(value), "{text:?}");
        }
        for text in ["", "\n", " \n", "a\nb", "a\n\n", "a\rb", "a\0"] {
            assert!(one_line(text).is_err(), "{text:?}");
        }
        let what = secret_from("'env:X'", &Fixed("hunter2\nhunter2"), Path::new("/")).unwrap_err();
        assert_eq!(what, "env:X has more than one line, expected one");
    }

    #[test]
    fn files_are_for_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gw");
        std::fs::write(&path, "hunter2\n").unwrap();
        let source = SystemSecrets::with_credentials(None);
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let came = secret_from("'file:gw'", &source, folder.path());
            assert_eq!(came.is_ok(), good, "{mode:o}");
            match came {
                Ok(secret) => assert_eq!(secret.reveal(), "hunter2"),
                Err(what) => assert!(what.contains(&format!("chmod 600 '{}'", path.display())), "{what}"),
            }
        }
    }

    #[test]
    fn other_files_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let source = SystemSecrets::with_credentials(Some(folder.path().to_path_buf()));
        std::fs::write(folder.path().join("gw"), "hunter2\n").unwrap();
        std::fs::write(folder.path().join("long"), "x".repeat(SECRET_BYTES_MAX + 1)).unwrap();
        std::fs::write(folder.path().join("bytes"), [0xff, 0xfe]).unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        let credential = |name: &str| secret_from(&format!("'credential:{name}'"), &source, Path::new("/"));
        assert_eq!(credential("gw").unwrap().reveal(), "hunter2");
        for (name, expected) in [
            ("none", "No such file"),
            ("long", "longer than"),
            ("bytes", "not UTF-8"),
            ("folder", "not a plain file"),
        ] {
            let what = credential(name).unwrap_err();
            assert!(what.starts_with(&format!("credential:{name} ")) && what.contains(expected), "{what}");
        }
        let unset = secret_from("'credential:gw'", &SystemSecrets::with_credentials(None), Path::new("/"));
        assert!(unset.unwrap_err().contains("LoadCredential=gw:PATH"));
        let variable = secret_from("'env:ONCEWARD_TEST_THAT_IS_NOT_SET'", &source, Path::new("/"));
        assert!(variable.unwrap_err().contains("not set"));
    }

    #[test]
    fn form_only_reads_nothing_and_asks_no_check() {
        let reader = SecretReader { source: &FormOnly, beside: Path::new("/") };
        let secret = read("'file:/none'", |value| reader.secret(value, |_| Err("asked".to_owned())));
        assert_eq!(secret.unwrap().reveal(), "");
    }
}
