//! The rule of this folder: a file per table, verbs only, writing needs the writer's transaction.
pub mod inbox;
