//! The sample model through every call.
use attnkit::*;
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::thread;

const ENGLISH: &str = "two hundred and forty-one euros";
const LONG: &str = "two hundred and forty-one thousand three hundred and eleven euros"; // hundred twice
const GERMAN: &str = "zweihunderteinundvierzig Euro";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../samples/models/numbers-en-de")
}

fn model() -> Model {
    Model::open(&Runtime::new().unwrap(), folder().join("model.toml")).unwrap()
}

fn streaming() -> Model {
    let toml = std::fs::read_to_string(folder().join("model.toml")).unwrap() + "\n[stream]\nreplay = true\n";
    Model::from_text(&Runtime::new().unwrap(), &toml, folder()).unwrap()
}

fn source(model: &Model, text: &str) -> Vec<i32> {
    let mut ids = model.tokenize(Side::Source, text).unwrap();
    ids.push(model.info().end_id);
    ids
}

fn read(model: &Model) -> Session {
    let mut session = Session::new(model, 1).unwrap();
    session.read(&source(model, ENGLISH), true).unwrap();
    session
}

fn wait_k(k: usize) -> impl FnMut(&View) -> Action {
    move |view| if view.ended || view.read >= k + view.written { Action::Write } else { Action::Read }
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn translates() {
    let model = model();
    assert_eq!(model.translate(ENGLISH, 0, 0).unwrap(), GERMAN);
    assert_eq!(model.translate(ENGLISH, 3, 0).unwrap(), GERMAN);
    let texts = [ENGLISH, "half past three", "", "ten", "two euros"];
    let alone: Vec<_> = texts.iter().map(|text| model.translate(text, 2, 0).unwrap()).collect();
    let long = "ten ".repeat(1000);
    for batch in [1, 2, 16] {
        assert_eq!(model.translate_all(&texts, 2, 0, batch).unwrap(), alone);
        let refused = |texts: &[&str]| message(model.translate_all(texts, 1, 0, batch));
        assert!(refused(&["ten", "a zebra", "two"]).starts_with("text 1: "));
        assert!(refused(&["ten", "two", &long]).starts_with("text 2: source: 1001 tokens"));
    }
    assert!(message(model.translate_all(&texts, 1, 0, 0)).contains("batch 0"));
    assert_eq!(model.info().kind, Kind::EncoderDecoder);
    assert!(model.warnings().is_empty());
    assert!(model.describe(&[8]).unwrap().contains("attnkit.model-description/1"));
}

#[test]
fn runtime_says_what_it_has() {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() }).unwrap();
    assert!(runtime.list().unwrap().contains("\"softmax\""));
    assert!(runtime.describe().unwrap().contains("attnkit.runtime/1"));
    assert!(version().starts_with(|c: char| c.is_ascii_digit()));
    assert!(abi_minor() < 100);
}

#[test]
fn parents_may_go_first() {
    let session = {
        let runtime = Runtime::new().unwrap();
        let model = Model::open(&runtime, folder().join("model.toml")).unwrap();
        drop(runtime);
        read(&model)
    };
    assert!({ session }.generate(0).unwrap().len() > 2);
}

#[test]
fn errors_are_an_enum() {
    let runtime = Runtime::new().unwrap();
    let bad = "[model]\nnme = 1\n[one]\n";
    match Model::from_text(&runtime, bad, ".") {
        Err(Error::Invalid(failure)) => {
            assert!(failure.diagnostics.len() > 1);
            assert!(failure.diagnostics.iter().any(|d| d.is_error && (d.line, d.column) == (2, 1)));
        }
        other => panic!("{:?}", other),
    }
    assert_eq!(Model::check(&runtime, bad, ".").unwrap(), match Model::from_text(&runtime, bad, ".") {
        Err(e) => e.failure().diagnostics.clone(),
        Ok(_) => unreachable!(),
    });
    assert!(message(model().tokenize(Side::Source, "zebra")).contains("cannot spell"));
    assert!(message(model().tokenize(Side::Source, "a\0b")).contains("NUL"));
    assert!(message(Model::open(&runtime, "missing.toml")).contains("missing.toml"));
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 1, d_model: 8, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "linformer", place, "");
    assert!(block.is_err() || matches!(block.unwrap().plan(&Request::step(64, 4)), Err(Error::Unsupported(_))));
}

