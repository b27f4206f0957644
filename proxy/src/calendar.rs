//! Times since 1970 as people and log readers know them: RFC 3339, in UTC.

/// To the second.
#[must_use]
pub fn utc_seconds(unix_us: u64) -> String {
    let seconds = unix_us / 1_000_000;
    format!("{}Z", date_and_time(seconds))
}

/// To the millisecond.
#[must_use]
pub fn utc_ms(unix_ms: u64) -> String {
    format!("{}.{:03}Z", date_and_time(unix_ms / 1_000), unix_ms % 1_000)
}

fn date_and_time(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a number of days since 1970: Howard Hinnant's `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 1 March of the year 0, so that a leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_utc() {
        assert_eq!(utc_seconds(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc_seconds(951_782_399_000_000), "2000-02-28T23:59:59Z");
        assert_eq!(utc_seconds(951_782_400_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc_seconds(1_735_689_599_999_999), "2024-12-31T23:59:59Z");
        assert_eq!(utc_ms(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc_ms(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
        let _ = (utc_seconds(u64::MAX), utc_ms(u64::MAX));
    }
}
