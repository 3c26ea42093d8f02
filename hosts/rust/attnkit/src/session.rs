//! A session: one input being decoded; its rows are its beams.
use crate::call::{c_text, call, text_of, Blob, Handle};
use crate::error::{Error, Result};
use crate::model::{raw, Facts, Model, ModelInfo};
use crate::stream::{Action, Event, Stream, View};
use crate::tensor::{Batch, Source, Tensor};
use attnkit_sys as sys;
use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::str::FromStr;

/// The way tokens are drawn; see attnkit_sample_options. A number that is 0 means its default.
#[derive(Clone, Debug, Default)]
pub struct Sampling<'a> {
    /// Most tokens; 0: as [`Session::generate`].
    pub limit: usize,
    /// Scores of tokens that were there are divided by it, or times it where they are below 0.
    pub repetition_penalty: f64,
    /// Scores are divided by it; 0: always the best token.
    pub temperature: f64,
    /// Only so many of the best.
    pub top_k: u64,
    /// Only the best that have this probability together.
    pub top_p: f64,
    /// The same seed gives the same text.
    pub seed: u64,
    /// Texts of one seed that differ in it are unrelated.
    pub stream: u64,
    /// Tokens beside the prompt and those drawn that count as there.
    pub seen: &'a [i32],
    /// The token that completes one of them in the text of what is drawn is the last; the output is the text before it.
    pub stops: &'a [&'a str],
}

/// One input being decoded; its rows are its beams. It moves between threads, and two never have it at once:
///
/// ```no_run
/// # fn f(mut session: attnkit::Session) {
/// std::thread::spawn(move || session.generate(0));
/// # }
/// ```
/// ```compile_fail,E0277
/// # fn f(session: &attnkit::Session) {
/// std::thread::scope(|scope| {
///     scope.spawn(|| session.save()); // `attnkit::Session` cannot be shared between threads
/// });
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    handle: Handle<sys::attnkit_session>,
    rows: usize,
    pub(crate) info: ModelInfo,
    pub(crate) facts: Facts,
}

// SAFETY: "different sessions: any threads at once".  Not Sync: one call at a time.
unsafe impl Send for Session {}

impl Session {
    /// An empty session of `rows` beams; 0: as `[decode]` in the manifest says.
    pub fn new(model: &Model, rows: u32) -> Result<Self> {
        let make = |to, err| unsafe { sys::attnkit_session_create(model.handle.get(), rows, to, err) };
        let handle = Handle::make(sys::attnkit_session_destroy, make)?;
        let info = model.info().clone();
        Ok(Session { handle, rows: if rows == 0 { info.beams } else { rows } as usize, info, facts: model.facts })
    }

    /// The session whose bytes [`Session::save`] gave. They must come from someone you trust.
    pub fn load(model: &Model, bytes: &[u8]) -> Result<Self> {
        let make = |to, err| unsafe {
            sys::attnkit_session_load(model.handle.get(), bytes.as_ptr().cast(), bytes.len() as u64, to, err)
        };
        let handle = Handle::make(sys::attnkit_session_destroy, make)?;
        let mut session = Session { handle, rows: 0, info: model.info().clone(), facts: model.facts };
        session.rows = number(&session.describe()?, "rows");
        Ok(session)
    }

    /// An independent copy, which continues bitwise like this one.
    pub fn fork(&self) -> Result<Self> {
        let make = |to, err| unsafe { sys::attnkit_session_clone(self.handle.get(), to, err) };
        let handle = Handle::make(sys::attnkit_session_destroy, make)?;
        Ok(Session { handle, rows: self.rows, info: self.info.clone(), facts: self.facts })
    }

    /// The number of beams.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row i becomes what row `parents[i]` was.
    pub fn reorder(&mut self, parents: &[u32]) -> Result<()> {
        if parents.len() != self.rows {
            return Err(Error::invalid(format!("{} parents for {} rows", parents.len(), self.rows)));
        }
        call(|err| unsafe { sys::attnkit_session_reorder(self.handle.get(), parents.as_ptr(), err) })
    }