#[test]
fn steps_are_what_generate_does() {
    let model = model();
    let mut session = read(&model);
    let expected = session.fork().unwrap().generate(0).unwrap();
    let (mut made, mut logits) = (vec![model.info().begin_id], vec![0.0; model.info().outputs]);
    while *made.last().unwrap() != model.info().end_id {
        session.step(*made.last().unwrap(), Some(&mut logits)).unwrap();
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        made.push(best as i32);
    }
    assert_eq!(made[1..], expected);
}

#[test]
fn forks_and_saved_sessions_go_on_alike() {
    let model = model();
    let mut session = read(&model);
    session.step(model.info().begin_id, None).unwrap();
    let (mut fork, bytes) = (session.fork().unwrap(), session.save().unwrap());
    let mut loaded = Session::load(&model, &bytes).unwrap();
    assert_eq!((fork.rows(), loaded.rows()), (1, 1));
    let expected = session.generate(0).unwrap();
    assert_eq!(fork.generate(0).unwrap(), expected);
    assert_eq!(loaded.generate(0).unwrap(), expected);
    let mut damaged = bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(Session::load(&model, &damaged), Err(Error::Invalid(_))));
}

#[test]
fn many_sessions_and_rows_at_once() {
    let model = model();
    let (mut one, mut two) = (read(&model), Session::new(&model, 2).unwrap());
    two.read(&source(&model, "half past three"), true).unwrap();
    let (n, begin) = (model.info().outputs, model.info().begin_id);
    let mut together = vec![0.0; 3 * n];
    let tokens = Batch::of(&[[begin], [begin], [begin]]);
    Session::write_all(&mut [&mut one.fork().unwrap(), &mut two.fork().unwrap()], &tokens, Some(&mut together)).unwrap();
    let mut alone = vec![0.0; 3 * n];
    one.step(begin, Some(&mut alone[..n])).unwrap();
    two.write(&Batch::of(&[[begin], [begin]]), Some(&mut alone[n..])).unwrap();
    assert_eq!(together, alone);
    let (mut a, mut b) = (Session::new(&model, 1).unwrap(), Session::new(&model, 2).unwrap());
    let sources = [source(&model, ENGLISH), source(&model, "half past three")];
    let sources = Batch::of(&sources);
    let mut both = [&mut a, &mut b];
    assert!(message(Session::read_all(&mut both, &sources, &[true])).contains("2 sources and 1 of last for 2 sessions"));
    assert!(message(Session::read_all(&mut both, &sources, &[true, false])).contains("session 1: a source that grows"));
    Session::read_all(&mut both, &sources, &[true, true]).unwrap();
    let expected: Vec<_> = both.iter().map(|s| s.fork().unwrap().generate(0).unwrap()).collect();
    let mut forks: Vec<_> = both.iter().map(|s| s.fork().unwrap()).collect();
    let mut going: Vec<_> = forks.iter_mut().collect();
    let mut made = Session::generate_all(&mut going, 0, 0).unwrap();
    for (i, ended) in made.iter_mut().enumerate() {
        while ended.is_none() {
            *ended = Session::generate_all(&mut going[i..i + 1], 0, 1).unwrap().remove(0);
        }
    }
    assert_eq!(made.into_iter().flatten().collect::<Vec<_>>(), expected);
    assert!(message(Session::generate_all(&mut [], 0, 0)).contains("no sessions"));
    let mut read_together = vec![0.0; 3 * n];
    Session::write_all(&mut both, &tokens, Some(&mut read_together)).unwrap();
    assert_eq!(read_together, alone);
    two.write(&Batch::of(&[[10], [11]]), None).unwrap();
    let mut swapped = two.fork().unwrap();
    swapped.reorder(&[1, 0]).unwrap();
    let (mut a, mut b) = (vec![0.0; 2 * n], vec![0.0; 2 * n]);
    two.write(&Batch::of(&[[12], [13]]), Some(&mut a)).unwrap();
    swapped.write(&Batch::of(&[[13], [12]]), Some(&mut b)).unwrap();
    assert_eq!((&a[..n], &a[n..]), (&b[n..], &b[..n]));
    assert!(message(two.reorder(&[0])).contains("1 parents for 2 rows"));
    assert!(message(two.write(&Batch::of(&[[1], [1]]), Some(&mut [0.0; 3]))).contains("room for 3"));
    assert!(message(Session::write_all(&mut [], &Batch::of(&[[1]]), None)).contains("no sessions"));
}

