// What translate.rs needs of attnkit.h, by hand; layout_test.rs holds the structs to tests/abi/layout.txt.
#![allow(non_camel_case_types, dead_code)]
use std::ffi::CStr;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr::null_mut;

pub const ATTN_OK: i32 = 0;
pub const ATTNKIT_ERROR: u32 = 1;

#[repr(C)]
pub struct attn_error {
    pub struct_size: u32,
    pub code: i32,
    pub r#where: i32,
    pub message: [c_char; 500],
}

#[repr(C)]
pub struct attn_tensor {
    pub data: *mut c_void,
    pub shape: [i64; 4],
    pub stride: [i64; 4],
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub dtype_lanes: u16,
    pub ndim: u32,
    pub device_type: i32,
    pub device_id: i32,
}

impl attn_tensor {
    // (1, ids.len()) int32 on the CPU.
    pub fn of_ids(ids: &mut [i32]) -> Self {
        let n = ids.len() as i64;
        attn_tensor {
            data: ids.as_mut_ptr().cast(),
            shape: [1, n, 0, 0],
            stride: [n, 1, 0, 0],
            dtype_code: 0,
            dtype_bits: 32,
            dtype_lanes: 1,
            ndim: 2,
            device_type: 1,
            device_id: 0,
        }
    }
}

#[repr(C)]
pub struct attnkit_runtime_options {
    pub struct_size: u32,
    pub threads: u32,
    pub plugin_path: *const c_char,
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
pub struct attnkit_diagnostic {
    pub struct_size: u32,
    pub severity: u32,
    pub area: u32,
    pub code: i32,
    pub line: i32,
    pub column: i32,
    pub message: *const c_char,
    pub help: *const c_char,
}

#[repr(C)]
#[derive(Default)]
pub struct attnkit_model_info {
    pub struct_size: u32,
    pub kind: u32,
    pub source_vocab: i32,
    pub target_vocab: i32,
    pub outputs: i32,
    pub max_length: i32,
    pub begin_id: i32,
    pub end_id: i32,
    pub beams: u32,
    pub reserved: u32,
    pub parameters: u64,
    pub state_bytes: u64,
    pub sample_rate: i32,
    pub frame_length: i32,
    pub frame_shift: i32,
    pub features: i32,
    pub subsampling: i32,
    pub speech_reserved: u32,
}

pub enum attnkit_runtime {}
pub enum attnkit_model {}
pub enum attnkit_session {}
pub enum attnkit_text {}

pub type attnkit_diagnose = extern "C" fn(context: usize, diagnostic: *const attnkit_diagnostic);

#[link(name = "attnkit")]
extern "C" {
    pub fn attnkit_runtime_create(
        options: *const attnkit_runtime_options,
        runtime: *mut *mut attnkit_runtime,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_runtime_destroy(runtime: *mut attnkit_runtime);
    pub fn attnkit_model_open(
        runtime: *mut attnkit_runtime,
        path: *const c_char,
        diagnose: Option<attnkit_diagnose>,
        context: usize,
        model: *mut *mut attnkit_model,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_model_destroy(model: *mut attnkit_model);
    pub fn attnkit_model_get_info(
        model: *const attnkit_model,
        info: *mut attnkit_model_info,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_model_tokenize(
        model: *const attnkit_model,
        side: u32,
        text: *const c_char,
        ids: *mut i32,
        n: *mut u64,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_model_detokenize(
        model: *const attnkit_model,
        side: u32,
        ids: *const i32,
        n: u64,
        text: *mut *mut attnkit_text,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_session_create(
        model: *const attnkit_model,
        rows: u32,
        session: *mut *mut attnkit_session,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_session_destroy(session: *mut attnkit_session);
    pub fn attnkit_session_read(
        session: *mut attnkit_session,
        source: *const attn_tensor,
        last: u32,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_session_generate(
        session: *mut attnkit_session,
        limit: u32,
        ids: *mut i32,
        n: *mut u64,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_session_describe(
        session: *const attnkit_session,
        json: *mut *mut attnkit_text,
        err: *mut attn_error,
    ) -> i32;
    pub fn attnkit_text_data(text: *const attnkit_text, bytes: *mut u64) -> *const c_char;
    pub fn attnkit_text_destroy(text: *mut attnkit_text);
}

// The same without raw pointers to errors and without forgotten handles.

pub fn text(c: *const c_char) -> String {
    unsafe { CStr::from_ptr(c) }.to_string_lossy().into_owned()
}

// Calls f with an error to fill; a code other than ATTN_OK becomes the error's message.
pub fn check(f: impl FnOnce(*mut attn_error) -> i32) -> Result<(), String> {
    let mut err =
        attn_error { struct_size: size_of::<attn_error>() as u32, code: ATTN_OK, r#where: -1, message: [0; 500] };
    if f(&mut err) == ATTN_OK {
        Ok(())
    } else {
        Err(text(err.message.as_ptr()))
    }
}

// A handle that frees itself.
pub struct Handle<T>(pub *mut T, unsafe extern "C" fn(*mut T));

impl<T> Handle<T> {
    // What f puts into the place that it is given.
    pub fn make(
        destroy: unsafe extern "C" fn(*mut T),
        f: impl FnOnce(*mut *mut T, *mut attn_error) -> i32,
    ) -> Result<Self, String> {
        let mut handle = Handle(null_mut(), destroy);
        check(|err| f(&mut handle.0, err))?;
        Ok(handle)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        unsafe { (self.1)(self.0) }
    }
}
