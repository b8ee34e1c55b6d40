//! A source that is added again.

use crate::f_source::{add, app, state};
use crate::support::World;

#[test]
fn a_source_that_is_added_again_is_shown_as_the_agent_sees_it() {
    let world = World::listening("");
    let file = app(&world, "shop", "wal");
    add(&world, "shop", &file);
    let agent = world.agent();
    world.wait("served", |world| state(world, "shop") == "OK");
    let said = add(&world, "shop", &file);
    assert!(said.contains("the agent serves it"), "{said}");
    assert_eq!(state(&world, "shop"), "OK");
    // Forgotten and back before the agent has noticed.
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    let said = add(&world, "shop", &file);
    assert!(said.contains("the agent serves it"), "{said}");
    assert_eq!(state(&world, "shop"), "OK");
    agent.stop();
}