#[test]
fn forward_is_encode_and_decode() {
    let model = model();
    let ids = source(&model, ENGLISH);
    let sources = Batch::of(&[ids.clone(), source(&model, "four")]);
    let targets = Batch::of(&[vec![1, 10, 11], vec![1]]);
    let mut all = vec![0.0; 2 * 3 * model.info().outputs];
    let mut rest = all.clone();
    model.forward(Some(&sources), Some(&targets), &mut all).unwrap();
    let encoded = model.encode(&sources).unwrap();
    model.decode(&encoded, &targets, &mut rest).unwrap();
    assert_eq!(all, rest);
    let borrowed = Batch::ids(&ids, &[ids.len() as i32]).unwrap();
    let mut first = vec![0.0; 3 * model.info().outputs];
    model.forward(Some(&borrowed), Some(&Batch::of(&[[1, 10, 11]])), &mut first).unwrap();
    assert_eq!(first, all[..first.len()]);
    assert!(message(model.forward(Some(&sources), Some(&targets), &mut [0.0])).contains("room for 1"));
}

#[test]
fn takes_the_sides_that_it_has_and_no_other() {
    let manifest = folder().join("../../manifests/language-model.toml");
    let (pair, writes) = (model(), Model::open(&Runtime::new().unwrap(), manifest).unwrap());
    let (some, none) = (Some(&[3, 4, 2]), Some(&[999999, -5, 7])); // none: of no vocabulary
    for (model, source, target, said) in [
        (&pair, None, None, "source must not be NULL: this model has an encoder"),
        (&pair, None, some, "source must not be NULL: this model has an encoder"),
        (&pair, some, None, "target must not be NULL: this model has a decoder"),
        (&writes, none, some, "source must be NULL: this model has no encoder"),
        (&writes, None, None, "target must not be NULL: this model has a decoder"),
    ] {
        let mut out = vec![0.0; 3 * model.info().outputs];
        let (sources, targets) = (source.map(|ids| Batch::of(&[ids])), target.map(|ids| Batch::of(&[ids])));
        assert_eq!(message(model.forward(sources.as_ref(), targets.as_ref(), &mut out)), said);
        let (source, target) = (source.map(Source::from), target.map(Source::from));
        assert_eq!(message(model.attention(Role::DecoderSelf, 1, source, target, &mut out[..4 * 3 * 3])), said);
    }
}

#[test]
fn attention_sums_to_one() {
    let model = model();
    let ids = source(&model, ENGLISH);
    let mut out = vec![0.0; 4 * 2 * ids.len()];
    let (source, target) = (Some(Source::from(&ids)), Some(Source::Ids(&[1, 10])));
    model.attention(Role::DecoderCross, 1, source, target, &mut out).unwrap();
    for row in out.chunks(ids.len()) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
    assert!(model.attention(Role::DecoderCross, 9, source, target, &mut out).is_err());
}