    /// Reads the source, or more of it; last: it is complete.
    pub fn read<'a>(&mut self, source: impl Into<Source<'a>>, last: bool) -> Result<()> {
        let t = source.into().tensor()?;
        call(|err| unsafe { sys::attnkit_session_read(self.handle.get(), &t.raw, last as u32, err) })
    }

    /// Reads a sequence of `sources` for each of different sessions of one model and encodes them together; last: for each
    /// whether its source is complete.
    pub fn read_all(sessions: &mut [&mut Session], sources: &Batch<'_>, last: &[bool]) -> Result<()> {
        if sources.rows() != sessions.len() || last.len() != sessions.len() {
            let (rows, n, ends) = (sources.rows(), sessions.len(), last.len());
            return Err(Error::invalid(format!("{} sources and {} of last for {} sessions", rows, ends, n)));
        }
        let handles: Vec<_> = sessions.iter().map(|session| session.handle.get()).collect();
        let last: Vec<u32> = last.iter().map(|&last| last as u32).collect();
        let (t, n) = (sources.tensor()?, handles.len() as u32);
        call(|err| unsafe {
            sys::attnkit_sessions_read(handles.as_ptr(), n, &t.raw, sources.lengths(), last.as_ptr(), err)
        })
    }

    /// Sets the whole length of the target, `</s>` included, for mechanisms that need it.
    pub fn set_length(&mut self, target_length: f64) -> Result<()> {
        call(|err| unsafe { sys::attnkit_session_set_length(self.handle.get(), target_length, err) })
    }

    /// Appends a sequence of tokens to each row; logits: (rows, longest sequence, outputs).
    pub fn write(&mut self, tokens: &Batch<'_>, logits: Option<&mut [f32]>) -> Result<()> {
        Self::write_all(&mut [self], tokens, logits)
    }

    /// Appends one token to a session of one row; logits: (outputs).  The shortest way of a step.
    pub fn step(&mut self, token: i32, logits: Option<&mut [f32]>) -> Result<()> {
        if let Some(out) = &logits {
            room(out, 1, 1, self.info.outputs)?;
        }
        let (t, out, handle) = (Tensor::token(&token), logits.map(Tensor::logits), self.handle.get());
        call(|err| unsafe { sys::attnkit_session_write(&handle, 1, &t.raw, std::ptr::null(), raw(&out), err) })
    }

    /// Appends to different sessions of one model in one call, a sequence for each of their rows.
    pub fn write_all(sessions: &mut [&mut Session], tokens: &Batch<'_>, logits: Option<&mut [f32]>) -> Result<()> {
        let outputs = sessions.first().ok_or_else(|| Error::invalid("no sessions: give at least one"))?.info.outputs;
        let handles: Vec<_> = sessions.iter().map(|session| session.handle.get()).collect();
        let t = tokens.tensor()?;
        let out = logits.map(|out| logits_of(out, tokens.rows(), tokens.len(), outputs)).transpose()?;
        call(|err| unsafe {
            sys::attnkit_session_write(handles.as_ptr(), handles.len() as u32, &t.raw, tokens.lengths(), raw(&out), err)
        })
    }

    /// Ids until `</s>` or the limit, 0: as `[decode]` says, else 1.5 times the source and 20, of a decoder alone what
    /// `max_length` leaves; greedy with one row, beam search with more.
    pub fn generate(&mut self, limit: usize) -> Result<Vec<i32>> {
        let (mut ids, mut n) = (vec![0; self.info.max_length], 0);
        let limit = limit.min(self.info.max_length) as u32;
        call(|err| unsafe { sys::attnkit_session_generate(self.handle.get(), limit, ids.as_mut_ptr(), &mut n, err) })?;
        ids.truncate(n as usize);
        Ok(ids)
    }

    /// Continues different sessions of one model together, each as `generate` does, until one of them has ended, or for so
    /// many steps at most where steps is not 0: the ids of those that have ended, `None` for the others. Those go on where
    /// they are when they are given again, beside any others, under the limit of their first call.
    pub fn generate_all(sessions: &mut [&mut Session], limit: usize, steps: u32) -> Result<Vec<Option<Vec<i32>>>> {
        let most = sessions.first().ok_or_else(|| Error::invalid("no sessions: give at least one"))?.info.max_length;
        let handles: Vec<_> = sessions.iter().map(|session| session.handle.get()).collect();
        let (mut ids, mut lengths) = (vec![0; handles.len() * most], vec![0; handles.len()]);
        let (n, limit, width) = (handles.len() as u32, limit.min(most) as u32, most as u64);
        let (to, made) = (ids.as_mut_ptr(), lengths.as_mut_ptr());
        call(|err| unsafe { sys::attnkit_sessions_generate(handles.as_ptr(), n, limit, steps, to, width, made, err) })?;
        let each = ids.chunks(most).zip(lengths);
        Ok(each.map(|(ids, n)| (n > 0).then(|| ids[..n as usize].to_vec())).collect())
    }

    /// Tokens drawn behind a prompt; `each` sees every token before the next is computed, and says whether to go on. A panic of
    /// it ends the call and goes on.
    pub fn sample(&mut self, prompt: &[i32], sampling: &Sampling<'_>, each: impl FnMut(i32) -> bool) -> Result<Vec<i32>> {
        let mut drawing = Drawing { each, panic: None };
        let callback = drawing.callback();
        let texts = sampling.stops.iter().map(|stop| c_text(stop, "a stop")).collect::<Result<Vec<_>>>()?;
        let stops: Vec<_> = texts.iter().map(|stop| stop.as_ptr()).collect();
        let options = sys::attnkit_sample_options {
            limit: sampling.limit.min(self.info.max_length) as u32,
            repetition_penalty: sampling.repetition_penalty,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            seed: sampling.seed,
            stream: sampling.stream,
            seen: sampling.seen.as_ptr(),
            n_seen: sampling.seen.len() as u64,
            token: Some(callback),
            token_context: &mut drawing as *mut _ as usize,
            stops: stops.as_ptr(),
            n_stops: stops.len() as u64,
            ..Default::default()
        };
        let (mut ids, mut n) = (vec![0; self.info.max_length], 0);
        let (handle, length) = (self.handle.get(), prompt.len() as u64);
        let made = call(|err| unsafe {
            sys::attnkit_session_sample(handle, prompt.as_ptr(), length, &options, ids.as_mut_ptr(), &mut n, err)
        });
        if let Some(panic) = drawing.panic {
            resume_unwind(panic);
        }
        made?;
        ids.truncate(n as usize);
        Ok(ids)
    }

    /// The whole session as bytes, from which any process with the same model can continue.
    pub fn save(&self) -> Result<Blob> {
        Blob::of(|to, err| unsafe { sys::attnkit_session_save(self.handle.get(), to, err) })
    }

    /// JSON "attnkit.session/1": rows, lengths, state bytes per block, what ran anew.
    pub fn describe(&self) -> Result<String> {
        text_of(|to, err| unsafe { sys::attnkit_session_describe(self.handle.get(), to, err) })
    }

    /// Simultaneous decoding of a source that is known: what its units would have cost and given.  `decide` answers before
    /// every action, `observe` sees each; a panic of either ends the call and goes on.
    /// ends: where each unit ends in the source, empty: each id is one; limit 0: 1.5 times the source and 20.
    pub fn simulate<'a>(
        &mut self,
        source: impl Into<Source<'a>>,
        ends: &[i64],
        limit: usize,
        decide: impl FnMut(&View) -> Action,
        observe: impl FnMut(&Event),
    ) -> Result<Vec<i32>> {
        let t = source.into().tensor()?;
        let mut both = Simulation { decide, observe, panic: None };
        let context = &mut both as *mut _ as usize;
        let (decide, observe) = callbacks(&both);
        let options = sys::attnkit_stream_options {
            limit: limit.min(self.info.max_length) as u32,
            decide: Some(decide),
            decide_context: context,
            observe: Some(observe),
            observe_context: context,
            ends: if ends.is_empty() { std::ptr::null() } else { ends.as_ptr() },
            units: ends.len() as u64,
            ..Default::default()
        };
        let (mut ids, mut n) = (vec![0; self.info.max_length], 0);
        let handle = self.handle.get();
        let made =
            call(|err| unsafe { sys::attnkit_session_simulate(handle, &t.raw, &options, ids.as_mut_ptr(), &mut n, err) });
        if let Some(panic) = both.panic {
            resume_unwind(panic);
        }
        made?;
        ids.truncate(n as usize);
        Ok(ids)
    }

    /// Greedy decoding of a source that arrives: an iterator over the tokens written, which takes the next unit of `source`
    /// whenever `decide` answers [`Action::Read`]. `</s>` belongs to the last unit, or follows when there are no more. For an
    /// empty session of one row.
    pub fn stream<I, P>(&mut self, source: I, decide: P) -> Stream<'_, I::IntoIter, P>
    where
        I: IntoIterator<Item = Vec<i32>>,
        P: FnMut(&View) -> Action,
    {
        Stream::new(self, source.into_iter(), decide)
    }
}

