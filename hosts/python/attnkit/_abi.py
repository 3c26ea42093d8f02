"""attnkit.h and what it needs of plugin.h: constants, structs, functions.  tests/python/layout_test.py holds them to the headers."""

from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int32, c_int64, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p, sizeof)
from typing import Any, TypeVar

from ._arguments import integer, integer_fields

ATTN_OK, ATTN_INVALID, ATTN_UNSUPPORTED, ATTN_NO_MEMORY, ATTN_DEVICE, ATTN_INTERNAL = range(6)
ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS = 1, 2, 3
ATTN_QUERY, ATTN_KEY, ATTN_OUTPUT, ATTN_LEARNED, ATTN_TABLE, ATTN_AUX_IN, ATTN_AUX_OUT = range(1, 8)
ATTN_RAW, ATTN_NO_BIAS, ATTN_PER_MODEL = 1, 2, 4
ATTN_STREAM, ATTN_TRAIN, ATTN_PREFIX, ATTN_KNOWS_Q_TOTAL, ATTN_KNOWS_K_TOTAL = 1, 2, 4, 8, 16
ATTN_ALIGN = 64
ATTNKIT_ERROR, ATTNKIT_WARNING = 1, 2
ATTNKIT_ENCODER, ATTNKIT_DECODER, ATTNKIT_ENCODER_DECODER = 1, 2, 3
ATTNKIT_READ, ATTNKIT_WRITE, ATTNKIT_STOP = 1, 2, 3

uintptr_t = ctypes.c_size_t


class attn_error(Structure):
    _fields_ = [("struct_size", c_uint32), ("code", c_int32), ("where", c_int32), ("message", c_char * 500)]


class attn_tensor(Structure):
    _fields_ = [("data", c_void_p), ("shape", c_int64 * 4), ("stride", c_int64 * 4), ("dtype_code", c_uint8),
                ("dtype_bits", c_uint8), ("dtype_lanes", c_uint16), ("ndim", c_uint32), ("device_type", c_int32),
                ("device_id", c_int32)]


class attn_port(Structure):
    _fields_ = [("struct_size", c_uint32), ("kind", c_uint32), ("flags", c_uint32), ("dtype_code", c_uint8), ("dtype_bits", c_uint8),
                ("ndim", c_uint16), ("name", c_char_p), ("doc", c_char_p), ("shape", c_int64 * 4)]


class attn_block(Structure):
    _fields_ = [("struct_size", c_uint32), ("role", c_uint32), ("causal", c_uint32), ("heads", c_uint32), ("d_model", c_int32),
                ("head_width", c_int32), ("kv_heads", c_uint32), ("key_width", c_int32)]


class attn_request(Structure):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("device_type", c_int32), ("device_id", c_int32),
                ("dtype_code", c_uint8), ("dtype_bits", c_uint8), ("dtype_lanes", c_uint16), ("workers", c_uint32),
                ("batch", c_int64), ("queries", c_int64), ("keys", c_int64), ("past", c_int64)]


class attn_info(Structure):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("scratch_bytes", c_uint64), ("backward_scratch_bytes", c_uint64),
                ("saved_bytes", c_uint64), ("state_bytes", c_uint64), ("flops", c_uint64), ("bytes_read", c_uint64),
                ("bytes_written", c_uint64)]


class attn_run(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("exec", c_void_p), ("batch", c_int64), ("queries", c_int64),
                ("keys", c_int64), ("ports", POINTER(attn_tensor)), ("q_len", POINTER(c_int32)), ("k_len", POINTER(c_int32)),
                ("q_pos", POINTER(c_int32)), ("k_pos", POINTER(c_int32)), ("q_total", POINTER(c_double)),
                ("k_total", POINTER(c_double)), ("visible", POINTER(c_int32)), ("state", c_void_p), ("state_stride", c_uint64),
                ("slots", POINTER(c_int32)), ("saved", c_void_p)]


