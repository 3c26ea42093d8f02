//! attnkit for Rust: transformers composed of attention mechanisms that are plugins.
//!
//! ```no_run
//! let runtime = attnkit::Runtime::new()?;
//! let model = attnkit::Model::open(&runtime, "model.toml")?;
//! println!("{}", model.translate("two hundred and forty-one euros", 0, 0)?);
//! # Ok::<(), attnkit::Error>(())
//! ```
//!
//! Shapes, units and numbers are those of `attnkit.h`. Every failure is an [`Error`]. A [`Runtime`], [`Model`], [`Encoded`] and
//! [`Block`] may be used by any threads at once; a [`Session`] may move between threads and belongs to one at a time. Values may
//! be dropped in any order. Documents (`describe`, ...) come as the JSON that the library writes.
#![warn(missing_docs)]

pub use attnkit_sys as sys;

mod block;
mod call;
mod error;
mod model;
mod runtime;
mod session;
mod stream;
mod tensor;

pub use block::{Aligned, Block, Info, Place, Port, Request, Role, Run};
pub use call::Blob;
pub use error::{Diagnostic, Error, Failure, Result};
pub use model::{Encoded, Kind, Model, ModelInfo, Side};
pub use runtime::{abi_minor, version, Options, Runtime};
pub use session::{Sampling, Session};
pub use stream::{Action, Event, Stream, View};
pub use tensor::{Batch, Element, Source, Tensor};
