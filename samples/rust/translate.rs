// Text through a model, in Rust without crates.   translate MODEL.toml "text" [plugin folder, absolute]
mod attnkit;
use attnkit::*;
use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::ptr::{null, null_mut};

extern "C" fn show(_: usize, diagnostic: *const attnkit_diagnostic) {
    let d = unsafe { &*diagnostic };
    let kind = if d.severity == ATTNKIT_ERROR { "error" } else { "warning" };
    eprintln!("{}:{}: {}[AK{}]: {}", d.line, d.column, kind, d.code, text(d.message));
    if !d.help.is_null() {
        eprintln!("  help: {}", text(d.help));
    }
}

// The translation, and what the session then holds.
fn translate(manifest: &CStr, phrase: &CStr, plugins: Option<&CStr>) -> Result<String, String> {
    let options = attnkit_runtime_options {
        struct_size: size_of::<attnkit_runtime_options>() as u32,
        threads: 0,
        plugin_path: plugins.map_or(null(), CStr::as_ptr),
        device_type: 0,
        device_id: 0,
    };
    let runtime =
        Handle::make(attnkit_runtime_destroy, |to, err| unsafe { attnkit_runtime_create(&options, to, err) })?;
    let open = |to, err| unsafe { attnkit_model_open(runtime.0, manifest.as_ptr(), Some(show), 0, to, err) };
    let model = Handle::make(attnkit_model_destroy, open)?;
    let mut info = attnkit_model_info { struct_size: size_of::<attnkit_model_info>() as u32, ..Default::default() };
    check(|err| unsafe { attnkit_model_get_info(model.0, &mut info, err) })?;

    let mut ids = vec![0; info.max_length as usize];
    let mut n = ids.len() as u64 - 1; // room for </s>
    check(|err| unsafe { attnkit_model_tokenize(model.0, 0, phrase.as_ptr(), ids.as_mut_ptr(), &mut n, err) })?;
    ids[n as usize] = info.end_id;
    let source = attn_tensor::of_ids(&mut ids[..=n as usize]);

    let session =
        Handle::make(attnkit_session_destroy, |to, err| unsafe { attnkit_session_create(model.0, 0, to, err) })?;
    check(|err| unsafe { attnkit_session_read(session.0, &source, 1, err) })?;
    check(|err| unsafe { attnkit_session_generate(session.0, 0, ids.as_mut_ptr(), &mut n, err) })?;
    let words = |to, err| unsafe { attnkit_model_detokenize(model.0, 1, ids.as_ptr(), n, to, err) };
    let translation = Handle::make(attnkit_text_destroy, words)?;
    let stats = Handle::make(attnkit_text_destroy, |to, err| unsafe { attnkit_session_describe(session.0, to, err) })?;
    let read = |t: &Handle<attnkit_text>| text(unsafe { attnkit_text_data(t.0, null_mut()) });
    Ok(format!("{}\n{}", read(&translation), read(&stats)))
}

fn main() {
    let arguments: Vec<CString> =
        std::env::args().skip(1).map(|a| CString::new(a).expect("arguments hold no NUL")).collect();
    let result = match arguments.as_slice() {
        [manifest, phrase] => translate(manifest, phrase, None),
        [manifest, phrase, plugins] => translate(manifest, phrase, Some(plugins)),
        _ => Err("usage: translate MODEL.toml \"text\" [plugin folder]".to_string()),
    };
    match result {
        Ok(output) => println!("{}", output),
        Err(message) => {
            eprintln!("translate: {}", message);
            std::process::exit(1);
        }
    }
}
