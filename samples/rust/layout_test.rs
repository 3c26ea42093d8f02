// The structs of attnkit.rs against tests/abi/layout.txt, whose path is in ATTNKIT_LAYOUT.
mod attnkit;
use attnkit::*;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

// "name size", then "offset size field" per field.
macro_rules! layout {
    ($t:ident, $($field:ident)*) => {{
        let value = MaybeUninit::<$t>::uninit();
        let base = value.as_ptr();
        let mut lines = vec![format!("{} {}", stringify!($t), size_of::<$t>())];
        $(
            let field = unsafe { addr_of!((*base).$field) };
            let name = stringify!($field).trim_start_matches("r#");
            lines.push(format!("{} {} {}", field as usize - base as usize, size_behind(field), name));
        )*
        lines
    }};
}

fn expected(name: &str) -> Vec<String> {
    let path = std::env::var("ATTNKIT_LAYOUT").expect("ATTNKIT_LAYOUT names tests/abi/layout.txt");
    let file = std::fs::read_to_string(path).expect("the layout can be read");
    let head = format!("struct {} ", name);
    let mut lines = file.lines().skip_while(|line| !line.starts_with(&head));
    let first: Vec<&str> = lines.next().expect("the layout has the struct").split_whitespace().collect();
    let mut all = vec![format!("{} {}", first[1], first[2])];
    for line in lines.take_while(|line| line.starts_with("  ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        all.push(words[..3].join(" "));
    }
    all
}

#[test]
fn structs_are_those_of_the_headers() {
    assert_eq!(expected("attn_error"), layout!(attn_error, struct_size code r#where message));
    assert_eq!(
        expected("attn_tensor"),
        layout!(attn_tensor, data shape stride dtype_code dtype_bits dtype_lanes ndim device_type device_id)
    );
    assert_eq!(
        expected("attnkit_runtime_options"),
        layout!(attnkit_runtime_options, struct_size threads plugin_path device_type device_id)
    );
    assert_eq!(
        expected("attnkit_diagnostic"),
        layout!(attnkit_diagnostic, struct_size severity area code line column message help)
    );
    assert_eq!(
        expected("attnkit_model_info"),
        layout!(attnkit_model_info, struct_size kind source_vocab target_vocab outputs max_length begin_id end_id beams
                reserved parameters state_bytes sample_rate frame_length frame_shift features subsampling speech_reserved)
    );
}
