//! Simultaneous decoding: when to read on and when to write.
use crate::error::{Error, Result};
use crate::session::{number, Session};
use attnkit_sys as sys;

/// The answer of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the next unit of the source; once it has ended, the same as `Write`.
    Read = sys::ATTNKIT_READ as isize,
    /// Write the next token of the target.
    Write = sys::ATTNKIT_WRITE as isize,
    /// End.
    Stop = sys::ATTNKIT_STOP as isize,
}

/// The progress before a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Units of the source that were read.
    pub read: usize,
    /// Tokens of the target that were written.
    pub written: usize,
    /// The whole source was read.
    pub ended: bool,
}

/// One action that was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// `Read` or `Write`.
    pub action: Action,
    /// Units read, this action included.
    pub read: usize,
    /// Tokens written, this action included.
    pub written: usize,
    /// The token written, or -1.
    pub id: i32,
    /// The whole source was read.
    pub ended: bool,
    /// Wall clock since the call began.
    pub seconds: f64,
}

/// Tokens written while a source arrives; see [`Session::stream`].  Ends behind `</s>`, at the limit, at `Stop` and behind an
/// error.
#[derive(Debug)]
pub struct Stream<'a, I, P> {
    session: &'a mut Session,
    source: I,
    decide: P,
    view: View,
    waiting: Vec<i32>,
    last: i32,
    most: usize,
    complete: bool,
    done: bool,
    logits: Vec<f32>,
}

impl<'a, I: Iterator<Item = Vec<i32>>, P: FnMut(&View) -> Action> Stream<'a, I, P> {
    pub(crate) fn new(session: &'a mut Session, source: I, decide: P) -> Self {
        let (last, most, outputs) = (session.info.begin_id, session.info.max_length, session.info.outputs);
        Stream {
            session,
            source,
            decide,
            view: View { read: 0, written: 0, ended: false },
            waiting: Vec::new(),
            last,
            most,
            complete: false,
            done: false,
            logits: vec![0.0; outputs],
        }
    }

    fn token(&mut self) -> Result<i32> {
        if self.view.read == 0 {
            return Err(Error::invalid("the policy wants to write before anything of the source was read: it must read first"));
        }
        if !self.waiting.is_empty() {
            self.session.read(&self.waiting, self.view.ended)?;
            self.waiting.clear();
        }
        if self.view.ended && !self.complete {
            self.complete = true;
            let source = number(&self.session.describe()?, "source_length");
            self.most = self.most.min(source * 3 / 2 + 20);
        }
        self.session.step(self.last, Some(&mut self.logits))?;
        let mut best = 0;
        for (i, score) in self.logits.iter().enumerate() {
            if *score > self.logits[best] {
                best = i;
            }
        }
        if self.logits[best].is_nan() {
            return Err(Error::invalid("the model's scores are not numbers (NaN): its weights or a mechanism are broken"));
        }
        Ok(best as i32)
    }
}

impl<I: Iterator<Item = Vec<i32>>, P: FnMut(&View) -> Action> Iterator for Stream<'_, I, P> {
    type Item = Result<i32>;

    fn next(&mut self) -> Option<Result<i32>> {
        let end = self.session.info.end_id;
        while !self.done {
            match (self.decide)(&self.view) {
                Action::Stop => self.done = true,
                Action::Read if !self.view.ended => {
                    let unit = self.source.next();
                    match unit {
                        None if self.view.read == 0 => self.done = true,
                        None => self.waiting.push(end),
                        Some(unit) => {
                            self.waiting.extend(unit);
                            self.view.read += 1;
                        }
                    }
                    self.view.ended = self.waiting.last() == Some(&end);
                }
                _ => {
                    let token = self.token();
                    self.view.written += 1;
                    self.last = *token.as_ref().unwrap_or(&self.last);
                    self.done = token.is_err() || self.last == end || self.view.written >= self.most;
                    return Some(token);
                }
            }
        }
        None
    }
}
