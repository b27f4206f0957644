//! Which tier answers, and what each refuses.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        naming_the_default_tier_changes_nothing,
        every_command_takes_a_tier,
        an_unknown_tier_is_an_error,
        info_names_the_tier,
    ],
    Abilities::EFFICIENCY_ALONE => [
        correctness_is_refused_here,
        sessions_are_refused_here,
        a_refused_tier_leaves_the_lock_alone,
    ],
}

/// A well-formed session id that nobody was given.
const NO_SESSION: &str = "00000000000000aa";

fn naming_the_default_tier_changes_nothing(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", context.tier()));
    client.is_refused(&name, 30_000);
    client.release(&name, grant.fence);
}

fn every_command_takes_a_tier(context: &Context) {
    let mut client = context.client();
    let tier = context.tier();
    let name = format!("{{{}}}", context.name("lock"));
    let other = format!("{name}2");
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", tier));
    expect::renewed(&ask!(client, "LOCK.RENEW", &name, grant.fence, 30_000, "TIER", tier));
    expect::info(&ask!(client, "LOCK.INFO", &name, "TIER", tier), context.protocol());
    assert_eq!(ask!(client, "LOCK.QUEUE", &name, "TIER", tier), Value::Array(vec![]));
    expect::scanned(&ask!(client, "LOCK.SCAN", 0, "TIER", tier, "COUNT", 5, "MATCH", "x*"));
    expect::released(&ask!(client, "LOCK.RELEASE", &name, grant.fence, "TIER", tier));
    let reply = ask!(client, "LOCK.MACQUIRE", 2, &name, &other, 30_000, "TIER", tier);
    let (fences, _) = expect::multi_granted(&reply, 2);
    let reply = ask!(client, "LOCK.MRELEASE", 2, &name, fences[0], &other, fences[1], "TIER", tier);
    reply.array().iter().for_each(expect::released);
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name, "TIER", tier), Value::Integer(0));
}

fn an_unknown_tier_is_an_error(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for tier in ["", "BEST", "1", "EFFICIENC", "CORRECTNESSS"] {
        expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", tier), "ERR");
        expect::error(&ask!(client, "LOCK.INFO", &name, "TIER", tier), "ERR");
    }
    assert_eq!(client.info(&name).fence, 0);
}

fn info_names_the_tier(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(client.info(&name).tier, context.tier());
    client.acquire(&name, 30_000);
    assert_eq!(client.info(&name).tier, context.tier());
}

fn correctness_is_refused_here(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let commands = [
        words!["LOCK.ACQUIRE", &name, 30_000].to_vec(),
        words!["LOCK.ACQUIRE", &name, 30_000, "WAIT", 1_000].to_vec(),
        words!["LOCK.RELEASE", &name, 7].to_vec(),
        words!["LOCK.RENEW", &name, 7, 1_000].to_vec(),
        words!["LOCK.INFO", &name].to_vec(),
        words!["LOCK.MACQUIRE", 1, &name, 30_000].to_vec(),
        words!["LOCK.MRELEASE", 1, &name, 7].to_vec(),
        words!["LOCK.QUEUE", &name].to_vec(),
        words!["LOCK.SCAN", 0].to_vec(),
        words!["LOCK.FORCERELEASE", &name].to_vec(),
    ];
    for mut command in commands {
        command.extend(words!["TIER", "CORRECTNESS"]);
        expect::error(&client.ask(&command), "TIER");
    }
    assert_eq!(client.info(&name).fence, 0);
}

fn sessions_are_refused_here(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000), "TIER");
    // Well formed or not: no session could be right here.
    for id in [NO_SESSION, "nonsense"] {
        expect::error(&ask!(client, "LOCK.SESSION", "KEEPALIVE", id), "TIER");
        expect::error(&ask!(client, "LOCK.SESSION", "INFO", id), "TIER");
        expect::error(&ask!(client, "LOCK.SESSION", "CLOSE", id), "TIER");
        expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "SESSION", id), "TIER");
        expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 0, "SESSION", id), "TIER");
        expect::error(&ask!(client, "LOCK.MACQUIRE", 1, &name, 30_000, "SESSION", id), "TIER");
    }
    assert_eq!(client.info(&name).fence, 0);
}

fn a_refused_tier_leaves_the_lock_alone(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    expect::error(&ask!(client, "LOCK.RELEASE", &name, grant.fence, "TIER", "CORRECTNESS"), "TIER");
    expect::error(&ask!(client, "LOCK.FORCERELEASE", &name, "TIER", "CORRECTNESS"), "TIER");
    client.release(&name, grant.fence);
}
