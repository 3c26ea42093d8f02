//! What refusals look like.   errors MODEL.toml "text"
mod common;
use attnkit::{sys, Block, Error, Model, Place, Request, Result, Role, Runtime, Side};

fn show<T>(result: Result<T>) {
    match result {
        Ok(_) => println!("no error"),
        Err(Error::Invalid(f)) => println!("invalid, {} diagnostics: {}", f.diagnostics.len(), f.message),
        Err(Error::Unsupported(f)) => println!("unsupported: {}", f.message),
        Err(other) => println!("not the caller's fault: {}", other),
    }
}

fn main() -> Result<()> {
    let (model, _) = common::open(false)?;
    let runtime = Runtime::new()?;
    show(Model::from_text(&runtime, "[model]\nkind = 3\n[what]\n", "."));
    show(model.tokenize(Side::Source, "zebra"));
    let place = Place { role: Role::EncoderSelf, causal: false, heads: 1, d_model: 8, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "softmax", place, "")?;
    show(block.plan(&Request { flags: sys::ATTN_STREAM, ..Request::whole(64, 1, 1) }));
    Ok(())
}