fn room(out: &[f32], rows: usize, length: usize, outputs: usize) -> Result<()> {
    if out.len() != rows * length * outputs {
        let message = format!("out has room for {} numbers, ({}, {}, {}) is needed", out.len(), rows, length, outputs);
        return Err(Error::invalid(message));
    }
    Ok(())
}

fn logits_of(out: &mut [f32], rows: usize, length: usize, outputs: usize) -> Result<Tensor<'_>> {
    room(out, rows, length, outputs)?;
    Tensor::new_mut(out, &[rows as i64, length as i64, outputs as i64])
}

// The number of a key that appears once in a document.
pub(crate) fn number<T: FromStr + Default>(json: &str, key: &str) -> T {
    let after = json.split(&format!("\"{}\":", key)).nth(1).unwrap_or("").trim_start();
    after.split(|c: char| c == ',' || c == '}').next().unwrap_or("").trim_end().parse().unwrap_or_default()
}

// Carries the closures through C, and their panics around it.
struct Simulation<D, O> {
    decide: D,
    observe: O,
    panic: Option<Box<dyn Any + Send>>,
}

type Callbacks = (
    unsafe extern "C" fn(usize, *const sys::attnkit_stream_view) -> u32,
    unsafe extern "C" fn(usize, *const sys::attnkit_stream_event),
);

