//! The scripts among the attacks: a file each in `scripts/`, and those that are made up here.

use super::{Attack, AttackBody};

macro_rules! scripts {
    ($($item:literal $($quick:ident)? $name:literal,)*) => {
        &[$(Attack {
            name: concat!("script_", $name),
            item: $item,
            quick: scripts!(@quick $($quick)?),
            may_be_cut: false,
            flushes: false,
            run: AttackBody::Script(include_str!(concat!("scripts/", $name, ".lua"))),
        },)*]
    };
    (@quick quick) => { true };
    (@quick) => { false };
}

const FILES: &[Attack] = scripts![
    1 quick "memory_in_xpcall",
    1 quick "memory_caught_by_pcall",
    1 quick "length_of_tables_with_holes",
    1 quick "pairs_over_table_keys",
    1 "addresses_of_tables",
    1 "sort_with_an_inconsistent_order",
    1 "garbage_collector_as_a_value",
    1 "errors_as_objects",
    1 "lock_commands_in_a_script",
    1 "sandbox_escapes",
    2 quick "seventy_values_of_a_megabyte",
    3 quick "references_to_one_string",
    3 "references_in_a_tree",
    3 quick "cjson_of_references",
    3 "cmsgpack_of_references",
    3 quick "writes_three_gigabytes",
    3 "writes_many_gigabytes_of_lists",
    3 "string_doubled_for_ever",
    3 "concat_of_a_gigabyte",
    3 quick "deeply_nested_reply",
    3 "megabytes_as_an_error",
    3 "megabytes_as_an_error_reply",
    3 "names_of_a_megabyte",
    3 "publishes_gigabytes",
    3 "many_small_writes",
    3 "cmsgpack_unpack_lies",
    3 "gsub_that_grows",
    4 quick "self_referencing_reply",
    4 "cycle_of_tables_in_cjson",
    4 quick "sha1hex_of_megabytes",
    4 quick "sort_of_many",
    4 quick "comparisons_of_long_strings",
    4 quick "cmsgpack_in_a_loop",
    4 "cjson_in_a_loop",
    4 "cjson_decode_deep",
    4 "struct_in_a_loop",
    4 "rep_in_a_loop",
    4 quick "patterns_that_backtrack",
    4 "format_with_widths",
    4 quick "keys_in_a_loop",
    4 "keys_with_a_glob_bomb",
    4 "scan_in_a_loop",
    4 "large_reads_in_a_loop",
    4 "unions_in_a_loop",
    4 "deep_recursion",
    4 "coroutines_without_end",
    4 quick "pcall_around_limits",
    4 "endless_loop",
    4 "endless_redis_calls",
    4 "inserts_at_the_front",
    4 "unpack_of_many",
    4 "metatables_without_end",
    4 "distinct_strings",
    4 "blocking_commands_in_a_script",
];

const fn made(item: u8, name: &'static str, quick: bool, make: fn() -> Vec<u8>) -> Attack {
    Attack { name, item, quick, may_be_cut: false, flushes: false, run: AttackBody::GeneratedScript(make) }
}

const MADE: &[Attack] = &[
    made(1, "script_backslash_crlf", true, backslash_crlf),
    made(1, "script_of_a_megabyte", true, a_megabyte),
    made(1, "script_of_a_megabyte_of_constants", false, constants),
    made(4, "script_of_nested_brackets", false, brackets),
    made(4, "script_of_nested_functions", false, functions),
    made(4, "script_that_is_a_long_string", false, long_string),
    made(4, "script_of_every_byte", false, every_byte),
];

#[must_use]
pub fn all() -> Vec<Attack> {
    FILES.iter().chain(MADE).copied().collect()
}

/// A backslash before a line break of two bytes: to one reader of the text the string ends, to another it goes on.
fn backslash_crlf() -> Vec<u8> {
    let mut body =
        b"local t, out = {}, {} for i = 1, 30 do t[{}] = i end local s = \"\\\r\n\" for k, v in ".to_vec();
    body.extend_from_slice(
        b"t do out[#out + 1] = v end -- \"\nredis.call('SET', KEYS[1], table.concat(out, ',')) return out",
    );
    body
}

/// A megabyte of statements: compiling it takes memory and time.
fn a_megabyte() -> Vec<u8> {
    let mut body = b"local n = 0\n".to_vec();
    while body.len() < 1_000_000 {
        body.extend_from_slice(b"n = n + 1\n");
    }
    body.extend_from_slice(b"redis.call('SET', KEYS[1], n) return n");
    body
}

/// A megabyte of different constants in one table.
fn constants() -> Vec<u8> {
    let mut body = b"local t = {\n".to_vec();
    let mut number = 0;
    while body.len() < 1_000_000 {
        body.extend_from_slice(format!("'k{number}',{number}.5,").as_bytes());
        number += 1;
    }
    body.extend_from_slice(b"} redis.call('SET', KEYS[1], #t) return #t");
    body
}

fn brackets() -> Vec<u8> {
    let depth = 400_000;
    [b"return ".to_vec(), vec![b'('; depth], b"1".to_vec(), vec![b')'; depth]].concat()
}

fn functions() -> Vec<u8> {
    let depth = 20_000;
    [b"return ".to_vec(), b"(function() return ".repeat(depth), b"1".to_vec(), b" end)()".repeat(depth)]
        .concat()
}

fn long_string() -> Vec<u8> {
    [b"return #[==========[".to_vec(), vec![b']'; 1_000_000], b"]==========]".to_vec()].concat()
}

fn every_byte() -> Vec<u8> {
    [b"local s = '".to_vec(), (0..=255).collect::<Vec<u8>>(), b"' return #s".to_vec()].concat()
}