class attn_grad(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("run", POINTER(attn_run)), ("grads", POINTER(attn_tensor))]


class attnkit_runtime_options(Structure):
    _fields_ = [("struct_size", c_uint32), ("threads", c_uint32), ("plugin_path", c_char_p), ("device_type", c_int32),
                ("device_id", c_int32)]


class attnkit_diagnostic(Structure):
    _fields_ = [("struct_size", c_uint32), ("severity", c_uint32), ("area", c_uint32), ("code", c_int32), ("line", c_int32),
                ("column", c_int32), ("message", c_char_p), ("help", c_char_p)]


class attnkit_model_info(Structure):
    _fields_ = [("struct_size", c_uint32), ("kind", c_uint32), ("source_vocab", c_int32), ("target_vocab", c_int32),
                ("outputs", c_int32), ("max_length", c_int32), ("begin_id", c_int32), ("end_id", c_int32), ("beams", c_uint32),
                ("reserved", c_uint32), ("parameters", c_uint64), ("state_bytes", c_uint64), ("sample_rate", c_int32),
                ("frame_length", c_int32), ("frame_shift", c_int32), ("features", c_int32), ("subsampling", c_int32),
                ("speech_reserved", c_uint32)]


class attnkit_stream_view(Structure):
    _fields_ = [("struct_size", c_uint32), ("ended", c_uint32), ("read", c_int64), ("written", c_int64)]


class attnkit_stream_event(Structure):
    _fields_ = [("struct_size", c_uint32), ("action", c_uint32), ("read", c_int64), ("written", c_int64), ("id", c_int32),
                ("ended", c_uint32), ("seconds", c_double)]


attnkit_diagnose = CFUNCTYPE(None, uintptr_t, POINTER(attnkit_diagnostic))
attnkit_decide = CFUNCTYPE(c_uint32, uintptr_t, POINTER(attnkit_stream_view))
attnkit_observe = CFUNCTYPE(None, uintptr_t, POINTER(attnkit_stream_event))
attnkit_token = CFUNCTYPE(c_uint32, uintptr_t, c_int32)


class attnkit_stream_options(Structure):
    _fields_ = [("struct_size", c_uint32), ("limit", c_uint32), ("decide", attnkit_decide), ("decide_context", uintptr_t),
                ("observe", attnkit_observe), ("observe_context", uintptr_t), ("ends", POINTER(c_int64)), ("units", c_uint64)]


class attnkit_sample_options(Structure):
    _fields_ = [("struct_size", c_uint32), ("limit", c_uint32), ("repetition_penalty", c_double), ("temperature", c_double),
                ("top_k", c_uint64), ("top_p", c_double), ("seed", c_uint64), ("stream", c_uint64), ("seen", POINTER(c_int32)),
                ("n_seen", c_uint64), ("token", attnkit_token), ("token_context", uintptr_t), ("stops", POINTER(c_char_p)),
                ("n_stops", c_uint64)]


Struct = TypeVar("Struct", bound=Structure)


def sized(struct: type[Struct], **fields: Any) -> Struct:
    """A struct that begins with struct_size; an integer that does not fit its field is refused by the field's name."""
    kinds = integer_fields(struct)
    checked = {name: integer(value, name, kinds[name]) if name in kinds else value for name, value in fields.items()}
    return struct(struct_size=sizeof(struct), **checked)


# Handles are c_void_p: Python has them by class already.
handle, made, error, tensor = c_void_p, POINTER(c_void_p), POINTER(attn_error), POINTER(attn_tensor)
int32s, size = POINTER(c_int32), POINTER(c_uint64)

