//! Names on the wire for the numbers the history keeps.

#[must_use]
pub fn resource(number: u32) -> String {
    format!("r{number}")
}

#[must_use]
pub fn resources(numbers: &[u32]) -> Vec<String> {
    numbers.iter().map(|number| resource(*number)).collect()
}

#[must_use]
pub fn resource_number(name: &[u8]) -> u32 {
    let digits = name.strip_prefix(b"r").and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no resource of ours: {name:?}"))
}

/// The key of a stored value: nobody's lock, and not in the history.
#[must_use]
pub fn value(number: u64) -> String {
    format!("value:{number}")
}

#[must_use]
pub fn is_value(name: &[u8]) -> bool {
    name.starts_with(b"value:")
}

/// A lock of the mix of kinds: see `kinds.rs`.
#[must_use]
pub fn kind(number: u64) -> String {
    format!("kind:{number}")
}

#[must_use]
pub fn is_kind(name: &[u8]) -> bool {
    name.starts_with(b"kind:")
}

#[must_use]
pub fn owner(number: u64) -> String {
    format!("o{number}")
}

#[must_use]
pub fn owner_number(name: &[u8]) -> u64 {
    let digits = name.strip_prefix(b"o").and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no owner of ours: {name:?}"))
}
