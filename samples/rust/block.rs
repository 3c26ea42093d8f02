//! One mechanism by itself: three tokens, causal.
mod common;
use attnkit::{Block, Options, Place, Request, Role, Run, Runtime, Tensor};

fn main() {
    common::run(0, "", sample)
}

fn sample(_: &[String]) -> common::Result {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() })?;
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 1, d_model: 1, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "relu", place, "")?;
    let (q, k, v, mut o) = ([1f32; 3], [1f32, 3., 4.], [10f32, 20., 40.], [0f32; 3]);
    let column = |values| Tensor::new(values, &[1, 1, 3, 1]);
    let ports = vec![column(&q)?, column(&k)?, column(&v)?, Tensor::new_mut(&mut o, &[1, 1, 3, 1])?]; // as block.ports() has them
    block.run(&Request::whole(1, 3, 3), &mut Run { sizes: (1, 3, 3), ports, ..Run::default() })?;
    println!("{} {} {}", o[0], o[1], o[2]);
    Ok(())
}