#[test]
fn streams_as_simulate_does() {
    let model = streaming();
    let ids = source(&model, ENGLISH);
    for k in [1, 3, 100] {
        let mut actions = Vec::new();
        let mut session = Session::new(&model, 1).unwrap();
        let expected = session.simulate(&ids, &[], 0, wait_k(k), |event| actions.push(event.action)).unwrap();
        assert_eq!(actions.iter().filter(|a| **a == Action::Write).count(), expected.len());
        for end in [ids.len(), ids.len() - 1] {
            let mut session = Session::new(&model, 1).unwrap();
            let units = ids[..end].iter().map(|&id| vec![id]);
            let made: Result<Vec<i32>> = session.stream(units, wait_k(k)).collect();
            assert_eq!(made.unwrap(), expected, "k {}, {} units", k, end);
        }
    }
    for (rules, decoder) in [("no_repeat = 1", ""), ("no_repeat = 2", ""), ("repetition_penalty = 1.8", ""), ("", ", max_length = 4")] {
        let toml = std::fs::read_to_string(folder().join("model.toml")).unwrap();
        let shorter = toml.replace("decoder = { layers = 3", &format!("decoder = {{ layers = 3{}", decoder));
        assert_eq!(decoder.is_empty(), shorter == toml);
        let text = format!("{}\n[stream]\nreplay = true\n[decode]\n{}\n", shorter, rules);
        let model = Model::from_text(&Runtime::new().unwrap(), &text, folder()).unwrap();
        let ids = source(&model, LONG);
        let expected = Session::new(&model, 1).unwrap().simulate(&ids, &[], 0, wait_k(1), |_| ()).unwrap();
        let mut session = Session::new(&model, 1).unwrap();
        let made: Result<Vec<i32>> = session.stream(ids.iter().map(|&id| vec![id]), wait_k(1)).collect();
        assert_eq!(made.unwrap(), expected, "{}{}", rules, decoder);
    }
    let mut session = Session::new(&model, 1).unwrap();
    let made: Vec<_> = session.stream(ids.iter().map(|&id| vec![id]), |_| Action::Write).collect();
    assert!(made.len() == 1 && message(made.into_iter().next().unwrap()).contains("must read first"));
}

#[test]
fn streams_wait_where_the_source_so_far_allows_no_more() {
    let toml = std::fs::read_to_string(folder().join("model.toml")).unwrap() + "\n[stream]\nreplay = true\n[decode]\nmin_length = 90\n";
    let model = Model::from_text(&Runtime::new().unwrap(), &toml, folder()).unwrap();
    let ids = source(&model, ENGLISH);
    let taken = std::cell::Cell::new(0);
    let units = ids.iter().map(|&id| {
        taken.set(taken.get() + 1);
        vec![id]
    });
    let eager = |view: &View| if view.read == 0 { Action::Read } else { Action::Write };
    let mut session = Session::new(&model, 1).unwrap();
    let read: Vec<usize> = session.stream(units, eager).map(|id| id.map(|_| taken.get()).unwrap()).collect();
    assert_eq!(read.len(), ids.len() * 3 / 2 + 20);
    assert_eq!(read[20..25], [1, 2, 2, 3, 4]); // 21 tokens of one token of the source, 23 of two, 24 of three
}

#[test]
fn a_policy_can_cancel_and_panic() {
    let model = streaming();
    let ids = source(&model, ENGLISH);
    let mut session = Session::new(&model, 1).unwrap();
    let stop = |view: &View| if view.written == 2 { Action::Stop } else { wait_k(1)(view) };
    assert_eq!(session.simulate(&ids, &[], 0, stop, |_| ()).unwrap().len(), 2);
    assert_eq!(Session::new(&model, 1).unwrap().stream(ids.iter().map(|&id| vec![id]), stop).count(), 2);
    let mut session = Session::new(&model, 1).unwrap();
    let thrown = catch_unwind(AssertUnwindSafe(|| session.simulate(&ids, &[], 0, |_| panic!("no"), |_| ())));
    assert_eq!(thrown.unwrap_err().downcast_ref::<&str>(), Some(&"no"));
}

#[test]
fn threads_share_a_model() {
    fn check<T: Send + Sync>() {}
    fn moves<T: Send>() {}
    check::<Runtime>();
    check::<Model>();
    check::<Encoded>();
    check::<Block>();
    check::<Blob>();
    moves::<Session>();
    let model = model();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(model.translate(ENGLISH, 1, 0).unwrap(), GERMAN));
        }
    });
}

#[test]
fn weights_and_verification() {
    let model = model();
    let weights = model.weights().unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    assert!(header < weights.len() && weights[8] == b'{');
    assert!(message(model.verify("missing.safetensors")).contains("missing.safetensors"));
}

