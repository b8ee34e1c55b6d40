//! What must hold in every world, and the two ways of looking: `stateright` for what must always hold, and a
//! walk backwards from the ends for "it always can end".

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Instant;

use onceward::lifecycle::{InboxState, OutboxState};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::protocol::{Mistake, Step};
use crate::world::{Hand, World};

/// The protocol as a model, with at most one mistake seeded.
#[derive(Clone, Copy)]
pub struct Protocol {
    pub mistake: Option<Mistake>,
}

pub const ONE_ARRIVAL: &str = "at most one arrival";
pub const A_CALL_HAS_ITS_ROW: &str = "a call has its row";
pub const A_RECORD_STAYS: &str = "no message without a live or final record";
pub const FINAL_IS_FINAL: &str = "final is final";
pub const NO_LIE: &str = "the inbox says what is true";

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // Equal hands have equal steps: one of them is enough.
        let twins = world.hands[0] == world.hands[1];
        steps.extend(Step::all().into_iter().filter(|step| !(twins && step.is_of_the_second_hand())));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(step, self.mistake).filter(|next| next != world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_ARRIVAL, |_, world: &World| world.arrivals <= 1),
            // The guard stands before the call and as long as anything of it may still arrive.
            Property::always(A_CALL_HAS_ITS_ROW, |_, world: &World| {
                let calling = world.hands.iter().any(|hand| matches!(hand, Hand::Calling(_)));
                !(calling || world.strays > 0 || world.arrivals > 0) || world.guard.is_some()
            }),
            Property::always(A_RECORD_STAYS, |_, world: &World| match world.row {
                None => !world.produced || (world.purged && world.closed.is_some()),
                // PUBLISHED says "the inbox has it".
                Some(row) if row.state == OutboxState::Published => world.guard.is_some() || world.rearm_note,
                Some(_) => true,
            }),
            Property::always(FINAL_IS_FINAL, |_, world: &World| {
                let row = world.row.zip(world.closed).is_none_or(|(row, closed)| row.state == closed);
                let guard = match (world.told, world.guard) {
                    (None, _) => true,
                    (Some(told), Some(guard)) => guard.state == told,
                    (Some(_), None) => false,
                };
                row && guard
            }),
            Property::always(NO_LIE, |_, world: &World| match world.guard.map(|guard| guard.state) {
                Some(InboxState::Sent) => world.arrivals > 0 && world.accepted == Some(true),
                Some(InboxState::Failed) => world.accepted != Some(true),
                _ => true,
            }),
            // The model is not empty: all of this does happen.
            Property::sometimes("sent", |_, world: &World| ended(world, InboxState::Sent)),
            Property::sometimes("refused for good", |_, world: &World| ended(world, InboxState::Failed)),
            Property::sometimes("unknown, and it had arrived", |_, world: &World| {
                ended(world, InboxState::Error) && world.arrivals == 1
            }),
            Property::sometimes("unknown, and it had not", |_, world: &World| {
                ended(world, InboxState::Error) && world.arrivals == 0
            }),
            Property::sometimes("two workers hold the same message", |_, world: &World| {
                !world.hands.contains(&Hand::Idle)
            }),
            Property::sometimes("a report settles what a crash left", |_, world: &World| {
                !world.up && world.told == Some(InboxState::Sent)
            }),
        ]
    }
}

fn ended(world: &World, state: InboxState) -> bool {
    world.row.is_some_and(|row| row.state == OutboxState::Published)
        && world.guard.is_some_and(|guard| guard.state == state)
}

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    pub worlds: usize,
    pub steps: usize,
    pub depth: usize,
}

/// Every world of the protocol: panics with the shortest path to a world that breaks a rule.
pub fn explore(protocol: Protocol) -> Explored {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    Explored {
        worlds: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
    }
}

/// A short way to a world in which the mistake breaks the rule, if there is one, and how many worlds were
/// looked at.
pub fn broken(mistake: Mistake, rule: &'static str) -> (Option<Vec<Step>>, usize) {
    let protocol = Protocol { mistake: Some(mistake) };
    let checker = protocol.checker().finish_when(HasDiscoveries::AllOf([rule].into())).spawn_bfs().join();
    (checker.discovery(rule).map(|path| path.into_actions()), checker.unique_state_count())
}

/// Worlds from which no way without further faults leads to an end; the first with a way to it.
pub struct Stuck {
    pub worlds: usize,
    pub of: usize,
    pub first: Option<Vec<Step>>,
}

/// Walks backwards from all worlds that have ended, over steps that happen by themselves. (`stateright`'s own
/// *eventually* does not look into cycles, and this protocol has many.)
pub fn stuck(protocol: Protocol) -> Stuck {
    let begun = Instant::now();
    // Worlds are known by a 64-bit hash, as in `stateright`; only those still to be looked at are kept whole.
    let hash = |world: &World| {
        let mut hasher = std::hash::DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let can_begin = |world: &World| world.has_ended() || !world.produced;
    let mut index: HashMap<u64, u32> = HashMap::new();
    let mut came_by: Vec<Option<(u32, Step)>> = Vec::new();
    let mut can_end: Vec<bool> = Vec::new();
    let mut backwards: Vec<(u32, u32)> = Vec::new();
    let mut frontier: VecDeque<(u32, World)> = VecDeque::new();
    for world in protocol.init_states() {
        index.insert(hash(&world), 0);
        came_by.push(None);
        can_end.push(can_begin(&world));
        frontier.push_back((0, world));
    }
    let mut steps = Vec::new();
    while let Some((at, world)) = frontier.pop_front() {
        steps.clear();
        protocol.actions(&world, &mut steps);
        for step in steps.drain(..) {
            let Some(next) = protocol.next_state(&world, step) else { continue };
            let new = index.len() as u32;
            let to = *index.entry(hash(&next)).or_insert(new);
            if to == new {
                came_by.push(Some((at, step)));
                can_end.push(can_begin(&next));
                frontier.push_back((to, next));
            }
            if step.is_progress() {
                backwards.push((to, at));
            }
        }
    }
    backwards.sort_unstable();
    let mut open: Vec<u32> = (0..can_end.len() as u32).filter(|at| can_end[*at as usize]).collect();
    while let Some(to) = open.pop() {
        let begin = backwards.partition_point(|(end, _)| *end < to);
        for (_, from) in backwards[begin..].iter().take_while(|(end, _)| *end == to) {
            if !std::mem::replace(&mut can_end[*from as usize], true) {
                open.push(*from);
            }
        }
    }
    let first = can_end.iter().position(|can| !can).map(|mut at| {
        let mut path = Vec::new();
        while let Some((from, step)) = came_by[at] {
            path.push(step);
            at = from as usize;
        }
        path.reverse();
        path
    });
    let worlds = can_end.iter().filter(|can| !**can).count();
    println!("{} worlds walked back from their ends in {:?}", can_end.len(), begun.elapsed());
    Stuck { worlds, of: can_end.len(), first }
}
