// Made by bindings.py from tests/abi/layout.txt; do not edit.
use std::marker::PhantomData;
use std::os::raw::{c_char, c_void};

pub const ATTN_ABI_MINOR: u32 = 1;
pub const ATTN_ALIGN: u32 = 64;
pub const ATTN_OK: i32 = 0;
pub const ATTN_INVALID: i32 = 1;
pub const ATTN_UNSUPPORTED: i32 = 2;
pub const ATTN_NO_MEMORY: i32 = 3;
pub const ATTN_DEVICE: i32 = 4;
pub const ATTN_INTERNAL: i32 = 5;
pub const ATTN_ENCODER_SELF: u32 = 1;
pub const ATTN_DECODER_SELF: u32 = 2;
pub const ATTN_DECODER_CROSS: u32 = 3;
pub const ATTN_INT: u32 = 1;
pub const ATTN_FLOAT: u32 = 2;
pub const ATTN_BOOL: u32 = 3;
pub const ATTN_TEXT: u32 = 4;
pub const ATTN_QUERY: u32 = 1;
pub const ATTN_KEY: u32 = 2;
pub const ATTN_OUTPUT: u32 = 3;
pub const ATTN_LEARNED: u32 = 4;
pub const ATTN_TABLE: u32 = 5;
pub const ATTN_AUX_IN: u32 = 6;
pub const ATTN_AUX_OUT: u32 = 7;
pub const ATTN_RAW: u32 = 1;
pub const ATTN_NO_BIAS: u32 = 2;
pub const ATTN_PER_MODEL: u32 = 4;
pub const ATTN_STREAM: u32 = 1;
pub const ATTN_TRAIN: u32 = 2;
pub const ATTN_PREFIX: u32 = 4;
pub const ATTN_KNOWS_Q_TOTAL: u32 = 8;
pub const ATTN_KNOWS_K_TOTAL: u32 = 16;
pub const ATTN_REWINDS: u32 = 1;
pub const ATTN_WITHIN_TOTAL: u32 = 2;
pub const ATTNKIT_ERROR: u32 = 1;
pub const ATTNKIT_WARNING: u32 = 2;
pub const ATTNKIT_AREA_MANIFEST: u32 = 1;
pub const ATTNKIT_AREA_PLUGIN: u32 = 2;
pub const ATTNKIT_AREA_WEIGHTS: u32 = 3;
pub const ATTNKIT_AREA_DATA: u32 = 4;
pub const ATTNKIT_ENCODER: u32 = 1;
pub const ATTNKIT_DECODER: u32 = 2;
pub const ATTNKIT_ENCODER_DECODER: u32 = 3;
pub const ATTNKIT_READ: u32 = 1;
pub const ATTNKIT_WRITE: u32 = 2;
pub const ATTNKIT_STOP: u32 = 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_error {
    pub struct_size: u32,
    pub code: i32,
    pub r#where: i32,
    pub message: [c_char; 500],
}
sized!(attn_error);

#[repr(C)]
#[derive(Clone, Copy)]
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
zeroed!(attn_tensor);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_value {
    pub r#type: u32,
    pub reserved: u32,
    pub i: i64,
    pub f: f64,
    pub s: *const c_char,
}
zeroed!(attn_value);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_option {
    pub struct_size: u32,
    pub n_choices: u32,
    pub name: *const c_char,
    pub doc: *const c_char,
    pub fallback: attn_value,
    pub min: f64,
    pub max: f64,
    pub choices: *const *const c_char,
}
sized!(attn_option);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_port {
    pub struct_size: u32,
    pub kind: u32,
    pub flags: u32,
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub ndim: u16,
    pub name: *const c_char,
    pub doc: *const c_char,
    pub shape: [i64; 4],
}
sized!(attn_port);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_block {
    pub struct_size: u32,
    pub role: u32,
    pub causal: u32,
    pub heads: u32,
    pub d_model: i32,
    pub head_width: i32,
    pub kv_heads: u32,
    pub key_width: i32,
}
sized!(attn_block);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_request {
    pub struct_size: u32,
    pub flags: u32,
    pub device_type: i32,
    pub device_id: i32,
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub dtype_lanes: u16,
    pub workers: u32,
    pub batch: i64,
    pub queries: i64,
    pub keys: i64,
    pub past: i64,
}
sized!(attn_request);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_info {
    pub struct_size: u32,
    pub flags: u32,
    pub scratch_bytes: u64,
    pub backward_scratch_bytes: u64,
    pub saved_bytes: u64,
    pub state_bytes: u64,
    pub flops: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}
