//! Every outbox that this agent serves, its own file and the listed sources: which of them has a message, and opening it
//! for whoever acts on one message. The command line, the local API and the room that opens rows again share it.
//!
//! A row id means something in its own file only, a key too; a message id is one message's wherever it stands. Opening
//! a source for a verb sees that it is the file that was added and this agent's: what the inbox says of a message is no
//! word about another agent's file. So a key is looked for in all files, and where several have it nobody guesses. Never:
//! writes a row, keeps a file open, waits long for a source where the agent's own file has an answer.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::db::{self, DbError, Durability, Part};
use crate::limits::KEY_ELSEWHERE_LOCK_WAIT;
use crate::source;
use crate::store::source::{self as list, Source};
use crate::store::{meta, outbox};

/// One outbox file.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    /// `None` = the agent's own.
    source: Option<Listed>,
}

#[derive(Clone, Debug)]
struct Listed {
    name: String,
    source_id: String,
    agent_id: Option<String>,
}

impl Listed {
    /// Whether the file says that it is the one that was added, and this agent's.
    fn is_ours(&self, file: &Connection) -> rusqlite::Result<bool> {
        let Some(agent_id) = &self.agent_id else { return Ok(false) };
        source::is_served_by(file, &self.source_id, agent_id)
    }
}

impl File {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The source's name; `None` = the agent's own outbox.db.
    pub fn source(&self) -> Option<&str> {
        self.source.as_ref().map(|listed| listed.name.as_str())
    }

    /// For looking.
    pub fn reader(&self) -> Result<Connection, DbError> {
        match self.source {
            None => db::open_reader(&self.path, Part::Outbox),
            Some(_) => source::open_reader(&self.path),
        }
    }

    /// What tells it from every other file, whatever its name; empty for the agent's own.
    pub fn source_id(&self) -> &str {
        self.source.as_ref().map_or("", |listed| &listed.source_id)
    }

    /// For a look now and then by the agent: waits hardly for a lock. `None` = nothing can be said of it now, be it that
    /// it cannot be read or that it is not the file that was added.
    pub fn glance(&self) -> Option<Connection> {
        let opened = match &self.source {
            None => db::open_reader(&self.path, Part::Outbox),
            Some(_) => source::open_glance(&self.path),
        };
        let connection = opened.map_err(|error| log::debug!("not looked at: {error}")).ok()?;
        if let Some(listed) = &self.source {
            listed.is_ours(&connection).ok().filter(|ours| *ours)?;
        }
        Some(connection)
    }

    /// For a person's word, which is on the disk when its commit returns.
    pub fn writer(&self) -> Result<Connection, DbError> {
        let Some(listed) = &self.source else {
            return db::open_writer(&self.path, Part::Outbox, Durability::Full);
        };
        let sqlite = |error| DbError::sqlite(&self.path, error);
        let connection = source::open_writer(&self.path)?;
        connection.execute_batch("PRAGMA synchronous = FULL").map_err(sqlite)?;
        if !listed.is_ours(&connection).map_err(sqlite)? {
            return Err(source::not_ours(&self.path, &listed.name));
        }
        Ok(connection)
    }

