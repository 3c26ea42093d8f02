//! One source read once, two continuations.   fork MODEL.toml "text"
mod common;
use attnkit::{Session, Side};

fn main() {
    common::run(2, "MODEL.toml \"text\"", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, ids) = common::open(arguments, false)?;
    let mut session = Session::new(&model, 1)?;
    session.read(&ids, true)?;
    let fork = session.fork()?;
    for mut one in [session, fork] {
        println!("{}", model.detokenize(Side::Target, &one.generate(0)?)?);
    }
    Ok(())
}
