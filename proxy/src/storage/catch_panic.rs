//! Turns panics of the log engine into errors with one line of text.
//!
//! raft-engine panics on a failed fsync, on holes it finds while opening, and on some damaged files. The first is the
//! right choice (after a failed fsync nothing may go on as if it had worked), but a backtrace is no message for an
//! operator. [`catch`] keeps the panic text off stderr and hands it to the caller, who stops the node.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Once;

static CATCHING: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();

/// Runs `work`; a panic in it becomes `Err(text)`, and nothing is printed.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    INSTALL.call_once(install_hook);
    IN_CATCH.with(|depth| depth.set(depth.get() + 1));
    CATCHING.fetch_add(1, Ordering::SeqCst);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.fetch_sub(1, Ordering::SeqCst);
    IN_CATCH.with(|depth| depth.set(depth.get() - 1));
    outcome.map_err(|payload| payload_text(payload.as_ref()))
}

thread_local! {
    static IN_CATCH: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn install_hook() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let catching_here = IN_CATCH.with(|depth| depth.get() > 0);
        // The engine opens its files on a rayon pool of unnamed threads; their panics are handed on to the opener.
        let on_pool_thread = std::thread::current().name().is_none() && CATCHING.load(Ordering::SeqCst) > 0;
        if !catching_here && !on_pool_thread {
            previous(info);
        }
    }));
}

/// The text of a panic, or a stand-in where it carried none.
pub(crate) fn payload_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_string());
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_text_and_success_passes() {
        assert_eq!(catch(|| 7), Ok(7));
        let text = catch(|| -> () { panic!("memtable {} has a hole", 3) }).unwrap_err();
        assert_eq!(text, "memtable 3 has a hole");
    }
}
