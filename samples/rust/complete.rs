//! Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]
mod common;
use attnkit::{Model, Runtime, Sampling, Session, Side};
use std::io::Write;

fn main() {
    common::run(2, "MODEL.toml \"text\" [TOKENS [TEMPERATURE [STOP]]]", sample)
}

fn number<T: std::str::FromStr>(given: Option<&String>, default: T) -> common::Result<T> {
    Ok(given.map_or(Ok(default), |text| text.parse().map_err(|_| format!("{}: give a number", text)))?)
}

fn sample(arguments: &[String]) -> common::Result {
    let model = Model::open(&Runtime::new()?, &arguments[0])?;
    let mut prompt = model.tokenize(Side::Target, &arguments[1])?;
    if model.info().begin_id >= 0 {
        prompt.insert(0, model.info().begin_id);
    }
    let stops: Vec<&str> = arguments.get(4).map(String::as_str).into_iter().collect();
    let (mut made, mut shown) = (Vec::new(), 0);
    let mut show = |made: &[i32], all: bool| {
        let text = model.detokenize(Side::Target, made).expect("ids of the vocabulary");
        // A character may take several tokens; until the last of them it is U+FFFD. So may the stop, which is not shown.
        if !all && text.ends_with('\u{fffd}') {
            return;
        }
        let kept = if all { 0 } else { stops.first().map_or(0, |stop| stop.len() - 1) };
        let end = stops.first().and_then(|stop| text.find(stop)).unwrap_or_else(|| text.len().saturating_sub(kept));
        if end > shown {
            let mut out = std::io::stdout();
            out.write_all(&text.as_bytes()[shown..end]).and_then(|()| out.flush()).expect("standard output is open");
            shown = end;
        }
    };
    let sampling = Sampling {
        limit: number(arguments.get(2), 64)?,
        temperature: number(arguments.get(3), 0.8)?,
        top_p: 0.95,
        seed: 1,
        stops: &stops,
        ..Sampling::default()
    };
    Session::new(&model, 1)?.sample(&prompt, &sampling, |id| {
        made.push(id);
        show(&made, false);
        true
    })?;
    show(&made, true);
    println!();
    Ok(())
}
