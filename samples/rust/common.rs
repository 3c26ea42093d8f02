// The common part of the samples.
use attnkit::{Model, Runtime, Side};
use std::path::Path;
use std::process::exit;

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

// Main: the sample with its arguments, of which it needs `n`; an error ends the program as a line.
pub fn run(n: usize, usage: &str, sample: fn(&[String]) -> Result) {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() <= n {
        eprintln!("usage: {} {}", arguments[0], usage);
        exit(2);
    }
    if let Err(error) = sample(&arguments[1..]) {
        eprintln!("{}", error);
        exit(1);
    }
}

// The model of the first argument and the second argument's ids; streaming: so that a source may grow.
#[allow(dead_code)] // some samples open theirs
pub fn open(arguments: &[String], streaming: bool) -> Result<(Model, Vec<i32>)> {
    let path = &arguments[0];
    let mut toml = std::fs::read_to_string(path).map_err(|e| format!("{}: {}", path, e))?;
    if streaming && !toml.lines().any(|line| line.trim_start().starts_with("[stream]")) {
        toml += "\n[stream]\nreplay = true\n";
    }
    let model = Model::from_text(&Runtime::new()?, &toml, Path::new(path).parent().unwrap_or_else(|| Path::new(".")))?;
    let mut ids = model.tokenize(Side::Source, &arguments[1])?;
    ids.push(model.info().end_id);
    Ok((model, ids))
}
