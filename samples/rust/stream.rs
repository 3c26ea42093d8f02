//! Translates while the source arrives, three tokens behind.   stream MODEL.toml "text"
mod common;
use attnkit::{Action, Session, Side, View};
use std::cell::Cell;

fn main() {
    common::run(2, "MODEL.toml \"text\"", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, ids) = common::open(arguments, true)?;
    let mut session = Session::new(&model, 1)?;
    let (read, mut made) = (Cell::new(0), Vec::new());
    let wait_3 = |view: &View| {
        read.set(view.read);
        if view.ended || view.read >= 3 + view.written { Action::Write } else { Action::Read }
    };
    for id in session.stream(ids.into_iter().map(|id| vec![id]), wait_3) {
        made.push(id?);
        println!("{} {}", read.get(), made.len());
    }
    println!("{}", model.detokenize(Side::Target, &made)?);
    Ok(())
}