#[test]
fn speech() {
    let path = folder().join("../numbers-speech/model.toml");
    let model = Model::open(&Runtime::new().unwrap(), path).unwrap();
    let info = model.info().clone();
    let samples: Vec<f32> = (0..2 * info.sample_rate).map(|i| (i as f32 * 0.05).sin() * 0.1).collect();
    let frames = model.features(&samples).unwrap();
    let rows = (samples.len() - info.frame_length) / info.frame_shift + 1;
    assert_eq!(frames.len(), rows * info.features);
    let (mut whole, mut framed) = (Session::new(&model, 1).unwrap(), Session::new(&model, 1).unwrap());
    whole.read(&samples, true).unwrap();
    framed.read(Source::Frames(&frames, info.features), true).unwrap();
    assert_eq!(whole.generate(5).unwrap(), framed.generate(5).unwrap());
    let batch = Batch::samples(&samples, &[samples.len() as i32]).unwrap();
    assert!(model.encode(&batch).is_ok());
    assert!(message(Batch::frames(&frames[1..], info.features, &[1])).contains("whole rows"));
}

#[test]
fn length_is_told() {
    let toml = std::fs::read_to_string(folder().join("model.toml")).unwrap();
    let mut session = Session::new(&Model::from_text(&Runtime::new().unwrap(), &toml, folder()).unwrap(), 1).unwrap();
    session.set_length(12.5).unwrap();
    assert!(session.describe().unwrap().contains("12.5"));
    assert!(message(session.set_length(-1.0)).contains("-1"));
}

#[test]
fn samples() {
    let model = model();
    let expected = read(&model).generate(0).unwrap();
    let (best, mut seen) = (Sampling::default(), Vec::new());
    assert_eq!(read(&model).sample(&[], &best, |_| true).unwrap(), expected);
    let until_two = |id| {
        seen.push(id);
        seen.len() < 2
    };
    assert_eq!(read(&model).sample(&[], &best, until_two).unwrap(), expected[..2]);
    assert_eq!(seen, expected[..2]);
    let word = model.detokenize(Side::Target, &expected[1..2]).unwrap();
    let stopped = Sampling { stops: &["nowhere", word.trim()], ..Sampling::default() };
    assert_eq!(read(&model).sample(&[], &stopped, |_| true).unwrap(), expected[..2]);
    let hot = Sampling { temperature: 1000.0, seed: 1, limit: 8, ..Sampling::default() };
    let drawn = read(&model).sample(&[], &hot, |_| true).unwrap();
    assert_eq!(drawn, read(&model).sample(&[], &hot, |_| true).unwrap());
    assert_ne!(drawn, read(&model).sample(&[], &Sampling { seed: 2, ..hot }, |_| true).unwrap());
}

// Every class of error, of the plugin tests/abi/failing/fails.c.
#[test]
fn errors_of_every_class() {
    let plugin_path = match std::env::var("ATTNKIT_TEST_FAILING") {
        Ok(path) => path,
        Err(_) => return, // built by CMake, which says where
    };
    let runtime = Runtime::with(&Options { threads: 1, plugin_path, ..Options::default() }).unwrap();
    let place = Place { role: Role::EncoderSelf, causal: false, heads: 1, d_model: 1, head_width: 0, kv_heads: 0, key_width: 0 };
    for name in ["create", "plan", "run"] {
        for code in [1, 2, 3, 4, 5, 77] {
            let error = failure_of(&runtime, place, &format!("code = {}, in = '{}'", code, name)).unwrap_err();
            assert!(match (&error, code) {
                (Error::Invalid(_), 1) | (Error::Unsupported(_), 2) | (Error::NoMemory(_), 3) | (Error::Device(_), 4) => true,
                (Error::Internal(_), _) => code == 5 || code == 77,
                _ => false,
            });
            let said = error.to_string();
            assert!(said.contains(if code == 77 { "returned code 77" } else { "fails: told to fail in" }), "{}", said);
        }
    }
    let error = failure_of(&runtime, place, "in = 'scratch'").unwrap_err();
    assert!(matches!(error, Error::NoMemory(_)) && error.to_string().contains("2305843009213693952 bytes of scratch"), "{}", error);
}

fn failure_of(runtime: &Runtime, place: Place, options: &str) -> Result<()> {
    let block = Block::new(runtime, "fails", place, options)?;
    let request = Request::whole(1, 1, 1);
    block.plan(&request)?;
    let (v, mut out) = ([1f32], [0f32]);
    let ports = vec![Tensor::new(&v, &[1, 1, 1, 1])?, Tensor::new_mut(&mut out, &[1, 1, 1, 1])?];
    block.run(&request, &mut Run { sizes: (1, 1, 1), ports, ..Run::default() })
}