fn callbacks<D: FnMut(&View) -> Action, O: FnMut(&Event)>(_: &Simulation<D, O>) -> Callbacks {
    (on_decide::<D, O>, on_event::<D, O>)
}

unsafe extern "C" fn on_decide<D: FnMut(&View) -> Action, O>(context: usize, view: *const sys::attnkit_stream_view) -> u32 {
    let (both, view) = (&mut *(context as *mut Simulation<D, O>), &*view);
    let seen = View { read: view.read as usize, written: view.written as usize, ended: view.ended != 0 };
    both.guarded(|both| (both.decide)(&seen)).unwrap_or(Action::Stop) as u32
}

unsafe extern "C" fn on_event<D, O: FnMut(&Event)>(context: usize, event: *const sys::attnkit_stream_event) {
    let (both, event) = (&mut *(context as *mut Simulation<D, O>), &*event);
    let seen = Event {
        action: if event.action == sys::ATTNKIT_READ { Action::Read } else { Action::Write },
        read: event.read as usize,
        written: event.written as usize,
        id: event.id,
        ended: event.ended != 0,
        seconds: event.seconds,
    };
    both.guarded(|both| (both.observe)(&seen));
}

impl<D, O> Simulation<D, O> {
    fn guarded<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.panic.is_some() {
            return None;
        }
        match catch_unwind(AssertUnwindSafe(|| f(self))) {
            Ok(value) => Some(value),
            Err(panic) => {
                self.panic = Some(panic);
                None
            }
        }
    }
}

struct Drawing<E> {
    each: E,
    panic: Option<Box<dyn Any + Send>>,
}

impl<E: FnMut(i32) -> bool> Drawing<E> {
    fn callback(&self) -> unsafe extern "C" fn(usize, i32) -> u32 {
        on_token::<E>
    }
}

unsafe extern "C" fn on_token<E: FnMut(i32) -> bool>(context: usize, id: i32) -> u32 {
    let drawing = &mut *(context as *mut Drawing<E>);
    match catch_unwind(AssertUnwindSafe(|| (drawing.each)(id))) {
        Ok(on) => !on as u32,
        Err(panic) => {
            drawing.panic = Some(panic);
            1
        }
    }
}
