//! How alike texts are to the first: cosines of their vectors.   embed MODEL.toml "text" "text" ...
mod common;
use attnkit::{Batch, Model, Runtime, Side};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

fn main() {
    common::run(3, "MODEL.toml \"text\" \"text\" ...", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let (model, texts) = (Model::open(&Runtime::new()?, &arguments[0])?, &arguments[1..]);
    let mut sources = Vec::new();
    for text in texts {
        let mut ids = model.tokenize(Side::Source, text)?;
        ids.push(model.info().end_id);
        sources.push(ids);
    }
    let mut vectors = vec![0.0; sources.len() * model.info().outputs];
    model.forward(Some(&Batch::of(&sources)), None, &mut vectors)?;
    let rows: Vec<&[f32]> = vectors.chunks(model.info().outputs).collect();
    for (row, text) in rows.iter().zip(texts).skip(1) {
        println!("{:.4} {}", dot(rows[0], row) / (dot(rows[0], rows[0]) * dot(row, row)).sqrt(), text);
    }
    Ok(())
}
