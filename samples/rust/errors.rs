//! What errors look like.   errors MODEL.toml "text" [FOLDER]
//! FOLDER: where fails.so of samples/failing_plugin is, for an error of every class; absolute.
mod common;
use attnkit::{sys, Block, Error, Model, Options, Place, Request, Result, Role, Runtime, Side};

fn show<T>(result: Result<T>) {
    match result {
        Ok(_) => println!("no error"),
        Err(Error::Invalid(f)) => println!("invalid, {} diagnostics: {}", f.diagnostics.len(), f.message),
        Err(Error::Unsupported(f)) => println!("unsupported: {}", f.message),
        Err(Error::NoMemory(f)) => println!("no memory: {}", f.message),
        Err(Error::Device(f)) => println!("device: {}", f.message),
        Err(Error::Internal(f)) => println!("internal: {}", f.message),
        Err(later) => println!("an error that this program does not know: {}", later),
    }
}

fn main() {
    common::run(2, "MODEL.toml \"text\" [FOLDER]", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, _) = common::open(arguments, false)?;
    let runtime = Runtime::new()?;
    show(Model::from_text(&runtime, "[model]\nkind = 3\n[what]\n", "."));
    show(model.tokenize(Side::Source, "zebra"));
    let place = Place { role: Role::EncoderSelf, causal: false, heads: 1, d_model: 8, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "softmax", place, "")?;
    show(block.plan(&Request { flags: sys::ATTN_STREAM, ..Request::whole(64, 1, 1) }));
    if let Some(plugin_path) = arguments.get(2).cloned() {
        let failing = Runtime::with(&Options { plugin_path, ..Options::default() })?;
        for code in sys::ATTN_INVALID..=sys::ATTN_INTERNAL {
            show(Block::new(&failing, "fails", place, &format!("code = {}", code)));
        }
    }
    Ok(())
}
