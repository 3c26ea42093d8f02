//! A runtime: threads and loaded plugins.
use crate::call::{c_text, string, text_of, Handle};
use crate::error::Result;
use attnkit_sys as sys;

/// Options of a runtime; those by default are the library's.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads that one call uses, its caller included; 0: one per processor that the process may use.
    pub threads: u32,
    /// Folders separated by ':', searched first for plugins.
    pub plugin_path: String,
    /// Which variants of mechanisms blocks use: 0 and 1 the CPU, 2 CUDA.
    pub device_type: i32,
    /// The device's number.
    pub device_id: i32,
}

/// Threads and loaded plugins.
#[derive(Debug)]
pub struct Runtime(pub(crate) Handle<sys::attnkit_runtime>);

// SAFETY: "runtime: any thread, any number of calls at once".
unsafe impl Send for Runtime {}
unsafe impl Sync for Runtime {}

impl Runtime {
    /// Finds and loads every usable plugin of the search path.
    pub fn new() -> Result<Self> {
        Self::with(&Options::default())
    }

    /// The same with options.
    pub fn with(options: &Options) -> Result<Self> {
        let path = c_text(&options.plugin_path, "plugin_path")?;
        let options = sys::attnkit_runtime_options {
            threads: options.threads,
            plugin_path: path.as_ptr(),
            device_type: options.device_type,
            device_id: options.device_id,
            ..Default::default()
        };
        let make = |to, err| unsafe { sys::attnkit_runtime_create(&options, to, err) };
        Ok(Runtime(Handle::make(sys::attnkit_runtime_destroy, make)?))
    }

    /// JSON "attnkit.runtime/1": search path, plugins with options and costs, skipped files with the reason.
    pub fn describe(&self) -> Result<String> {
        text_of(|to, err| unsafe { sys::attnkit_runtime_describe(self.0.get(), to, err) })
    }

    /// JSON "attnkit.plugin-list/1": the loaded plugins, without calling them.
    pub fn list(&self) -> Result<String> {
        text_of(|to, err| unsafe { sys::attnkit_runtime_list(self.0.get(), to, err) })
    }
}

/// The minor of the ABI that the library was built for.
pub fn abi_minor() -> u32 {
    unsafe { sys::attnkit_abi_minor() }
}

/// The library's version, such as "0.1.0".
pub fn version() -> String {
    string(unsafe { sys::attnkit_version() })
}
