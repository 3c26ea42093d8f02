//! What is said in a recording.   transcribe MODEL.toml RECORDING.wav
mod common;
use attnkit::{Model, Runtime, Session, Side};

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

// The samples of a WAV file of 16 bits, one channel and this rate; nothing of another file.
fn samples_of(file: &[u8], rate: usize) -> Option<Vec<f32>> {
    let (mut at, mut good) = (12, false); // good: what the fmt chunk says
    if file.get(..4)? != b"RIFF" || file.get(8..12)? != b"WAVE" {
        return None;
    }
    loop {
        let (name, size) = (file.get(at..at + 4)?, number(file.get(at + 4..at + 8)?) as usize);
        let chunk = &file[at + 8..file.len().min(at + 8 + size)];
        if name == b"data" {
            return good.then(|| chunk.chunks_exact(2).map(|x| f32::from(number(x) as i16) / 32768.0).collect());
        }
        if name == b"fmt " {
            good = [number(chunk.get(2..4)?), number(chunk.get(4..8)?), number(chunk.get(14..16)?)] == [1, rate as u32, 16];
        }
        at += 8 + size + size % 2;
    }
}

fn main() {
    common::run(2, "MODEL.toml RECORDING.wav", sample)
}

fn sample(arguments: &[String]) -> common::Result {
    let model = Model::open(&Runtime::new()?, &arguments[0])?;
    let path = &arguments[1];
    let file = std::fs::read(path).map_err(|e| format!("{}: {}", path, e))?;
    let samples = samples_of(&file, model.info().sample_rate)
        .ok_or_else(|| format!("{}: no WAV file of 16 bits and one channel at the model's rate", path))?;
    let mut session = Session::new(&model, 1)?;
    session.read(&samples, true)?;
    println!("{}", model.detokenize(Side::Target, &session.generate(0)?)?);
    Ok(())
}
