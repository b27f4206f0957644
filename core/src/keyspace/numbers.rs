//! Numbers as Redis reads and prints them.

use bytes::Bytes;

/// Reads a signed 64-bit integer as strictly as Redis: no plus, no spaces, no leading zeros, no `-0`.
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut sum: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        sum = sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if negative {
        (sum <= 1 << 63).then(|| (sum as i64).wrapping_neg())
    } else {
        i64::try_from(sum).ok()
    }
}

/// Reads a double as C's `strtod` under Redis's checks: the whole text, no leading space, not NaN, no overflow or underflow.
/// Hexadecimal floats, which `strtod` takes too, are not read.
#[must_use]
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    let digits = || text.split(['e', 'E']).next().unwrap_or("").bytes();
    let out_of_range = (value.is_infinite() && digits().any(|byte| byte.is_ascii_digit()))
        || (value == 0.0 && digits().any(|byte| matches!(byte, b'1'..=b'9')));
    (!value.is_nan() && !out_of_range).then_some(value)
}

#[must_use]
pub fn int_bytes(value: i64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(value).as_bytes())
}

/// C's `%.<precision>g`: what Redis 7.0 prints for scores (17) and Lua for numbers (14).
#[must_use]
pub fn format_g(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan".into() } else { "nan".into() };
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    // Whole numbers that fit are by far the most common.
    if value.fract() == 0.0 && value.abs() < 1e14 && !(value == 0.0 && value.is_sign_negative()) {
        return itoa::Buffer::new().format(value as i64).to_owned();
    }
    let scientific = format!("{:.*e}", precision - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the format's exponent is a number");
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
    }
    let decimals = (precision as i32 - 1 - exponent) as usize;
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

/// Fractional digits Redis prints after `INCRBYFLOAT`.
const DECIMALS: u32 = 17;

/// `left + right` as `INCRBYFLOAT` prints it. `None`: the sum is no finite number.
///
/// Redis adds 80-bit floats and prints 17 decimals without trailing zeros. Numbers below 10^20 are added here exactly, in
/// decimal, which prints the same for all that people write; larger ones as doubles.
#[must_use]
pub fn add_decimal(left: &[u8], right: &[u8]) -> Option<Option<String>> {
    let (left_float, right_float) = (parse_f64(left)?, parse_f64(right)?);
    if let (Some(left), Some(right)) = (fixed_point(left), fixed_point(right)) {
        if let Some(sum) = left.checked_add(right) {
            return Some(Some(format_fixed(sum)));
        }
    }
    let sum = left_float + right_float;
    Some(sum.is_finite().then(|| without_zeros(&format!("{sum:.17}")).to_owned()))
}

/// Whether the text is a float Redis would take, apart from its size.
fn fixed_point(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        let digit = i128::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        digits = digits.checked_mul(10)?.checked_add(digit)?;
    }
    let shift = DECIMALS as i32 + exponent - fraction.len() as i32;
    let scaled = if shift >= 0 {
        digits.checked_mul(10_i128.checked_pow(shift as u32)?)?
    } else {
        // Digits beyond the seventeenth decimal round to even, as the printing would.
        let unit = 10_i128.checked_pow(shift.unsigned_abs())?;
        let (quotient, rest) = (digits / unit, digits % unit);
        let up = rest * 2 > unit || (rest * 2 == unit && quotient % 2 == 1);
        quotient + i128::from(up)
    };
    let bound = 10_i128.pow(DECIMALS + 20);
    (scaled < bound).then_some(if negative { -scaled } else { scaled })
}

fn format_fixed(value: i128) -> String {
    let unit = 10_i128.pow(DECIMALS);
    let sign = if value < 0 { "-" } else { "" };
    let text = format!("{sign}{}.{:017}", (value / unit).unsigned_abs(), (value % unit).unsigned_abs());
    without_zeros(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1a", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn doubles_print_as_c_does() {
        for (value, expected) in [
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (3.0, "3"),
            (-0.0, "-0"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(format_g(value, 17), expected);
        }
        assert_eq!(format_g(0.1, 14), "0.1");
        assert_eq!(format_g(2_f64.powi(53), 14), "9.007199254741e+15");
        assert_eq!(format_g(1e14, 14), "1e+14");
        assert_eq!(format_g(99_999_999_999_999.0, 14), "99999999999999");
    }

    #[test]
    fn doubles_are_read_as_strtod_does() {
        assert_eq!(parse_f64(b"+inf"), Some(f64::INFINITY));
        assert_eq!(parse_f64(b"-Infinity"), Some(f64::NEG_INFINITY));
        assert_eq!(parse_f64(b".5"), Some(0.5));
        assert_eq!(parse_f64(b"0e999"), Some(0.0));
        for text in ["nan", "", " 1", "1 ", "1e400", "1e-400", "abc", "1,5"] {
            assert_eq!(parse_f64(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn decimal_sums_have_no_binary_dust() {
        let sum = |left: &str, right: &str| add_decimal(left.as_bytes(), right.as_bytes()).unwrap().unwrap();
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("3", "-1.5"), "1.5");
        assert_eq!(sum("1", "-1.5"), "-0.5");
        assert_eq!(add_decimal(b"x", b"1"), None);
        assert_eq!(add_decimal(b"inf", b"1"), Some(None));
    }
}
