//! Calls: codes become errors, handles free themselves, documents and bytes become Rust's.
use crate::error::{Error, Failure, Result};
use attnkit_sys as sys;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{addr_of, addr_of_mut, null_mut, NonNull};
use std::slice;

/// Calls f with an error to fill. Its message is not cleared first: that would cost a step of one token as much as all else here.
pub(crate) fn call(f: impl FnOnce(*mut sys::attn_error) -> i32) -> Result<()> {
    let mut err = MaybeUninit::<sys::attn_error>::uninit();
    let first = err.as_mut_ptr();
    // SAFETY: fields of err, which are written and not read.
    unsafe {
        addr_of_mut!((*first).struct_size).write(std::mem::size_of::<sys::attn_error>() as u32);
        addr_of_mut!((*first).code).write(sys::ATTN_OK);
        addr_of_mut!((*first).r#where).write(-1);
        addr_of_mut!((*first).message).cast::<c_char>().write(0);
    }
    match f(first) {
        sys::ATTN_OK => Ok(()),
        code => Err(failed(code, first)),
    }
}

#[cold]
fn failed(code: i32, err: *const sys::attn_error) -> Error {
    // SAFETY: written above or by the call, the message as text that ends with NUL.
    let (message, place) = unsafe { (string(addr_of!((*err).message).cast()), (*err).r#where) };
    Error::of(code, Failure { message, place: usize::try_from(place).ok(), diagnostics: Vec::new() })
}

/// The text behind a pointer that is NULL or ends with NUL.
pub(crate) fn string(c: *const c_char) -> String {
    if c.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with NUL.
    unsafe { CStr::from_ptr(c) }.to_string_lossy().into_owned()
}

pub(crate) fn c_text(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{} holds a NUL byte", what)))
}

/// A path as the system has it: any bytes.
pub(crate) fn c_path(path: &Path, what: &str) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::invalid(format!("{} holds a NUL byte", what)))
}

/// A handle that the library made, destroyed once.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    pointer: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    /// Returns the handle that f puts into the place that it is given.
    pub fn make(
        destroy: unsafe extern "C" fn(*mut T),
        f: impl FnOnce(*mut *mut T, *mut sys::attn_error) -> i32,
    ) -> Result<Self> {
        let mut made = null_mut();
        call(|err| f(&mut made, err))?;
        let pointer = NonNull::new(made).ok_or_else(|| Error::invalid("the library made nothing"))?;
        Ok(Handle { pointer, destroy })
    }

    pub fn get(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the library keeps parents alive.
        unsafe { (self.destroy)(self.get()) }
    }
}

/// The document that f makes.
pub(crate) fn text_of(f: impl FnOnce(*mut *mut sys::attnkit_text, *mut sys::attn_error) -> i32) -> Result<String> {
    let text = Handle::make(sys::attnkit_text_destroy, f)?;
    let mut n = 0;
    // SAFETY: n bytes are there until text is destroyed.
    let bytes = unsafe {
        let first = sys::attnkit_text_data(text.get(), &mut n);
        slice::from_raw_parts(first as *const u8, n as usize)
    };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Bytes that the library made, such as a saved session; read as a slice, without a copy.
///
/// ```compile_fail,E0505
/// # fn f(blob: attnkit::Blob) {
/// let bytes: &[u8] = &blob;
/// drop(blob); // cannot move out of `blob` because it is borrowed
/// println!("{}", bytes.len());
/// # }
/// ```
#[derive(Debug)]
pub struct Blob(Handle<sys::attnkit_blob>);

// SAFETY: immutable after it was made.
unsafe impl Send for Blob {}
unsafe impl Sync for Blob {}

impl Blob {
    pub(crate) fn of(f: impl FnOnce(*mut *mut sys::attnkit_blob, *mut sys::attn_error) -> i32) -> Result<Self> {
        Ok(Blob(Handle::make(sys::attnkit_blob_destroy, f)?))
    }
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let mut n = 0;
        // SAFETY: n bytes are there until the blob is destroyed.
        unsafe {
            let first = sys::attnkit_blob_data(self.0.get(), &mut n);
            if n == 0 {
                &[]
            } else {
                slice::from_raw_parts(first as *const u8, n as usize)
            }
        }
    }
}
