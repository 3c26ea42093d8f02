//! Attention mechanisms in Rust, as plugins of attnkit for the CPU.
//!
//! A mechanism implements [`Mechanism`]: what it is, its options and ports, what it needs, and the arithmetic of one head of
//! one row of the batch. This crate makes of it what `plugin.h` asks for: the table, errors, threads, state, strides, rows that
//! see nothing. `samples/rust/mean` is the smallest one.
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//! ```
//!
//! [`plugin!`] exports it; the host finds it as `mean.so`, and `attnkit validate-plugin mean.so` checks it. A panic becomes
//! `ATTN_INTERNAL` (Rust's hook prints it as well), unless the profile says `panic = "abort"`. Heads are computed on their own: sequences that go from block to block (AUX) and gradients of
//! LEARNED ports are not offered.
#![warn(missing_docs)]

mod describe;
mod head;
mod table;

#[doc(hidden)]
pub use attnkit_sys as sys;
pub use describe::{About, Block, Choice, Cost, Port, Ports, Refusal, Request, Values};
pub use head::{Gradient, Head, Inputs, Output, Real, Sight, Step};
#[doc(hidden)]
pub use table::Table;

/// An attention mechanism in one block with its options.
pub trait Mechanism: Sized + Send + Sync + 'static {
    /// Whether [`Mechanism::gradient`] is there. A mechanism with LEARNED ports is refused training all the same.
    const GRADIENTS: bool = false;

    /// Its name and what it is.
    fn about() -> About;

    /// Its options.
    fn options() -> Vec<Choice> {
        Vec::new()
    }

    /// Makes it for a block, and declares its ports; equal blocks and values give equal ports.
    fn new(block: &Block, values: &Values<'_>, ports: &mut Ports) -> Result<Self, Refusal>;

    /// Writes the initial content of a LEARNED or TABLE port; the same for the same seed everywhere.
    fn fill(&self, _port: Port, _seed: u64, _content: &mut [f32]) -> Result<(), Refusal> {
        Err(Refusal::invalid("the port has no initial content"))
    }

    /// Says what runs within a request need and cost, or refuses them. 0 stands for any size.
    fn plan(&self, request: &Request, cost: &mut Cost) -> Result<(), Refusal>;

    /// Computes one head of one row. It allocates nothing; rows of the output that see no key are zeroed by the caller.
    fn head<T: Real>(&self, head: &mut Head<'_, T>);

    /// Adds the gradients of one head of one row, of whole sequences; they are zero before.
    fn gradient<T: Real>(&self, _gradient: &mut Gradient<'_, T>) {}
}

/// Exports a [`Mechanism`] as the library's one symbol.
#[macro_export]
macro_rules! plugin {
    ($mechanism:ty) => {
        /// The entry of the plugin.
        ///
        /// # Safety
        /// Called by a host as plugin.h says.
        #[no_mangle]
        pub unsafe extern "C" fn attn_plugin_main_v1(
            host: *const $crate::sys::attn_host,
            plugin: *mut *const $crate::sys::attn_plugin,
            err: *mut $crate::sys::attn_error,
        ) -> i32 {
            static TABLE: $crate::Table = $crate::Table::new();
            TABLE.main::<$mechanism>(host, plugin, err)
        }
    };
}