    /// Whether it has a message of this id (exactly), or of this key. `hasty`: a lock is hardly waited for.
    fn has(&self, id_or_key: &str, hasty: bool) -> Result<Option<Match>, DbError> {
        let sqlite = |error| DbError::sqlite(&self.path, error);
        let reader = if hasty {
            let glance = db::open_foreign_glance(&self.path)?;
            glance.busy_timeout(KEY_ELSEWHERE_LOCK_WAIT).map_err(sqlite)?;
            glance
        } else {
            self.reader()?
        };
        let found = outbox::find(&reader, id_or_key).map_err(sqlite)?;
        Ok(found.map(|(id, _)| if id.as_str() == id_or_key { Match::Id } else { Match::Key }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    Id,
    Key,
}

/// Why no file was chosen, for people; `status` is the local API's.
#[derive(Debug, thiserror::Error)]
pub enum NoFile {
    /// No such source.
    #[error("no source is named {name:?}; {there}", there = there_are(.there))]
    NoSource {
        /// As it was asked for.
        name: String,
        /// All there are.
        there: Vec<String>,
    },
    /// More than one file has a message of this key.
    #[error("{} each have such a message: give its message id, or name the source (--source NAME, or source=NAME in the local API)", .0.join(", "))]
    Several(Vec<String>),
    /// None that could be read has it.
    #[error("no message has this id or key in what could be read; {0}")]
    Unread(String),
    /// The agent's own file cannot be used.
    #[error(transparent)]
    Own(#[from] DbError),
}

impl NoFile {
    /// As a status of the local API.
    pub fn status(&self) -> u16 {
        match self {
            Self::NoSource { .. } => 404,
            Self::Several(_) => 409,
            Self::Unread(_) | Self::Own(_) => 503,
        }
    }
}

fn there_are(names: &[String]) -> String {
    if names.is_empty() { "there are none".into() } else { format!("there are: {}", names.join(", ")) }
}

/// All of them, the agent's own first, then by name.
#[derive(Clone, Debug)]
pub struct Outboxes(Vec<File>);

impl Outboxes {
    /// As the inbox lists them now; without it (where this user may not read it) the agent's own alone.
    pub fn read(own: &Path, inbox: Option<&Connection>) -> rusqlite::Result<Self> {
        let mut files = vec![File { path: own.to_owned(), source: None }];
        if let Some(inbox) = inbox {
            let agent_id = meta::get(inbox, "agent_id")?;
            files.extend(list::list(inbox)?.into_iter().map(|Source { name, file, source_id, .. }| File {
                path: file.into(),
                source: Some(Listed { name, source_id, agent_id: agent_id.clone() }),
            }));
        }
        Ok(Self(files))
    }

    /// The agent's own.
    pub fn own(&self) -> &File {
        &self.0[0]
    }

    /// Each of them.
    pub fn files(&self) -> &[File] {
        &self.0
    }

    /// Names of the sources.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(File::source)
    }

    /// A hasty look into each source, and the names of those of which nothing can be said now: these hide nothing of the
    /// others, and whoever adds up says that they are missing.
    pub fn each_source(
        &self,
        look: &mut dyn FnMut(&str, &Connection) -> rusqlite::Result<()>,
    ) -> Vec<String> {
        let mut unread = Vec::new();
        for file in &self.0 {
            let Some(name) = file.source() else { continue };
            let looked = file.glance().map(|reader| look(name, &reader));
            if let Some(Err(error)) = &looked {
                log::debug!("source {name}: not looked at: {error}");
            }
            if !matches!(looked, Some(Ok(()))) {
                unread.push(name.to_owned());
            }
        }
        unread
    }

    /// The one of a name, or the agent's own.
    pub fn named(&self, source: Option<&str>) -> Result<&File, NoFile> {
        let found = self.0.iter().find(|file| file.source() == source);
        found.ok_or_else(|| NoFile::NoSource {
            name: source.unwrap_or_default().to_owned(),
            there: self.0.iter().filter_map(File::source).map(str::to_owned).collect(),
        })
    }

    /// The one of a name; else the one that has the message; else the agent's own, which will say that it has not.
    ///
    /// An id in the agent's own file is enough. A key there is looked for in the sources, too; one of these that cannot
    /// be read does not keep a person from the message that is known.
    pub fn choose(&self, source: Option<&str>, id_or_key: &str) -> Result<&File, NoFile> {
        if source.is_some() {
            return self.named(source);
        }
        let (mut here, mut unread) = (Vec::new(), None);
        for file in &self.0 {
            match (file.has(id_or_key, !here.is_empty()), file.source()) {
                (Ok(Some(Match::Id)), None) => return Ok(file),
                (Err(error), None) => return Err(error.into()),
                (Ok(Some(how)), _) => here.push((how, file)),
                (Ok(None), _) => {}
                (Err(error), Some(name)) => unread = Some(format!("source {name} cannot be read: {error}")),
            }
        }
        if here.iter().any(|(how, _)| *how == Match::Id) {
            here.retain(|(how, _)| *how == Match::Id);
        }
        match (here.as_slice(), unread) {
            ([(_, file)], _) => Ok(file),
            ([], Some(why)) => Err(NoFile::Unread(why)),
            ([], None) => Ok(self.own()),
            (several, _) => Err(NoFile::Several(
                several.iter().map(|(_, file)| file.source().unwrap_or("outbox.db").to_owned()).collect(),
            )),
        }
    }
}
