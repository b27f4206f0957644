//! Tests of the request parser: every split, every limit, and bytes nobody honest would send.

use super::*;

const KNOWN: ParseLimits = ParseLimits { authenticated: true, may_stream: |_| false };
const STRANGER: ParseLimits = ParseLimits { authenticated: false, may_stream: |_| false };
const BEHIND: ParseLimits =
    ParseLimits { authenticated: true, may_stream: |name| !name.starts_with(b"LOCK.") };

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

fn words_of<'a>(parser: &RequestParser, frame: &'a [u8]) -> Vec<&'a [u8]> {
    parser.words().iter().map(|(start, len)| &frame[*start as usize..][..*len as usize]).collect()
}

fn refused(bytes: &[u8], limits: ParseLimits) -> String {
    match RequestParser::default().parse(bytes, limits) {
        Err(error) => error.0.into_owned(),
        Ok(step) => panic!("{step:?} for {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)])),
    }
}

#[test]
fn reads_a_frame_split_at_every_byte() {
    let words: [&[u8]; 5] = [b"LOCK.ACQUIRE", b"a\r\nb\0", b"", b"OWNER", b"\xff*1\r\n$"];
    let frame = command(&words);
    for cut in 0..frame.len() {
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(&frame[..cut], KNOWN), Ok(Step::Incomplete), "cut at {cut}");
        assert_eq!(parser.parse(&frame, KNOWN), Ok(Step::Command { len: frame.len() }), "cut at {cut}");
        assert_eq!(words_of(&parser, &frame), words);
    }
    let mut parser = RequestParser::default();
    for end in 0..frame.len() {
        assert_eq!(parser.parse(&frame[..end], KNOWN), Ok(Step::Incomplete));
    }
    assert_eq!(parser.parse(&frame, KNOWN), Ok(Step::Command { len: frame.len() }));
}

#[test]
fn reads_one_frame_and_leaves_the_next() {
    let mut bytes = command(&[b"PING"]);
    let len = bytes.len();
    bytes.extend_from_slice(b"*1\r\n$4\r\nQU");
    assert_eq!(RequestParser::default().parse(&bytes, KNOWN), Ok(Step::Command { len }));
}

#[test]
fn empty_frames_are_nothing() {
    for (bytes, len) in [(&b"*0\r\n"[..], 4), (b"*-1\r\nx", 5), (b"\r\n", 2), (b"\n", 1), (b"   \r\n", 5)] {
        assert_eq!(RequestParser::default().parse(bytes, KNOWN), Ok(Step::Nothing { len }));
    }
}

#[test]
fn inline_commands_are_read() {
    let mut parser = RequestParser::default();
    assert_eq!(parser.parse(b"SET a ", KNOWN), Ok(Step::Incomplete));
    assert_eq!(parser.parse(b"SET a \"b c\"\r\nPI", KNOWN), Ok(Step::Inline { len: 13 }));
    assert_eq!(parser.take_inline_words(), [b"SET".to_vec(), b"a".to_vec(), b"b c".to_vec()]);
    assert_eq!(refused(b"SET a \"b\r\n", KNOWN), "unbalanced quotes in request");
    assert_eq!(refused(&vec![b'a'; INLINE_BYTES_MAX + 1], KNOWN), "too big inline request");
}

#[test]
fn redis_refuses_these_and_so_do_we() {
    for (bytes, text) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*9223372036854775808\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"* 1\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n%1\r\n", "expected '$', got '%'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$-2\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$9223372036854775807\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999999999999999\r\n", "invalid bulk length"),
    ] {
        assert_eq!(refused(bytes, KNOWN), text, "{:?}", String::from_utf8_lossy(bytes));
    }
    let mut endless = vec![b'*'];
    endless.resize(INLINE_BYTES_MAX + 2, b'1');
    assert_eq!(refused(&endless, KNOWN), "too big mbulk count string");
    let mut endless = b"*1\r\n$".to_vec();
    endless.resize(INLINE_BYTES_MAX + 6, b'1');
    assert_eq!(refused(&endless, KNOWN), "too big bulk count string");
}

