//! The table a topic is written as: each case by its function's name, with the abilities it needs.

use redfence_tests::backend::{Abilities, Context};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) needs: Abilities,
    pub(crate) run: fn(&Context),
}

/// A topic's name and its cases.
pub(crate) type Topic = (&'static str, &'static [Case]);

/// `cases![ANY: first, second; EVENTS: third]`: lists of functions under the abilities they need.
macro_rules! cases {
    ($($needs:expr => [$($name:ident),* $(,)?]),* $(,)?) => {
        pub(crate) const CASES: &[$crate::topic::Case] = &[
            $($($crate::topic::Case { name: stringify!($name), needs: $needs, run: $name },)*)*
        ];
    };
}
pub(crate) use cases;
