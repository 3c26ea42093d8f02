//! What a mechanism says about itself and is told about its place.
use attnkit_sys as sys;
use std::ffi::CString;
use std::fmt;

/// Name and origin of a mechanism.
pub struct About {
    /// Also the file's name without ".so" and the key of manifests: `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The paper.
    pub citation: &'static str,
    /// Changes whenever the meaning of the state's bytes does.
    pub state_revision: &'static str,
}

/// Why something cannot be done: one sentence.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) place: i32,
}

impl Refusal {
    /// A well-formed request that this mechanism refuses.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Refusal { code: sys::ATTN_UNSUPPORTED, message: message.into(), place: -1 }
    }

    /// A wrong value.
    pub fn invalid(message: impl Into<String>) -> Self {
        Refusal { code: sys::ATTN_INVALID, message: message.into(), place: -1 }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Refusal { code: sys::ATTN_INTERNAL, message: message.into(), place: -1 }
    }

    /// The option at fault, by its index.
    pub fn at(mut self, option: usize) -> Self {
        self.place = option as i32;
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The schema of one option; the host checks values against it.
pub struct Choice {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Integer(i64, i64, i64),
    Real(f64, f64, f64),
    Boolean(bool),
    Text(&'static str, &'static [&'static str]),
}

impl Choice {
    /// A whole number from min to max; equal bounds: any.
    pub fn integer(name: &'static str, default: i64, min: i64, max: i64, doc: &'static str) -> Self {
        Choice { name, doc, value: Value::Integer(default, min, max) }
    }

    /// A number from min to max; equal bounds: any finite one.
    pub fn real(name: &'static str, default: f64, min: f64, max: f64, doc: &'static str) -> Self {
        Choice { name, doc, value: Value::Real(default, min, max) }
    }

    /// true or false.
    pub fn boolean(name: &'static str, default: bool, doc: &'static str) -> Self {
        Choice { name, doc, value: Value::Boolean(default) }
    }

    /// One of some texts; none: any text.
    pub fn text(name: &'static str, default: &'static str, choices: &'static [&'static str], doc: &'static str) -> Self {
        Choice { name, doc, value: Value::Text(default, choices) }
    }
}

/// The values of a mechanism's options, by their index in [`crate::Mechanism::options`]. To read one as another type panics.
pub struct Values<'a>(pub(crate) &'a [sys::attn_value]);

impl Values<'_> {
    /// An integer, or 1 and 0 of a boolean.
    pub fn integer(&self, option: usize) -> i64 {
        self.of(option, &[sys::ATTN_INT, sys::ATTN_BOOL]).i
    }

    /// A number.
    pub fn real(&self, option: usize) -> f64 {
        self.of(option, &[sys::ATTN_FLOAT]).f
    }

    /// true or false.
    pub fn boolean(&self, option: usize) -> bool {
        self.of(option, &[sys::ATTN_BOOL]).i != 0
    }

    /// A text.
    pub fn text(&self, option: usize) -> String {
        // SAFETY: the host gives a text that ends with NUL where the option's type is one.
        unsafe { std::ffi::CStr::from_ptr(self.of(option, &[sys::ATTN_TEXT]).s) }.to_string_lossy().into_owned()
    }

    fn of(&self, option: usize, types: &[u32]) -> &sys::attn_value {
        let value = &self.0[option];
        assert!(types.contains(&value.r#type), "option {} is read as another type than it was declared with", option);
        value
    }
}

/// The place that a mechanism is asked to take; see attn_block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// ATTN_ENCODER_SELF, ...
    pub role: u32,
    /// A query sees keys at its position and before.
    pub causal: bool,
    /// Heads.
    pub heads: usize,
    /// Width of a query and a key in a head, D.
    pub width: usize,
    /// Width of a value in a head, E.
    pub value_width: usize,
}

impl Block {
    /// Refuses what no mechanism by positions can do here: streams whose keys have not arrived, prefixes of causal blocks.
    pub fn check_sight(&self, request: &Request) -> Result<(), Refusal> {
        if !self.causal && self.role != sys::ATTN_DECODER_CROSS && request.streams() {
            return Err(Refusal::unsupported(
                "bidirectional self attention cannot stream, its queries need keys that have not arrived: make the block causal \
                 or run whole sequences",
            ));
        }
        if self.causal && request.shows_prefixes() {
            return Err(Refusal::unsupported(
                "a causal block already says which keys a query sees: run it without ATTN_PREFIX",
            ));
        }
        Ok(())
    }
}

/// A port of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub(crate) usize);

/// The ports of a mechanism, in the order of the calls.
pub struct Ports {
    heads: i64,
    pub(crate) list: Vec<sys::attn_port>,
    pub(crate) texts: Vec<CString>,
}

impl Ports {
    pub(crate) fn new(heads: usize) -> Self {
        Ports { heads: heads as i64, list: Vec::new(), texts: Vec::new() }
    }

    /// A projection of the block's input.
    pub fn query(&mut self, name: &str, width: usize, doc: &str) -> Port {
        self.add(sys::ATTN_QUERY, name, doc, &[0, self.heads, 0, width as i64])
    }

    /// A projection of the context.
    pub fn key(&mut self, name: &str, width: usize, doc: &str) -> Port {
        self.add(sys::ATTN_KEY, name, doc, &[0, self.heads, 0, width as i64])
    }

    /// The result; exactly one.
    pub fn output(&mut self, name: &str, width: usize, doc: &str) -> Port {
        self.add(sys::ATTN_OUTPUT, name, doc, &[0, self.heads, 0, width as i64])
    }

    /// f32 that is trained with the model.
    pub fn learned(&mut self, name: &str, shape: &[i64], doc: &str) -> Port {
        self.add(sys::ATTN_LEARNED, name, doc, shape)
    }

    /// f32 that is stored with the model and never trained.
    pub fn table(&mut self, name: &str, shape: &[i64], doc: &str) -> Port {
        self.add(sys::ATTN_TABLE, name, doc, shape)
    }

    fn add(&mut self, kind: u32, name: &str, doc: &str, shape: &[i64]) -> Port {
        let mut text = |text: &str| {
            let text = CString::new(text).expect("names and docs of ports hold no NUL");
            let first = text.as_ptr();
            self.texts.push(text); // what it points to stays where it is
            first
        };
        let (name, doc) = (text(name), text(doc));
        let stored = kind == sys::ATTN_LEARNED || kind == sys::ATTN_TABLE;
        let mut port = sys::attn_port {
            kind,
            dtype_code: if stored { 2 } else { 0 },
            dtype_bits: if stored { 32 } else { 0 },
            ndim: shape.len() as u16,
            name,
            doc,
            ..Default::default()
        };
        port.shape[..shape.len()].copy_from_slice(shape);
        self.list.push(port);
        Port(self.list.len() - 1)
    }
}

/// Upper bounds of runs; see attn_request.
#[derive(Clone, Copy)]
pub struct Request(pub(crate) sys::attn_request);

impl Request {
    /// Runs carry state.
    pub fn streams(&self) -> bool {
        self.0.flags & sys::ATTN_STREAM != 0
    }

    /// Runs carry how many keys each query sees.
    pub fn shows_prefixes(&self) -> bool {
        self.0.flags & sys::ATTN_PREFIX != 0
    }

    /// Gradients may follow.
    pub fn trains(&self) -> bool {
        self.0.flags & sys::ATTN_TRAIN != 0
    }

    /// Runs carry the length of the whole query sequence.
    pub fn knows_q_total(&self) -> bool {
        self.0.flags & sys::ATTN_KNOWS_Q_TOTAL != 0
    }

    /// Runs carry the length of the whole key sequence.
    pub fn knows_k_total(&self) -> bool {
        self.0.flags & sys::ATTN_KNOWS_K_TOTAL != 0
    }

    /// Rows of the batch.
    pub fn batch(&self) -> u64 {
        self.0.batch as u64
    }

    /// Queries of a run.
    pub fn queries(&self) -> u64 {
        self.0.queries as u64
    }

    /// Keys of a run.
    pub fn keys(&self) -> u64 {
        self.0.keys as u64
    }
}

/// The needs and costs of a run at the bounds. Numbers are those of the run's type, of a state f32.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// Numbers that one head knows of the keys it saw: its part of the state, the same for all requests that stream, or memory
    /// for one run without a state.
    pub state: usize,
    /// Numbers of scratch that one head needs while it is computed.
    pub scratch: usize,
    /// A multiply-add is 2.
    pub flops: u64,
}
