//! Says where libattnkit is.
use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=ATTNKIT_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    if env::var_os("CARGO_FEATURE_LINK").is_none() {
        return;
    }
    let folder = env::var("ATTNKIT_LIB_DIR").ok().or_else(|| {
        let asked = Command::new("pkg-config").args(["--variable=libdir", "attnkit"]).output().ok()?;
        // pkg-config puts \ before a space.
        Some(String::from_utf8(asked.stdout).ok()?.trim().replace('\\', "")).filter(|folder| !folder.is_empty())
    });
    match folder {
        Some(folder) => {
            println!("cargo:rustc-link-search=native={}", folder);
            println!("cargo:libdir={}", folder); // DEP_ATTNKIT_LIBDIR of a crate that wants an rpath
        }
        None => println!("cargo:warning=libattnkit is looked for in the linker's folders alone, since pkg-config finds no attnkit: \
                          where it is elsewhere, set ATTNKIT_LIB_DIR to its folder or PKG_CONFIG_PATH to that of attnkit.pc"),
    }
    println!("cargo:rustc-link-lib=dylib=attnkit");
}
