//! Recognised scripts answer and do exactly what they would if they were run.

use super::super::native::NativeForm;
use super::*;

/// What lock libraries send, and the same in other words. Keys and arguments: one key, the value, a time.
const RECOGNISED: &[&str] = &[
    // The form of the Redlock page: redlock-py, pottery, Laravel, redlock-rb, rslock, rueidislock, ShedLock, redlock-universal.
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then\n    return redis.call('DEL', KEYS[1])\nelse\n    return 0\nend\n",
    "if ARGV[1] == redis.call('get', KEYS[1]) then return redis.call('unlink', KEYS[1]) end return 0",
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 else return redis.call('del', KEYS[1]) end",
    "if (redis.call('get', KEYS[1]) == ARGV[1]) then redis.call('del', KEYS[1]) return true end return false",
    "-- release\nlocal v = redis.call([[get]], KEYS[1]); --[[ mine? ]] if v == ARGV[1] then return redis.call('del', KEYS[1]); end; return nil;",
    "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0",
    // redis-py: release, reacquire.
    "local token = redis.call('get', KEYS[1])\nif not token or token ~= ARGV[1] then\n    return 0\nend\nredis.call('del', KEYS[1])\nreturn 1",
    "local token = redis.call('get', KEYS[1])\nif not token or token ~= ARGV[1] then\n return 0\nend\nredis.call('pexpire', KEYS[1], ARGV[2])\nreturn 1",
    // redsync: release, touch.
    "local val = redis.call(\"GET\", KEYS[1]) if val == ARGV[1] then return redis.call(\"DEL\", KEYS[1]) elseif val == false then return -1 else return 0 end",
    "if redis.call(\"GET\", KEYS[1]) == ARGV[1] then return redis.call(\"PEXPIRE\", KEYS[1], ARGV[2]) else return 0 end",
    // aioredlock: unset, set.
    "local identifier = redis.call('get', KEYS[1]) if not identifier then return redis.status_reply('OK') elseif identifier == ARGV[1] then redis.call('DEL', KEYS[1]) return redis.status_reply('OK') else return redis.error_reply('ERROR') end",
    "local identifier = redis.call('get', KEYS[1]) if not identifier or identifier == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) else return redis.error_reply('ERROR') end",
    // node-redlock: release, extend.
    "local count = 0\nfor i, key in ipairs(KEYS) do\n  -- Only remove entries for *this* lock value.\n  if redis.call(\"get\", key) == ARGV[1] then\n    redis.pcall(\"del\", key)\n    count = count + 1\n  end\nend\nreturn count",
    "for i, key in ipairs(KEYS) do if redis.call('get', key) ~= ARGV[1] then return 0 end end for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end return #KEYS",
    // Spring, RedLock.net, rslock: extend.
    "local lockClientId = redis.call('GET', KEYS[1]) if lockClientId == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return true elseif not lockClientId then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return true end return false",
    "local c = redis.call('get', KEYS[1]) if (c == false) then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1 or 0 elseif (c == ARGV[1]) then return redis.call('pexpire', KEYS[1], ARGV[2]) else return -1 end",
    "if redis.call(\"get\", KEYS[1]) ~= ARGV[1] then return 0 else if redis.call(\"set\", KEYS[1], ARGV[1], \"PX\", ARGV[2]) ~= nil then return 1 else return 0 end end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('expire', KEYS[1], tonumber(ARGV[2])) else return 0 end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('persist', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.pcall('pexpire', KEYS[1], ARGV[2]) end",
    "if redis.call('get', KEYS[1]) == 'mine' then return redis.call('pexpire', KEYS[1], 5000) else return 'other' end",
    "\n\nif\nredis.call('get', KEYS[1])\n==\nARGV[1] then\n\nreturn redis.call('pexpire', KEYS[1], ARGV[2])\nend",
];

/// Scripts that look like it, and are something else.
const NOT_RECOGNISED: &[&str] = &[
    "return 1",
    "return redis.call('del', KEYS[1])",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[2]) else return 0 end",
    "if redis.call('get', KEYS[2]) == ARGV[1] and redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('publish', 'c', 'm') return redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] or ARGV[2] == '1' then return redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) < ARGV[1] then return redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], 'x', 'NX') end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) == 1 end",
    "local redis = {call = function() end} if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end return 1 2",
    "if redis.call('g\\101t', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    "local ARGV = {'x'} if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
    "redis.call('del', KEYS[1]) if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return x end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2], 'GT') end",
    "#!lua\nif redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
];

