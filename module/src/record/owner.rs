//! The owner of a grant about to be made: the client's word, or one made up, and only once it is needed.

use crate::ffi::server::random_hex;

/// Random bytes of a made-up owner, in hexadecimal.
const MADE_UP_DIGITS: usize = 32;

pub(crate) enum Owner<'a> {
    Given(&'a [u8]),
    /// Made up by [`Owner::settle`].
    None,
    MadeUp([u8; MADE_UP_DIGITS]),
}

impl<'a> Owner<'a> {
    pub(crate) fn new(given: Option<&'a [u8]>) -> Owner<'a> {
        given.map_or(Owner::None, Owner::Given)
    }

    /// The client's word, which may be a retry's. A made-up owner cannot be.
    pub(crate) fn given(&self) -> Option<&'a [u8]> {
        match self {
            Owner::Given(owner) => Some(owner),
            Owner::None | Owner::MadeUp(_) => None,
        }
    }

    /// The owner for good. Random digits are dear, so a lock that is taken anyway never asks for them.
    pub(crate) fn settle(&mut self) -> &[u8] {
        if let Owner::None = self {
            let mut digits = [0; MADE_UP_DIGITS];
            random_hex(&mut digits);
            *self = Owner::MadeUp(digits);
        }
        match self {
            Owner::Given(owner) => owner,
            Owner::MadeUp(digits) => digits,
            Owner::None => unreachable!("settled above"),
        }
    }
}
