// The common part of the samples.
use attnkit::{Model, Result, Runtime, Side};
use std::path::Path;

// The model of the first argument and the second argument's ids; streaming: so that a source may grow.
pub fn open(streaming: bool) -> Result<(Model, Vec<i32>)> {
    let (path, phrase) = (argument(1), argument(2));
    let mut toml = std::fs::read_to_string(&path).expect("the manifest can be read");
    if streaming && !toml.lines().any(|line| line.trim_start().starts_with("[stream]")) {
        toml += "\n[stream]\nreplay = true\n";
    }
    let model = Model::from_text(&Runtime::new()?, &toml, Path::new(&path).parent().unwrap_or_else(|| Path::new(".")))?;
    let mut ids = model.tokenize(Side::Source, &phrase)?;
    ids.push(model.info().end_id);
    Ok((model, ids))
}

pub fn argument(n: usize) -> String {
    std::env::args().nth(n).expect("usage: PROGRAM MODEL.toml \"text\" ...")
}
