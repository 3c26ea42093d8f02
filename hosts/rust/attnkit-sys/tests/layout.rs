// Made by bindings.py from tests/abi/layout.txt; do not edit.
use attnkit_sys::*;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

macro_rules! layout {
    ($t:ty, $size:expr, $(($offset:expr, $width:expr, $field:ident)),*) => {{
        assert_eq!(size_of::<$t>(), $size, stringify!($t));
        let value = MaybeUninit::<$t>::uninit();
        let base = value.as_ptr();
        $(
            let field = unsafe { addr_of!((*base).$field) };
            let place = (field as usize - base as usize, size_behind(field));
            assert_eq!(place, ($offset, $width), "{}.{}", stringify!($t), stringify!($field));
        )*
    }};
}

#[test]
fn structs_are_those_of_the_headers() {
    layout!(attn_error, 512, (0, 4, struct_size), (4, 4, code), (8, 4, r#where), (12, 500, message));
    layout!(attn_tensor, 88, (0, 8, data), (8, 32, shape), (40, 32, stride), (72, 1, dtype_code), (73, 1, dtype_bits), (74, 2, dtype_lanes), (76, 4, ndim), (80, 4, device_type), (84, 4, device_id));
    layout!(attn_value, 32, (0, 4, r#type), (4, 4, reserved), (8, 8, i), (16, 8, f), (24, 8, s));
    layout!(attn_option, 80, (0, 4, struct_size), (4, 4, n_choices), (8, 8, name), (16, 8, doc), (24, 32, fallback), (56, 8, min), (64, 8, max), (72, 8, choices));
    layout!(attn_port, 64, (0, 4, struct_size), (4, 4, kind), (8, 4, flags), (12, 1, dtype_code), (13, 1, dtype_bits), (14, 2, ndim), (16, 8, name), (24, 8, doc), (32, 32, shape));
    layout!(attn_block, 32, (0, 4, struct_size), (4, 4, role), (8, 4, causal), (12, 4, heads), (16, 4, d_model), (20, 4, head_width), (24, 4, kv_heads), (28, 4, key_width));
    layout!(attn_request, 56, (0, 4, struct_size), (4, 4, flags), (8, 4, device_type), (12, 4, device_id), (16, 1, dtype_code), (17, 1, dtype_bits), (18, 2, dtype_lanes), (20, 4, workers), (24, 8, batch), (32, 8, queries), (40, 8, keys), (48, 8, past));
    layout!(attn_info, 64, (0, 4, struct_size), (4, 4, flags), (8, 8, scratch_bytes), (16, 8, backward_scratch_bytes), (24, 8, saved_bytes), (32, 8, state_bytes), (40, 8, flops), (48, 8, bytes_read), (56, 8, bytes_written));
    layout!(attn_exec, 48, (0, 4, struct_size), (4, 4, workers), (8, 8, scratch), (16, 8, scratch_bytes), (24, 8, stream), (32, 8, pool), (40, 8, parallel_for));
    layout!(attn_run, 136, (0, 4, struct_size), (4, 4, reserved), (8, 8, exec), (16, 8, batch), (24, 8, queries), (32, 8, keys), (40, 8, ports), (48, 8, q_len), (56, 8, k_len), (64, 8, q_pos), (72, 8, k_pos), (80, 8, q_total), (88, 8, k_total), (96, 8, visible), (104, 8, state), (112, 8, state_stride), (120, 8, slots), (128, 8, saved));
    layout!(attn_grad, 24, (0, 4, struct_size), (4, 4, reserved), (8, 8, run), (16, 8, grads));
    layout!(attn_plugin, 120, (0, 4, struct_size), (4, 4, abi_minor), (8, 4, oldest_host_minor), (12, 4, device_type), (16, 8, name), (24, 8, summary), (32, 8, citation), (40, 8, state_revision), (48, 8, options), (56, 4, n_options), (60, 4, reserved), (64, 8, create), (72, 8, destroy), (80, 8, fill), (88, 8, plan), (96, 8, plan_free), (104, 8, run), (112, 8, backward));
    layout!(attn_host, 16, (0, 4, struct_size), (4, 4, abi_minor), (8, 4, oldest_plugin_minor), (12, 4, reserved));
    layout!(attnkit_runtime_options, 24, (0, 4, struct_size), (4, 4, threads), (8, 8, plugin_path), (16, 4, device_type), (20, 4, device_id));
    layout!(attnkit_diagnostic, 40, (0, 4, struct_size), (4, 4, severity), (8, 4, area), (12, 4, code), (16, 4, line), (20, 4, column), (24, 8, message), (32, 8, help));
    layout!(attnkit_model_info, 80, (0, 4, struct_size), (4, 4, kind), (8, 4, source_vocab), (12, 4, target_vocab), (16, 4, outputs), (20, 4, max_length), (24, 4, begin_id), (28, 4, end_id), (32, 4, beams), (36, 4, reserved), (40, 8, parameters), (48, 8, state_bytes), (56, 4, sample_rate), (60, 4, frame_length), (64, 4, frame_shift), (68, 4, features), (72, 4, subsampling), (76, 4, speech_reserved));
    layout!(attnkit_stream_view, 24, (0, 4, struct_size), (4, 4, ended), (8, 8, read), (16, 8, written));
    layout!(attnkit_stream_event, 40, (0, 4, struct_size), (4, 4, action), (8, 8, read), (16, 8, written), (24, 4, id), (28, 4, ended), (32, 8, seconds));
    layout!(attnkit_stream_options, 56, (0, 4, struct_size), (4, 4, limit), (8, 8, decide), (16, 8, decide_context), (24, 8, observe), (32, 8, observe_context), (40, 8, ends), (48, 8, units));
    layout!(attnkit_sample_options, 104, (0, 4, struct_size), (4, 4, limit), (8, 8, repetition_penalty), (16, 8, temperature), (24, 8, top_k), (32, 8, top_p), (40, 8, seed), (48, 8, stream), (56, 8, seen), (64, 8, n_seen), (72, 8, token), (80, 8, token_context), (88, 8, stops), (96, 8, n_stops));
}
