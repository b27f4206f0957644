//! Nodes whose script VMs have different pasts: one is kept warm by scripts that only read and so run on it alone, another is
//! cold. Whatever depends on the past of a VM must not get into the state.

use super::{attack, quick, Attack};
use crate::hostile::attacker::Attacker;
use crate::words;

pub(super) const ATTACKS: &[Attack] = &[
    quick(1, "memory_runs_out_in_a_handler_on_warm_and_cold_nodes", handlers),
    attack(1, "scripts_at_the_edge_of_their_budget_on_warm_and_cold_nodes", budgets),
    attack(1, "order_of_tables_on_warm_and_cold_nodes", orders),
];

/// Gives the VM of one node a past of its own.
fn warm(attacker: &mut Attacker, round: usize) {
    let body = format!(
        "local t = {{}} for i = 1, {} do t['k' .. i .. {round}] = {{tostring(i) .. 'warm'}} end return #t",
        1_000 * (round % 7 + 1)
    );
    attacker.ask_node(0, &words!["EVAL_RO", body, 0]);
}

/// An ordinary error while memory is nearly used up; the handler then needs more than there is, or just not.
fn handlers(attacker: &mut Attacker) {
    let body = "local keep = {} local ok, err = xpcall(function() \
        for i = 1, tonumber(ARGV[1]) do keep[i] = string.rep('x', 1000) .. i end error('ordinary') end, \
        function(e) local more = {} for i = 1, 200 do more[i] = string.rep('h', 1000) .. i end return 'handled ' .. #more end) \
        keep = nil redis.call('SET', KEYS[1], tostring(ok) .. ' ' .. tostring(err)) return tostring(err)";
    for variant in 0..60usize {
        warm(attacker, variant);
        let (key, count) = (attacker.name(variant), 7_000 + variant * 150);
        attacker.ask(&words!["EVAL", body, 1, key, count]);
    }
}

fn budgets(attacker: &mut Attacker) {
    for variant in 0..40usize {
        warm(attacker, variant);
        let lines = "n = n + 1 t[#t + 1] = 'constant' .. n\n".repeat(2_000 + variant * 400);
        let body = format!("local n, t = 0, {{}}\n{lines} redis.call('SET', KEYS[1], n) return n");
        attacker.ask(&words!["EVAL", body, 1, attacker.name(variant)]);
    }
}

fn orders(attacker: &mut Attacker) {
    let body = "local t, out = {}, {} for i = 1, 40 do t[i % 2 == 0 and {} or ('k' .. i)] = i end \
        t[1], t[2], t[4] = 1, 2, 4 pcall(function() for k, v in pairs(t) do out[#out + 1] = tostring(v) end end) \
        out[#out + 1] = tostring(#t) redis.call('SET', KEYS[1], table.concat(out, ' ')) return out";
    for variant in 0..20usize {
        warm(attacker, variant);
        attacker.ask(&words!["EVAL", body, 1, attacker.name(variant)]);
    }
}
