//! Prints the nanoseconds of a one-token call for each line that it reads.   step MODEL.toml STEPS
use attnkit::{Model, Result, Runtime, Session};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = Model::open(&Runtime::new()?, &arguments[0])?;
    let mut logits = vec![0.0; model.info().outputs];
    let steps: i32 = arguments[1].parse().expect("a number of steps");
    for _ in std::io::stdin().lines() {
        let mut session = Session::new(&model, 1)?;
        let start = std::time::Instant::now();
        for i in 0..steps {
            session.step(i % 16, Some(&mut logits))?;
        }
        println!("{}", start.elapsed().as_nanos() as f64 / f64::from(steps));
    }
    Ok(())
}
