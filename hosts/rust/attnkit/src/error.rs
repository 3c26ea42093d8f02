//! What a failing call becomes.
use attnkit_sys as sys;
use std::fmt;

/// One problem of a manifest or of what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// An error; otherwise a warning.
    pub is_error: bool,
    /// `ATTNKIT_AREA_MANIFEST`, ...: where the fault lies.
    pub area: u32,
    /// The number behind AK.
    pub code: i32,
    /// From 1; 0: no place.
    pub line: i32,
    /// From 1, in bytes; 0: no place.
    pub column: i32,
    /// The problem.
    pub message: String,
    /// The advice, or empty.
    pub help: String,
}

/// The details that every failure carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// One line: the thing, its value, the limit, what to do.
    pub message: String,
    /// Index of the option, port or session at fault.
    pub place: Option<usize>,
    /// Everything that is wrong with a manifest, sorted by place.
    pub diagnostics: Vec<Diagnostic>,
}

/// A call that was refused or failed, by its code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A wrong value, or a broken rule of the call.
    Invalid(Failure),
    /// A well-formed request that is refused; the message is the reason.
    Unsupported(Failure),
    /// Memory ran out.
    NoMemory(Failure),
    /// The device failed.
    Device(Failure),
    /// A fault of the library or of a plugin, or a code that this crate does not know.
    Internal(Failure),
}

/// The result of a call of the library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn of(code: i32, failure: Failure) -> Self {
        match code {
            sys::ATTN_INVALID => Error::Invalid(failure),
            sys::ATTN_UNSUPPORTED => Error::Unsupported(failure),
            sys::ATTN_NO_MEMORY => Error::NoMemory(failure),
            sys::ATTN_DEVICE => Error::Device(failure),
            _ => Error::Internal(failure),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::Invalid(Failure { message: message.into(), ..Failure::default() })
    }

    /// Message, place and diagnostics.
    pub fn failure(&self) -> &Failure {
        match self {
            Error::Invalid(f) | Error::Unsupported(f) | Error::NoMemory(f) | Error::Device(f) | Error::Internal(f) => f,
        }
    }

    fn failure_mut(&mut self) -> &mut Failure {
        match self {
            Error::Invalid(f) | Error::Unsupported(f) | Error::NoMemory(f) | Error::Device(f) | Error::Internal(f) => f,
        }
    }

    pub(crate) fn with(mut self, found: Vec<Diagnostic>) -> Self {
        self.failure_mut().diagnostics = found;
        self
    }

    /// With another beginning of the message.
    pub(crate) fn begun(mut self, before: &str, now: &str) -> Self {
        let message = &mut self.failure_mut().message;
        *message = format!("{now}{}", message.strip_prefix(before).unwrap_or(message));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.failure().message)
    }
}

impl std::error::Error for Error {}
