//! Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]
use attnkit::{Model, Result, Runtime, Sampling, Session, Side};
use std::io::Write;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
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
        limit: arguments.get(2).map_or(64, |n| n.parse().expect("a number of tokens")),
        temperature: arguments.get(3).map_or(0.8, |t| t.parse().expect("a temperature")),
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