#[test]
fn scripts_are_recognised_by_what_they_say() {
    for body in RECOGNISED {
        assert!(NativeForm::of(body.as_bytes()).is_some(), "{body}");
        let mut bench = Bench::new();
        let mut blob = Vec::new();
        let argv = [b"EVAL".as_slice(), body.as_bytes(), b"1", b"k", b"mine", b"5000"].into_iter().collect();
        Command::Redis { db: 0, resp: Resp::Two, member: None, argv }.encode(&mut blob);
        assert!(matches!(bench.engine.prepare(&bench.machine, &blob), Preparation::Native(_)), "{body}");
    }
    for body in NOT_RECOGNISED {
        assert!(NativeForm::of(body.as_bytes()).is_none(), "{body}");
    }
}

/// States of the key before the script, as lines; the first word is the member that says it.
const STATES: &[&[&str]] = &[
    &[],
    &["0 SET k mine"],
    &["0 SET k mine PX 60000"],
    &["0 SET k other PX 60000"],
    &["0 SET k "],
    &["0 RPUSH k a b"],
    &["0 HSET k mine 1"],
    &["1 SET k mine PX 60000"],
    &["2 SET k mine PX 60000"],
    &["1 SET k mine PX 60000", "2 SET k mine PX 70000"],
    &["2 SET k other PX 60000"],
    &["2 SET k other PX 60000", "3 SET k other PX 70000"],
    &["1 SET k mine PX 60000", "2 SET k mine PX 70000", "1 DEL k"],
];

#[test]
fn recognised_scripts_answer_as_the_vm_does() {
    let args: &[&[&str]] =
        &[&["mine", "5000"], &["mine", "x"], &["mine", "-5"], &["", "0"], &["mine", "1e3"], &["mine"], &[]];
    for body in RECOGNISED {
        for state in STATES {
            for member in [0, 1, 2] {
                for args in args {
                    let run = |always_run| {
                        let mut bench = Bench::new();
                        bench.always_run = always_run;
                        for line in *state {
                            let (speaker, line) = line.split_once(' ').expect("a member and its line");
                            bench.member = speaker.parse().ok().filter(|speaker| *speaker != 0).map(Member);
                            bench.say(line);
                        }
                        bench.member = (member != 0).then_some(Member(member));
                        let head = [b"EVAL".as_slice(), body.as_bytes(), b"1", b"k"];
                        let argv: Vec<&[u8]> =
                            head.into_iter().chain(args.iter().map(|arg| arg.as_bytes())).collect();
                        let reply = bench.run(&argv);
                        (reply, bench.machine.state_hash())
                    };
                    let (native, ran) = (run(false), run(true));
                    assert_eq!(native.0, ran.0, "{body} {state:?} member {member} {args:?}");
                    assert_eq!(native.1, ran.1, "{body} {state:?} member {member} {args:?}: {}", native.0);
                }
            }
        }
    }
}

/// `EVALSHA` of a recognised script is `NOSCRIPT` unless it is cached when it is applied.
#[test]
fn a_recognised_script_by_sha_must_be_cached() {
    let body = RECOGNISED[0];
    let sha = scripts::sha_hex(&scripts::sha1(body.as_bytes()));
    let mut bench = Bench::new();
    bench.say("SET k mine");
    let by_sha: &[&[u8]] = &[b"EVALSHA", sha.as_bytes(), b"1", b"k", b"mine"];
    assert_eq!(bench.run(by_sha), "-NOSCRIPT No matching script. Please use EVAL.");
    assert_eq!(bench.run(&[b"SCRIPT", b"LOAD", body.as_bytes()]), format!("${sha}"));
    assert_eq!(bench.run(by_sha), ":1");
    assert_eq!(bench.say("SCRIPT FLUSH"), "+OK");
    assert_eq!(bench.run(by_sha), "-NOSCRIPT No matching script. Please use EVAL.");
    // EVAL caches it again.
    assert_eq!(bench.run(&[b"EVAL", body.as_bytes(), b"1", b"k", b"mine"]), ":0");
    assert_eq!(bench.run(by_sha), ":0");
    // A leader that has just begun knows it from the cache.
    bench.engine = Engine::new();
    assert_eq!(bench.run(by_sha), ":0");
}
