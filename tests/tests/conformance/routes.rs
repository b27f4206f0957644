//! Routes of the proxy: names that belong to the other tier, and what may not be mixed.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::backends::proxy::ROUTED_TO_CORRECTNESS;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::ROUTES => [
        a_routed_name_is_served_by_its_tier,
        a_weaker_tier_than_the_route_is_refused,
        a_stronger_tier_may_be_asked_for,
        the_same_name_in_both_tiers_is_two_locks,
        both_tiers_in_one_command_are_refused,
        a_session_is_served_by_correctness,
    ],
}

fn routed(context: &Context) -> String {
    format!("{ROUTED_TO_CORRECTNESS}{}", context.name("lock"))
}

fn a_routed_name_is_served_by_its_tier(context: &Context) {
    let mut client = context.client();
    let name = routed(context);
    let grant = client.acquire(&name, 30_000);
    assert_eq!(client.info(&name).tier, "CORRECTNESS");
    client.is_refused(&name, 30_000);
    client.release(&name, grant.fence);
    assert_eq!(client.info(&context.name("lock")).tier, "EFFICIENCY");
}

fn a_weaker_tier_than_the_route_is_refused(context: &Context) {
    let mut client = context.client();
    let name = routed(context);
    let commands = [
        words!["LOCK.ACQUIRE", &name, 30_000].to_vec(),
        words!["LOCK.RELEASE", &name, 7].to_vec(),
        words!["LOCK.RENEW", &name, 7, 1_000].to_vec(),
        words!["LOCK.INFO", &name].to_vec(),
        words!["LOCK.MACQUIRE", 1, &name, 30_000].to_vec(),
        words!["LOCK.MRELEASE", 1, &name, 7].to_vec(),
        words!["LOCK.QUEUE", &name].to_vec(),
        words!["LOCK.FORCERELEASE", &name].to_vec(),
    ];
    for mut command in commands {
        command.extend(words!["TIER", "EFFICIENCY"]);
        expect::error(&client.ask(&command), "TIER");
    }
    assert_eq!(client.info(&name).fence, 0);
}

fn a_stronger_tier_may_be_asked_for(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", "CORRECTNESS"));
    let reply = ask!(client, "LOCK.INFO", &name, "TIER", "CORRECTNESS");
    let info = expect::info(&reply, context.protocol());
    assert_eq!((info.tier.as_str(), info.fence), ("CORRECTNESS", grant.fence));
    expect::released(&ask!(client, "LOCK.RELEASE", &name, grant.fence, "TIER", "CORRECTNESS"));
}

fn the_same_name_in_both_tiers_is_two_locks(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", "CORRECTNESS"));
    let weak = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", "EFFICIENCY"));
    assert_eq!(client.info(&name).fence, weak.fence, "the default tier shows its own");
}

fn both_tiers_in_one_command_are_refused(context: &Context) {
    let mut client = context.client();
    let (strong, weak) = (routed(context), context.name("lock"));
    expect::error(&ask!(client, "LOCK.MACQUIRE", 2, &strong, &weak, 30_000), "CROSSTIER");
    expect::error(&ask!(client, "LOCK.MRELEASE", 2, &strong, 7, &weak, 7), "CROSSTIER");
    assert_eq!((client.info(&strong).fence, client.info(&weak).fence), (0, 0));
}

fn a_session_is_served_by_correctness(context: &Context) {
    let mut client = context.client();
    let name = routed(context);
    let session = ask!(client, "LOCK.SESSION", "OPEN", 30_000).text();
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 0, "SESSION", &session));
    assert_eq!(client.info(&name).session, Some(session.clone()));
    // A session binds nothing in Tier 1: asked for there, it is refused, and nothing is taken.
    let weak = context.name("lock");
    let reply = ask!(client, "LOCK.ACQUIRE", &weak, 30_000, "SESSION", &session, "TIER", "EFFICIENCY");
    expect::error(&reply, "TIER");
    // Nor does it go to the other tier by itself: the name could have two holders.
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &weak, 30_000));
    expect::error(&ask!(client, "LOCK.ACQUIRE", &weak, 30_000, "SESSION", &session), "TIER");
    let taken = ask!(client, "LOCK.INFO", &weak, "TIER", "CORRECTNESS");
    assert!(!format!("{taken:?}").contains(&session), "{taken:?}");
}