sized!(attn_info);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_exec {
    pub struct_size: u32,
    pub workers: u32,
    pub scratch: *mut c_void,
    pub scratch_bytes: u64,
    pub stream: usize,
    pub pool: usize,
    pub parallel_for: Option<unsafe extern "C" fn(usize, i64, i64, attn_task, usize)>,
}
sized!(attn_exec);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_run {
    pub struct_size: u32,
    pub reserved: u32,
    pub exec: *const attn_exec,
    pub batch: i64,
    pub queries: i64,
    pub keys: i64,
    pub ports: *const attn_tensor,
    pub q_len: *const i32,
    pub k_len: *const i32,
    pub q_pos: *const i32,
    pub k_pos: *const i32,
    pub q_total: *const f64,
    pub k_total: *const f64,
    pub visible: *const i32,
    pub state: *mut c_void,
    pub state_stride: u64,
    pub slots: *const i32,
    pub saved: *mut c_void,
}
sized!(attn_run);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_grad {
    pub struct_size: u32,
    pub reserved: u32,
    pub run: *const attn_run,
    pub grads: *const attn_tensor,
}
sized!(attn_grad);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_plugin {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub oldest_host_minor: u32,
    pub device_type: i32,
    pub name: *const c_char,
    pub summary: *const c_char,
    pub citation: *const c_char,
    pub state_revision: *const c_char,
    pub options: *const *const attn_option,
    pub n_options: u32,
    pub reserved: u32,
    pub create: Option<unsafe extern "C" fn(*const attn_block, *const attn_value, *mut *mut attn_mech, *mut *const *const attn_port, *mut u32, *mut attn_error) -> i32>,
    pub destroy: Option<unsafe extern "C" fn(*mut attn_mech)>,
    pub fill: Option<unsafe extern "C" fn(*const attn_mech, u32, u64, *const attn_tensor, *mut attn_error) -> i32>,
    pub plan: Option<unsafe extern "C" fn(*const attn_mech, *const attn_request, *mut attn_info, *mut *mut attn_plan, *mut attn_error) -> i32>,
    pub plan_free: Option<unsafe extern "C" fn(*mut attn_plan)>,
    pub run: Option<unsafe extern "C" fn(*const attn_plan, *const attn_run, *mut attn_error) -> i32>,
    pub backward: Option<unsafe extern "C" fn(*const attn_plan, *const attn_grad, *mut attn_error) -> i32>,
}
sized!(attn_plugin);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attn_host {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub oldest_plugin_minor: u32,
    pub reserved: u32,
}
sized!(attn_host);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attnkit_runtime_options {
    pub struct_size: u32,
    pub threads: u32,
    pub plugin_path: *const c_char,
    pub device_type: i32,
    pub device_id: i32,
}
sized!(attnkit_runtime_options);

#[repr(C)]
#[derive(Clone, Copy)]
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
sized!(attnkit_diagnostic);

#[repr(C)]
#[derive(Clone, Copy)]
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
sized!(attnkit_model_info);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attnkit_stream_view {
    pub struct_size: u32,
    pub ended: u32,
    pub read: i64,
    pub written: i64,
}
sized!(attnkit_stream_view);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attnkit_stream_event {
    pub struct_size: u32,
    pub action: u32,
    pub read: i64,
    pub written: i64,
    pub id: i32,
    pub ended: u32,
    pub seconds: f64,
}
sized!(attnkit_stream_event);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attnkit_stream_options {
    pub struct_size: u32,
    pub limit: u32,
    pub decide: attnkit_decide,
    pub decide_context: usize,
    pub observe: attnkit_observe,
    pub observe_context: usize,
    pub ends: *const i64,
    pub units: u64,
}
sized!(attnkit_stream_options);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct attnkit_sample_options {
    pub struct_size: u32,
    pub limit: u32,
    pub repetition_penalty: f64,
    pub temperature: f64,
    pub top_k: u64,
    pub top_p: f64,
    pub seed: u64,
    pub stream: u64,
    pub seen: *const i32,
    pub n_seen: u64,
    pub token: attnkit_token,
    pub token_context: usize,
    pub stops: *const *const c_char,
    pub n_stops: u64,
}
sized!(attnkit_sample_options);

