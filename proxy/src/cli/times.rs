//! Times on the command line: milliseconds, or a number with its unit.

use redfence_core::types::TTL_MS_MAX;

/// `30000`, `500ms`, `30s`, `5m`, `1h`.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a time is milliseconds, or a number with ms, s, m or h: 30000, 30s".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a time begins with a number: 30000, 30s".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "this time is too long".to_owned())
}

/// The ttl of a lock.
pub(crate) fn parse_ttl_ms(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        0 => Err("a ttl is at least 1 ms".to_owned()),
        ttl_ms @ 1..=TTL_MS_MAX => Ok(ttl_ms),
        _ => Err(format!("a ttl is at most {TTL_MS_MAX} ms, one year")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_milliseconds() {
        for (text, ms) in
            [("30000", 30_000), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_ms(text), Ok(ms));
        }
        for bad in ["", "s", "-1", "1d", "1.5s", "99999999999999999999", "9999999999999999999h"] {
            assert!(parse_ms(bad).is_err(), "{bad}");
        }
        assert!(parse_ttl_ms("0").is_err());
    }
}