#[test]
fn a_million_nested_arrays_end_at_the_second() {
    let bytes = b"*1\r\n".repeat(1_000_000);
    assert_eq!(refused(&bytes, KNOWN), "expected '$', got '*'");
}

/// Beyond a limit of what Redfence itself answers: the text, if the rest of the frame is then taken to its end.
fn beyond(bytes: &[u8], limits: ParseLimits) -> String {
    let mut parser = RequestParser::default();
    match parser.parse(bytes, limits) {
        Ok(Step::Large { seen }) => {
            parser.stream(&bytes[seen..]).unwrap();
            assert!(!parser.may_stream(), "it is not for the upstream Redis");
            parser.excess().refusal().0.into_owned()
        }
        other => panic!("{other:?} for {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)])),
    }
}

#[test]
fn a_declared_length_allocates_nothing() {
    let mut parser = RequestParser::default();
    assert_eq!(parser.parse(b"*1024\r\n$4\r\nPING\r\n$65536\r\n", KNOWN), Ok(Step::Incomplete));
    assert!(!parser.words.spilled());
}

#[test]
fn limits_of_the_contract() {
    assert_eq!(RequestParser::default().parse(b"*1024\r\n$4\r\nPING\r\n", KNOWN), Ok(Step::Incomplete));
    let text = beyond(b"*1025\r\n$4\r\nPING\r\n", KNOWN);
    assert_eq!(text, "ERR a command may have 1024 words, and this one has 1025; nothing was done; split it");
    let header =
        |name: &str, len: usize| format!("*2\r\n${}\r\n{name}\r\n${len}\r\n", name.len()).into_bytes();
    assert_eq!(RequestParser::default().parse(&header("ECHO", 65536), KNOWN), Ok(Step::Incomplete));
    let text = beyond(&header("ECHO", 65537), KNOWN);
    assert_eq!(text, "ERR a word of this command may have 65536 bytes, and one has 65537; nothing was done");
    assert_eq!(RequestParser::default().parse(&header("eval", 1 << 20), KNOWN), Ok(Step::Incomplete));
    let text = beyond(&header("eval", (1 << 20) + 1), KNOWN);
    assert_eq!(
        text,
        "ERR a word of this command may have 1048576 bytes, and one has 1048577; nothing was done"
    );
    // The name itself is a word like any other.
    assert!(beyond(b"*1\r\n$65537\r\n", KNOWN).contains("65536 bytes"));
}

#[test]
fn a_word_that_makes_the_frame_too_large_is_not_waited_for() {
    let script = vec![b'x'; 1 << 20];
    let mut frame = command(&[b"EVAL", &script, b"0", &script, &script, b"d"]);
    frame[1] = b'7';
    frame.extend_from_slice(b"$1048576\r\n");
    assert!(beyond(&frame, KNOWN).contains("4194304 bytes in all"));
}

#[test]
fn a_whole_frame_is_bounded_too() {
    let word = vec![b'x'; BULK_BYTES_MAX];
    let mut words: Vec<&[u8]> = vec![b"ECHO"];
    words.extend(std::iter::repeat_n(&word[..], FRAME_BYTES_MAX / BULK_BYTES_MAX - 1));
    let frame = command(&words);
    assert_eq!(RequestParser::default().parse(&frame, KNOWN), Ok(Step::Command { len: frame.len() }));
    words.push(&word);
    let text = beyond(&command(&words), KNOWN);
    assert_eq!(text, "ERR a command may have 4194304 bytes in all; nothing was done; split it");
}

#[test]
fn strangers_get_less() {
    assert_eq!(refused(b"*11\r\n", STRANGER), "unauthenticated multibulk length");
    assert_eq!(refused(b"*1\r\n$16385\r\n", STRANGER), "unauthenticated bulk length");
    assert_eq!(RequestParser::default().parse(b"*10\r\n$16384\r\n", STRANGER), Ok(Step::Incomplete));
}

#[test]
fn large_frames_for_redis_stream_on() {
    let value = vec![b'v'; 300_000];
    let frame = command(&[b"SET", b"key", &value, b"PX", b"100"]);
    for piece in [1, 7, 1000, 65_536, usize::MAX] {
        let mut parser = RequestParser::default();
        let mut held = 0;
        let seen = loop {
            held = (held + piece.min(frame.len())).min(frame.len());
            match parser.parse(&frame[..held], BEHIND).unwrap() {
                Step::Incomplete => continue,
                Step::Large { seen } => break seen,
                step => panic!("{step:?}"),
            }
        };
        assert_eq!(words_of(&parser, &frame), [&b"SET"[..], b"key"]);
        assert_eq!(parser.declared_words(), 5);
        let mut bytes = frame.clone();
        bytes.extend_from_slice(b"*1\r\n");
        let mut at = seen;
        loop {
            held = held.max(at);
            let (taken, done) = parser.stream(&bytes[at..held]).unwrap();
            at += taken;
            if done {
                break;
            }
            held = held.saturating_add(piece).min(bytes.len());
        }
        assert_eq!(at, frame.len(), "pieces of {piece}");
    }
}

#[test]
fn many_words_for_redis_stream_on_and_ours_do_not() {
    let many = |name: &[u8]| {
        let mut words: Vec<&[u8]> = vec![name];
        words.extend(std::iter::repeat_n(&b"x"[..], 5000));
        command(&words)
    };
    let frame = many(b"DEL");
    let mut parser = RequestParser::default();
    let step = parser.parse(&frame, BEHIND).unwrap();
    let Step::Large { seen } = step else { panic!("{step:?}") };
    assert_eq!(parser.stream(&frame[seen..]), Ok((frame.len() - seen, true)));
    assert!(parser.may_stream());
    assert!(beyond(&many(b"LOCK.MACQUIRE"), BEHIND).contains("1024 words"));
}

#[test]
fn garbage_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let alphabet = b"*$:-+0123456789\r\n\"' xPING%~_,#(=>|\0\xff";
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        for _ in 0..64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes.push(alphabet[(state >> 33) as usize % alphabet.len()]);
        }
        let mut whole = RequestParser::default();
        let at_once = whole.parse(&bytes, BEHIND);
        let mut parser = RequestParser::default();
        let mut trickled = Ok(Step::Incomplete);
        for end in 1..=bytes.len() {
            trickled = parser.parse(&bytes[..end], BEHIND);
            if trickled != Ok(Step::Incomplete) {
                break;
            }
        }
        assert_eq!(at_once, trickled, "{:?}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn words_of_a_frame_are_found() {
    let frame = b"*4\r\n$4\r\nMSET\r\n$1\r\n$\r\n$0\r\n\r\n$12\r\n$1\r\n\r\nabcdef\r\n";
    assert_eq!(super::words_of(frame), [&b"MSET"[..], b"$", b"", b"$1\r\n\r\nabcdef"]);
    // Never more than there is, and no panic.
    for end in 0..frame.len() {
        assert!(super::words_of(&frame[..end]).len() <= 4);
    }
}

#[test]
fn short_numbers_are_read_as_any_others() {
    for number in 0..=12_000_i64 {
        for end in ["\r\n", "\rx", "\r", "", "x\r\n", " \r\n"] {
            for sign in ["", "-", "+", "0"] {
                let text = format!("{sign}{number}{end}");
                let short = short_number(text.as_bytes());
                if let Some((value, len)) = short {
                    let (line, next) = header_line(text.as_bytes(), 0, "").unwrap().expect("a whole line");
                    assert_eq!((integer(line), next), (Some(value as i64), len), "{text:?}");
                }
                let is_plain = sign.is_empty() && end.len() == 2 && end.starts_with('\r');
                assert_eq!(short.is_some(), is_plain && (1..=9_999).contains(&number), "{text:?}");
            }
        }
    }
}