pub type attn_task = Option<unsafe extern "C" fn(usize, i64, i64, u32)>;
pub type attn_plugin_main_fn = Option<unsafe extern "C" fn(*const attn_host, *mut *const attn_plugin, *mut attn_error) -> i32>;
pub type attnkit_diagnose = Option<unsafe extern "C" fn(usize, *const attnkit_diagnostic)>;
pub type attnkit_decide = Option<unsafe extern "C" fn(usize, *const attnkit_stream_view) -> u32>;
pub type attnkit_observe = Option<unsafe extern "C" fn(usize, *const attnkit_stream_event)>;
pub type attnkit_token = Option<unsafe extern "C" fn(usize, i32) -> u32>;

#[repr(C)]
#[derive(Debug)]
pub struct attn_mech {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attn_plan {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_blob {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_block {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_encoded {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_model {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_runtime {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_session {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct attnkit_text {
    _private: [u8; 0],
    _not_send: PhantomData<*mut u8>,
}

#[cfg(feature = "link")]
extern "C" {
    pub fn attnkit_abi_minor() -> u32;
    pub fn attnkit_version() -> *const c_char;
    pub fn attnkit_text_data(text: *const attnkit_text, bytes: *mut u64) -> *const c_char;
    pub fn attnkit_text_destroy(text: *mut attnkit_text);
    pub fn attnkit_blob_data(blob: *const attnkit_blob, bytes: *mut u64) -> *const c_void;
    pub fn attnkit_blob_destroy(blob: *mut attnkit_blob);
    pub fn attnkit_runtime_create(options: *const attnkit_runtime_options, runtime: *mut *mut attnkit_runtime, err: *mut attn_error) -> i32;
    pub fn attnkit_runtime_destroy(runtime: *mut attnkit_runtime);
    pub fn attnkit_runtime_describe(runtime: *mut attnkit_runtime, json: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
    pub fn attnkit_runtime_list(runtime: *mut attnkit_runtime, json: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
    pub fn attnkit_model_create(runtime: *mut attnkit_runtime, toml: *const c_char, dir: *const c_char, diagnose: attnkit_diagnose, context: usize, model: *mut *mut attnkit_model, err: *mut attn_error) -> i32;
    pub fn attnkit_model_open(runtime: *mut attnkit_runtime, path: *const c_char, diagnose: attnkit_diagnose, context: usize, model: *mut *mut attnkit_model, err: *mut attn_error) -> i32;
    pub fn attnkit_model_destroy(model: *mut attnkit_model);
    pub fn attnkit_model_get_info(model: *const attnkit_model, info: *mut attnkit_model_info, err: *mut attn_error) -> i32;
    pub fn attnkit_model_describe(model: *const attnkit_model, lengths: *const i64, n: u32, json: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
    pub fn attnkit_model_forward(model: *const attnkit_model, source: *const attn_tensor, source_len: *const i32, target: *const attn_tensor, target_len: *const i32, out: *const attn_tensor, err: *mut attn_error) -> i32;
    pub fn attnkit_model_encode(model: *const attnkit_model, source: *const attn_tensor, source_len: *const i32, encoded: *mut *mut attnkit_encoded, err: *mut attn_error) -> i32;
    pub fn attnkit_encoded_destroy(encoded: *mut attnkit_encoded);
    pub fn attnkit_model_decode(model: *const attnkit_model, encoded: *const attnkit_encoded, target: *const attn_tensor, target_len: *const i32, out: *const attn_tensor, err: *mut attn_error) -> i32;
    pub fn attnkit_model_attention(model: *const attnkit_model, role: u32, layer: u32, source: *const attn_tensor, target: *const attn_tensor, out: *const attn_tensor, err: *mut attn_error) -> i32;
    pub fn attnkit_model_tokenize(model: *const attnkit_model, side: u32, text: *const c_char, ids: *mut i32, n: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_model_detokenize(model: *const attnkit_model, side: u32, ids: *const i32, n: u64, text: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
    pub fn attnkit_model_features(model: *const attnkit_model, samples: *const attn_tensor, frames: *const attn_tensor, n: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_session_create(model: *const attnkit_model, rows: u32, session: *mut *mut attnkit_session, err: *mut attn_error) -> i32;
    pub fn attnkit_session_destroy(session: *mut attnkit_session);
    pub fn attnkit_session_clone(session: *const attnkit_session, copy: *mut *mut attnkit_session, err: *mut attn_error) -> i32;
    pub fn attnkit_session_reorder(session: *mut attnkit_session, parents: *const u32, err: *mut attn_error) -> i32;
    pub fn attnkit_session_read(session: *mut attnkit_session, source: *const attn_tensor, last: u32, err: *mut attn_error) -> i32;
    pub fn attnkit_sessions_read(sessions: *const *mut attnkit_session, n: u32, source: *const attn_tensor, source_len: *const i32, last: *const u32, err: *mut attn_error) -> i32;
    pub fn attnkit_session_set_length(session: *mut attnkit_session, target_length: f64, err: *mut attn_error) -> i32;
    pub fn attnkit_session_write(sessions: *const *mut attnkit_session, n: u32, tokens: *const attn_tensor, len: *const i32, logits: *const attn_tensor, err: *mut attn_error) -> i32;
    pub fn attnkit_session_generate(session: *mut attnkit_session, limit: u32, ids: *mut i32, n: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_sessions_generate(sessions: *const *mut attnkit_session, n: u32, limit: u32, steps: u32, ids: *mut i32, width: u64, lengths: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_session_sample(session: *mut attnkit_session, prompt: *const i32, n_prompt: u64, options: *const attnkit_sample_options, ids: *mut i32, n: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_session_save(session: *const attnkit_session, blob: *mut *mut attnkit_blob, err: *mut attn_error) -> i32;
    pub fn attnkit_session_load(model: *const attnkit_model, bytes: *const c_void, n: u64, session: *mut *mut attnkit_session, err: *mut attn_error) -> i32;
    pub fn attnkit_session_simulate(session: *mut attnkit_session, source: *const attn_tensor, options: *const attnkit_stream_options, ids: *mut i32, n: *mut u64, err: *mut attn_error) -> i32;
    pub fn attnkit_session_describe(session: *const attnkit_session, json: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
    pub fn attnkit_block_create(runtime: *mut attnkit_runtime, mechanism: *const c_char, r#where: *const attn_block, options_toml: *const c_char, block: *mut *mut attnkit_block, err: *mut attn_error) -> i32;
    pub fn attnkit_block_destroy(block: *mut attnkit_block);
    pub fn attnkit_block_ports(block: *const attnkit_block, n: *mut u32) -> *const *const attn_port;
    pub fn attnkit_block_fill(block: *const attnkit_block, port: u32, seed: u64, tensor: *const attn_tensor, err: *mut attn_error) -> i32;
    pub fn attnkit_block_plan(block: *const attnkit_block, request: *const attn_request, info: *mut attn_info, err: *mut attn_error) -> i32;
    pub fn attnkit_block_run(block: *const attnkit_block, request: *const attn_request, run: *const attn_run, err: *mut attn_error) -> i32;
    pub fn attnkit_block_backward(block: *const attnkit_block, request: *const attn_request, grad: *const attn_grad, err: *mut attn_error) -> i32;
    pub fn attnkit_model_weights(model: *const attnkit_model, safetensors: *mut *mut attnkit_blob, err: *mut attn_error) -> i32;
    pub fn attnkit_model_verify(model: *const attnkit_model, golden: *const c_char, json: *mut *mut attnkit_text, err: *mut attn_error) -> i32;
}
