//! Text through a model.   translate MODEL.toml "text" [plugin folder, absolute]
use attnkit::{Error, Model, Options, Runtime, Session, Side};

// The translation, and what the session then holds.
fn translate(manifest: &str, phrase: &str, plugins: &str) -> attnkit::Result<String> {
    let runtime = Runtime::with(&Options { plugin_path: plugins.to_string(), ..Options::default() })?;
    let model = Model::open(&runtime, manifest)?;
    let mut source = model.tokenize(Side::Source, phrase)?;
    source.push(model.info().end_id);
    let mut session = Session::new(&model, 0)?;
    session.read(&source, true)?;
    let translation = model.detokenize(Side::Target, &session.generate(0)?)?;
    Ok(format!("{}\n{}", translation, session.describe()?))
}

fn show(manifest: &str, error: &Error) {
    for d in &error.failure().diagnostics {
        let kind = if d.is_error { "error" } else { "warning" };
        eprintln!("{}:{}:{}: {}[AK{}]: {}", manifest, d.line, d.column, kind, d.code, d.message);
    }
    eprintln!("translate: {}", error);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (manifest, phrase, plugins) = match &arguments[..] {
        [manifest, phrase] => (manifest, phrase, ""),
        [manifest, phrase, plugins] => (manifest, phrase, &plugins[..]),
        _ => {
            eprintln!("usage: translate MODEL.toml \"text\" [plugin folder]");
            std::process::exit(2)
        }
    };
    match translate(manifest, phrase, plugins) {
        Ok(output) => println!("{}", output),
        Err(error) => {
            show(manifest, &error);
            std::process::exit(1)
        }
    }
}
