//! Simultaneous decoding: when to read on and when to write.
use crate::error::{Error, Failure, Result};
use crate::session::Session;
use attnkit_sys as sys;
use std::collections::HashSet;

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

/// Tokens written while a source arrives; see [`Session::stream`].  Ends behind `</s>`, at the limit of 1.5 times the source and
/// 20, at `Stop` and behind an error.  Where there are as many tokens as the source so far allows, it is read on whatever the
/// policy says.
#[derive(Debug)]
pub struct Stream<'a, I, P> {
    session: &'a mut Session,
    source: I,
    decide: P,
    view: View,
    waiting: Vec<i32>,
    tokens: Vec<i32>, // <s> and what was written
    longest: usize,
    length: usize, // of the source so far
    done: bool,
    logits: Vec<f32>,
}

impl<'a, I: Iterator<Item = Vec<i32>>, P: FnMut(&View) -> Action> Stream<'a, I, P> {
    pub(crate) fn new(session: &'a mut Session, source: I, decide: P) -> Self {
        let (begin, longest, outputs) = (session.info.begin_id, session.facts.max_target, session.info.outputs);
        Stream {
            session,
            source,
            decide,
            view: View { read: 0, written: 0, ended: false },
            waiting: Vec::new(),
            tokens: vec![begin],
            longest,
            length: 0,
            done: false,
            logits: vec![0.0; outputs],
        }
    }

    fn take(&mut self, ids: &[i32]) {
        self.waiting.extend(ids);
        self.length += ids.len();
    }

    fn token(&mut self) -> Result<i32> {
        if self.view.read == 0 {
            return Err(Error::invalid("the policy wants to write before anything of the source was read: it must read first"));
        }
        if !self.waiting.is_empty() {
            self.session.read(&self.waiting, self.view.ended)?;
            self.waiting.clear();
        }
        self.session.step(*self.tokens.last().unwrap_or(&-1), Some(&mut self.logits))?;
        let facts = self.session.facts;
        best(&mut self.logits, &self.tokens, facts.repetition_penalty, facts.no_repeat)
    }
}

// The id with the highest of the scores of one position, the first of equals, by [decode] of the manifest, whose
// repetition_penalty and no_repeat look back at the tokens that were there.
fn best(scores: &mut [f32], before: &[i32], penalty: f64, no_repeat: usize) -> Result<i32> {
    if scores.iter().any(|score| score.is_nan()) {
        let message = "the model's scores are not numbers (NaN): its weights or a mechanism are broken".to_string();
        return Err(Error::Internal(Failure { message, ..Failure::default() }));
    }
    if penalty != 1.0 {
        for id in before.iter().collect::<HashSet<_>>() {
            let score = &mut scores[*id as usize];
            let exact = f64::from(*score);
            *score = if exact < 0.0 { exact * penalty } else { exact / penalty } as f32;
        }
    }
    if no_repeat > 0 && before.len() >= no_repeat {
        let last = &before[before.len() - (no_repeat - 1)..];
        let windows = before.windows(no_repeat).filter(|window| &window[..no_repeat - 1] == last);
        let repeats: HashSet<usize> = windows.map(|window| window[no_repeat - 1] as usize).collect();
        // A token that must come may repeat.
        if scores.iter().enumerate().any(|(id, score)| *score > f32::NEG_INFINITY && !repeats.contains(&id)) {
            repeats.iter().for_each(|id| scores[*id] = f32::NEG_INFINITY);
        }
    }
    let mut top = 0;
    for (id, score) in scores.iter().enumerate() {
        if *score > scores[top] {
            top = id;
        }
    }
    if scores[top] == f32::NEG_INFINITY {
        return Err(Error::invalid("no token may follow: suppress, suppress_first and min_length of [decode] leave none"));
    }
    Ok(top as i32)
}

impl<I: Iterator<Item = Vec<i32>>, P: FnMut(&View) -> Action> Iterator for Stream<'_, I, P> {
    type Item = Result<i32>;

    fn next(&mut self) -> Option<Result<i32>> {
        let end = self.session.info.end_id;
        while !self.done {
            let full = self.view.written >= self.longest.min(self.length * 3 / 2 + 20);
            if full && (self.view.ended || self.view.written >= self.longest) {
                return None;
            }
            let action = if full { Action::Read } else { (self.decide)(&self.view) };
            match action {
                Action::Stop => self.done = true,
                Action::Read if !self.view.ended => {
                    let unit = self.source.next();
                    match unit {
                        None if self.view.read == 0 => self.done = true,
                        None => self.take(&[end]),
                        Some(unit) => {
                            self.take(&unit);
                            self.view.read += 1;
                        }
                    }
                    self.view.ended = self.waiting.last() == Some(&end);
                }
                _ => {
                    let token = self.token();
                    self.view.written += 1;
                    self.tokens.extend(&token);
                    self.done = token.is_err() || self.tokens.last() == Some(&end);
                    return Some(token);
                }
            }
        }
        None
    }
}