#[test]
fn a_block_has_keys_of_its_own() {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() }).unwrap();
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 4, d_model: 8, head_width: 0, kv_heads: 2, key_width: 3 };
    let block = Block::new(&runtime, "softmax", place, "").unwrap();
    let shape = |name| block.ports().iter().find(|p| p.name == name).unwrap().shape.clone();
    assert_eq!((shape("q"), shape("k"), shape("v")), (vec![0, 4, 0, 3], vec![0, 2, 0, 3], vec![0, 2, 0, 3]));
}

#[test]
fn a_block_by_itself() {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() }).unwrap();
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 1, d_model: 1, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "relu", place, "").unwrap();
    assert_eq!(block.ports().iter().map(|p| &p.name[..]).collect::<Vec<_>>(), ["q", "k", "v", "o"]);
    let (q, k, v) = ([1f32; 3], [1f32, 3., 4.], [10f32, 20., 40.]);
    let column = |x| Tensor::new(x, &[1, 1, 3, 1]).unwrap();
    let (mut o, mut dv, mut saved) = ([0f32; 3], [0f32; 3], Aligned::new(1, 4096));
    let request = Request { flags: sys::ATTN_TRAIN, ..Request::whole(1, 3, 3) };
    let mut run = Run {
        sizes: (1, 3, 3),
        ports: vec![column(&q), column(&k), column(&v), Tensor::new_mut(&mut o, &[1, 1, 3, 1]).unwrap()],
        saved: Some(&mut saved),
        ..Run::default()
    };
    block.run(&request, &mut run).unwrap();
    let given = [0f32, 0., 1.];
    let written = Tensor::new_mut(&mut dv, &[1, 1, 3, 1]).unwrap();
    let mut grads = [Tensor::absent(), Tensor::absent(), written, column(&given)];
    // SAFETY: saved is as the run before left it.
    unsafe { block.backward(&request, &mut run, &mut grads) }.unwrap();
    assert_eq!(o, [10., 17.5, 28.75]);
    assert_eq!(dv, [0.125, 0.375, 0.5]);
}

#[test]
fn a_block_with_a_state() {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() }).unwrap();
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 1, d_model: 1, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "relu", place, "").unwrap();
    let request = Request::step(1, 3);
    let mut state = Aligned::new(1, block.plan(&request).unwrap().state_bytes);
    let mut made = Vec::new();
    for (t, (k, v)) in [(1f32, 10f32), (3., 20.), (4., 40.)].into_iter().enumerate() {
        let (q, k, v, mut o, position) = ([1f32], [k], [v], [0f32], [t as i32]);
        let one = |x| Tensor::new(x, &[1, 1, 1, 1]).unwrap();
        let mut run = Run {
            sizes: (1, 1, 1),
            ports: vec![one(&q), one(&k), one(&v), Tensor::new_mut(&mut o, &[1, 1, 1, 1]).unwrap()],
            q_pos: Some(&position),
            k_pos: Some(&position),
            state: Some(&mut state),
            ..Run::default()
        };
        block.run(&request, &mut run).unwrap();
        made.push(o[0]);
    }
    assert_eq!(made, [10., 17.5, 28.75]);
}