# The types that each function returns and takes.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attnkit_abi_minor": (c_uint32,),
    "attnkit_version": (c_char_p,),
    "attnkit_text_data": (c_void_p, handle, size),
    "attnkit_text_destroy": (None, handle),
    "attnkit_blob_data": (c_void_p, handle, size),
    "attnkit_blob_destroy": (None, handle),
    "attnkit_runtime_create": (c_int32, POINTER(attnkit_runtime_options), made, error),
    "attnkit_runtime_destroy": (None, handle),
    "attnkit_runtime_describe": (c_int32, handle, made, error),
    "attnkit_runtime_list": (c_int32, handle, made, error),
    "attnkit_model_create": (c_int32, handle, c_char_p, c_char_p, attnkit_diagnose, uintptr_t, made, error),
    "attnkit_model_open": (c_int32, handle, c_char_p, attnkit_diagnose, uintptr_t, made, error),
    "attnkit_model_destroy": (None, handle),
    "attnkit_model_get_info": (c_int32, handle, POINTER(attnkit_model_info), error),
    "attnkit_model_describe": (c_int32, handle, POINTER(c_int64), c_uint32, made, error),
    "attnkit_model_forward": (c_int32, handle, tensor, int32s, tensor, int32s, tensor, error),
    "attnkit_model_encode": (c_int32, handle, tensor, int32s, made, error),
    "attnkit_encoded_destroy": (None, handle),
    "attnkit_model_decode": (c_int32, handle, handle, tensor, int32s, tensor, error),
    "attnkit_model_attention": (c_int32, handle, c_uint32, c_uint32, tensor, tensor, tensor, error),
    "attnkit_model_features": (c_int32, handle, tensor, tensor, size, error),
    "attnkit_model_tokenize": (c_int32, handle, c_uint32, c_char_p, int32s, size, error),
    "attnkit_model_detokenize": (c_int32, handle, c_uint32, int32s, c_uint64, made, error),
    "attnkit_session_create": (c_int32, handle, c_uint32, made, error),
    "attnkit_session_destroy": (None, handle),
    "attnkit_session_clone": (c_int32, handle, made, error),
    "attnkit_session_reorder": (c_int32, handle, POINTER(c_uint32), error),
    "attnkit_session_read": (c_int32, handle, tensor, c_uint32, error),
    "attnkit_sessions_read": (c_int32, made, c_uint32, tensor, int32s, POINTER(c_uint32), error),
    "attnkit_session_set_length": (c_int32, handle, c_double, error),
    "attnkit_session_write": (c_int32, made, c_uint32, tensor, int32s, tensor, error),
    "attnkit_session_generate": (c_int32, handle, c_uint32, int32s, size, error),
    "attnkit_sessions_generate": (c_int32, made, c_uint32, c_uint32, c_uint32, int32s, c_uint64, size, error),
    "attnkit_session_sample": (c_int32, handle, int32s, c_uint64, POINTER(attnkit_sample_options), int32s, size, error),
    "attnkit_session_save": (c_int32, handle, made, error),
    "attnkit_session_load": (c_int32, handle, c_void_p, c_uint64, made, error),
    "attnkit_session_simulate": (c_int32, handle, tensor, POINTER(attnkit_stream_options), int32s, size, error),
    "attnkit_session_describe": (c_int32, handle, made, error),
    "attnkit_block_create": (c_int32, handle, c_char_p, POINTER(attn_block), c_char_p, made, error),
    "attnkit_block_destroy": (None, handle),
    "attnkit_block_ports": (made, handle, POINTER(c_uint32)),
    "attnkit_block_fill": (c_int32, handle, c_uint32, c_uint64, tensor, error),
    "attnkit_block_plan": (c_int32, handle, POINTER(attn_request), POINTER(attn_info), error),
    "attnkit_block_run": (c_int32, handle, POINTER(attn_request), POINTER(attn_run), error),
    "attnkit_block_backward": (c_int32, handle, POINTER(attn_request), POINTER(attn_grad), error),
    "attnkit_model_weights": (c_int32, handle, made, error),
    "attnkit_model_verify": (c_int32, handle, c_char_p, made, error),
}
