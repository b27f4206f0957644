//! One file a part of the bench: it starts what it needs, measures, and answers what it found.

pub(crate) mod passthrough;