#[test]
fn what_would_be_unsafe_is_refused() {
    let runtime = Runtime::with(&Options { threads: 1, ..Options::default() }).unwrap();
    let place = Place { role: Role::DecoderSelf, causal: true, heads: 1, d_model: 1, head_width: 0, kv_heads: 0, key_width: 0 };
    let block = Block::new(&runtime, "relu", place, "").unwrap();
    let (data, request) = ([1f32; 3], Request::step(1, 3));
    assert!(message(Tensor::new(&data, &[1, 1, 4, 1])).contains("past the 3 numbers"));
    assert!(message(Tensor::strided(&data, &[2, 2], &[2, 1])).contains("past the 3 numbers"));
    assert!(Tensor::strided(&data, &[2, 1], &[2, 1]).is_ok());
    assert!(message(Tensor::new(&data, &[i64::MAX, i64::MAX])).contains("past"));
    assert!(message(Tensor::new(&data, &[-1, 1])).contains("from 0"));
    let one = || Tensor::new(&data[..1], &[1, 1, 1, 1]).unwrap();
    let mut state = Aligned::new(2, 64);
    let mut refused = |change: &dyn Fn(&mut Run<'_>), writable: bool| {
        let mut o = [0f32];
        let out = if writable { Tensor::new_mut(&mut o, &[1, 1, 1, 1]).unwrap() } else { one() };
        let mut run = Run { sizes: (1, 1, 1), ports: vec![one(), one(), one(), out], ..Run::default() };
        run.state = Some(&mut state);
        change(&mut run);
        message(block.run(&request, &mut run))
    };
    assert!(refused(&|_| (), false).contains("is written to"));
    assert!(refused(&|run| run.slots = Some(&[2]), true).contains("2 rows"));
    assert!(refused(&|run| run.slots = Some(&[-1]), true).contains("2 rows"));
    assert!(refused(&|run| run.sizes.0 = i64::MAX, true).contains("a batch of 9223372036854775807 for a state with 2 rows"));
    assert!(refused(&|run| run.q_pos = Some(&[0, 0]), true).contains("q_pos has 2 entries"));
    assert!(refused(&|run| { run.ports.pop(); }, true).contains("3 tensors for 4 ports"));
    let mut weights = [0f32; 16];
    let place = Place { role: Role::DecoderCross, causal: false, heads: 4, d_model: 32, head_width: 0, kv_heads: 0, key_width: 0 };
    let leap = Block::new(&runtime, "leap", place, "").unwrap();
    let port = leap.ports().iter().position(|p| p.kind == sys::ATTN_LEARNED).unwrap();
    let shape = leap.ports()[port].shape.clone();
    assert!(message(leap.fill(port, 7, &mut Tensor::new(&weights, &shape).unwrap())).contains("written to"));
    leap.fill(port, 7, &mut Tensor::new_mut(&mut weights, &shape).unwrap()).unwrap();
    assert!(weights.iter().any(|&w| w != 0.0));
    let far = port + (1 << 32);
    assert!(message(leap.fill(far, 7, &mut Tensor::new_mut(&mut weights, &shape).unwrap())).contains(&format!("port {}", far)));
    let least = Place { heads: u32::MAX, d_model: i32::MIN, ..place };
    assert!(matches!(Block::new(&runtime, "leap", least, ""), Err(Error::Invalid(_))));
}

#[test]
fn paths_of_any_bytes() {
    let name = [b"attnkit-\xff-", std::process::id().to_string().as_bytes()].concat();
    let there = std::env::temp_dir().join(std::ffi::OsStr::from_bytes(&name));
    std::os::unix::fs::symlink(folder(), &there).unwrap();
    let (runtime, toml) = (Runtime::new().unwrap(), std::fs::read_to_string(there.join("model.toml")).unwrap());
    let opened = Model::open(&runtime, there.join("model.toml"));
    let (made, found) = (Model::from_text(&runtime, &toml, &there), Model::check(&runtime, &toml, &there));
    std::fs::remove_file(&there).unwrap();
    assert_eq!(opened.unwrap().translate(ENGLISH, 1, 0).unwrap(), GERMAN);
    assert!(made.is_ok());
    assert_eq!(found.unwrap(), []);
}

#[test]
fn attention_of_a_whole_recording() {
    let manifests = folder().join("../../manifests");
    let toml = std::fs::read_to_string(manifests.join("whisper.toml")).unwrap();
    for frames in [200, 199] {
        let text = toml.replace("frames = 200", &format!("frames = {}", frames));
        let model = Model::from_text(&Runtime::new().unwrap(), &text, &manifests).unwrap();
        let (samples, mut out) = (vec![0f32; 1600], vec![0f32; 4 * 2 * 100]);
        model.attention(Role::DecoderCross, 1, Some((&samples).into()), Some((&[1, 5]).into()), &mut out).unwrap();
        assert!(out.chunks(100).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-4));
    }
}
