//! Work of the inbox's writer that somebody asked for: one transaction, and whoever asked is told after its commit.
//!
//! The one way in which a person's verb reaches the inbox of a running agent (`settle`, `pause`, `resume`). Never
//! decides: what is done is the caller's closure. Lost with a failed commit: who asked is told, and asks again.

use crossbeam_channel::{Receiver, Sender};
use rusqlite::Connection;

use crate::db::writer::Work;

/// What is written.
type Act<T> = Box<dyn FnMut(&Connection) -> rusqlite::Result<T> + Send>;
/// What follows the commit.
type After<T> = Box<dyn FnOnce(&T) + Send>;

/// One deed.
pub struct Deed<T> {
    act: Act<T>,
    after: Option<After<T>>,
    done: Option<T>,
    reply: Sender<Result<T, String>>,
}

impl<T: Send + 'static> Deed<T> {
    /// The work, and where its result comes after the commit. `after` runs on the writer's thread in the order of the
    /// commits, also where nobody waits any more; it must be short. `act` must be repeatable.
    pub fn work(
        act: impl FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
        after: impl FnOnce(&T) + Send + 'static,
    ) -> (Box<dyn Work>, Receiver<Result<T, String>>) {
        let (reply, result) = crossbeam_channel::bounded(1);
        let deed = Self { act: Box::new(act), after: Some(Box::new(after)), done: None, reply };
        (Box::new(deed), result)
    }
}

impl<T: Send> Work for Deed<T> {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.done = Some((self.act)(connection)?);
        Ok(())
    }
    fn committed(mut self: Box<Self>) {
        let Some(done) = self.done.take() else { return };
        if let Some(after) = self.after.take() {
            after(&done);
        }
        let _ = self.reply.send(Ok(done));
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(Err(why.to_owned()));
    }
    fn must_land(&self) -> bool {
        false
    }
}
