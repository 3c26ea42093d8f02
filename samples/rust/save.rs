//! Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE
mod common;
use attnkit::{Result, Session, Side};
use std::fs;

fn main() -> Result<()> {
    let (model, ids) = common::open(false)?;
    let mut session = Session::new(&model, 1)?;
    session.read(&ids, true)?;
    let mut made = session.generate(1)?;
    fs::write(common::argument(3), &*session.save()?).expect("the file can be written");

    let bytes = fs::read(common::argument(3)).expect("the file can be read");
    made.extend(Session::load(&model, &bytes)?.generate(0)?);
    println!("{}", model.detokenize(Side::Target, &made)?);
    Ok(())
}
