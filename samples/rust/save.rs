//! Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE
mod common;
use attnkit::{Session, Side};
use std::fs;

fn main() {
    common::run(3, "MODEL.toml \"text\" FILE", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, ids) = common::open(arguments, false)?;
    let mut session = Session::new(&model, 1)?;
    session.read(&ids, true)?;
    let mut made = session.generate(1)?;
    let named = |e| format!("{}: {}", arguments[2], e);
    fs::write(&arguments[2], &*session.save()?).map_err(named)?;

    let bytes = fs::read(&arguments[2]).map_err(named)?;
    made.extend(Session::load(&model, &bytes)?.generate(0)?);
    println!("{}", model.detokenize(Side::Target, &made)?);
    Ok(())
}
