//! Ends a call after two tokens; the flag may be set by another thread.   cancel MODEL.toml "text"
mod common;
use attnkit::{Action, Event, Session, Side, View};
use std::sync::atomic::{AtomicBool, Ordering};

fn main() {
    common::run(2, "MODEL.toml \"text\"", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, ids) = common::open(arguments, false)?;
    let cancelled = AtomicBool::new(false);
    let decide = |view: &View| match (cancelled.load(Ordering::Relaxed), view.ended) {
        (true, _) => Action::Stop,
        (false, true) => Action::Write,
        (false, false) => Action::Read,
    };
    let observe = |event: &Event| {
        if event.written == 2 {
            cancelled.store(true, Ordering::Relaxed);
        }
    };
    let made = Session::new(&model, 1)?.simulate(&ids, &[], 0, decide, observe)?;
    println!("{}", model.detokenize(Side::Target, &made)?);
    Ok(())
}
