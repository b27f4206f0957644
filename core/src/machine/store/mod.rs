//! Where records live: slabs with lists through them, deadlines, and memory in use.

pub(crate) mod deadlines;
pub(crate) mod free_map;
pub(crate) mod hash_key;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod owner_table;
pub(crate) mod slab;
pub(crate) mod slot;
