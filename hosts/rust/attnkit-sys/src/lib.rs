//! The C interfaces `attnkit.h` and `plugin.h` as they are: constants, structs, functions.
//!
//! Meaning, shapes, units, errors, threads and lifetimes are in the headers. The crate `attnkit` has the same calls in safe
//! Rust, `attnkit-plugin` the other side of `plugin.h`.
//!
//! libattnkit is looked for in the folder `ATTNKIT_LIB_DIR`, else where `pkg-config` says, else where the linker looks.
//! Without the feature `link` there are no functions and no library is needed.
#![allow(non_camel_case_types)]

// Structs begin as zeros, those that grow with their size.
macro_rules! zeroed {
    ($t:ident) => {
        impl Default for $t {
            fn default() -> Self {
                // SAFETY: numbers, pointers and optional functions may all be zero.
                unsafe { std::mem::zeroed() }
            }
        }
    };
}
macro_rules! sized {
    ($t:ident) => {
        impl Default for $t {
            fn default() -> Self {
                // SAFETY: as above.
                let zeros: Self = unsafe { std::mem::zeroed() };
                $t { struct_size: std::mem::size_of::<$t>() as u32, ..zeros }
            }
        }
    };
}

#[rustfmt::skip]
mod bindings;
pub use bindings::*;
