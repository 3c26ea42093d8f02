// Text through a model, in Go.   translate MODEL.toml "text" [plugin folder, absolute]
package main

/*
#cgo LDFLAGS: -lattnkit
#include <attnkit/attnkit.h>
#include <stdlib.h>
void show(uintptr_t context, attnkit_diagnostic* diagnostic);
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

//export show
func show(_ C.uintptr_t, d *C.attnkit_diagnostic) {
	kind := map[C.uint32_t]string{C.ATTNKIT_ERROR: "error", C.ATTNKIT_WARNING: "warning"}[d.severity]
	fmt.Fprintf(os.Stderr, "%d:%d: %s[AK%d]: %s\n", d.line, d.column, kind, d.code, C.GoString(d.message))
	if d.help != nil {
		fmt.Fprintf(os.Stderr, "  help: %s\n", C.GoString(d.help))
	}
}

var err C.attn_error

// Ends the program with the reason if a call failed.
func check(code C.int32_t) {
	if code != C.ATTN_OK {
		fmt.Fprintln(os.Stderr, "translate:", C.GoString(&err.message[0]))
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, "usage: translate MODEL.toml \"text\" [plugin folder]")
		os.Exit(2)
	}
	err.struct_size = C.uint32_t(unsafe.Sizeof(err))
	options := C.attnkit_runtime_options{plugin_path: C.CString(append(os.Args, "")[3])}
	options.struct_size = C.uint32_t(unsafe.Sizeof(options))
	var runtime *C.attnkit_runtime
	check(C.attnkit_runtime_create(&options, &runtime, &err))
	defer C.attnkit_runtime_destroy(runtime)
	var model *C.attnkit_model
	check(C.attnkit_model_open(runtime, C.CString(os.Args[1]), C.attnkit_diagnose(C.show), 0, &model, &err))
	defer C.attnkit_model_destroy(model)
	var info C.attnkit_model_info
	info.struct_size = C.uint32_t(unsafe.Sizeof(info))
	check(C.attnkit_model_get_info(model, &info, &err))

	// The source tensor points to the ids, so they must lie in C's memory.
	memory := (*C.int32_t)(C.calloc(C.size_t(info.max_length), C.sizeof_int32_t))
	ids, n := unsafe.Slice(memory, info.max_length), C.uint64_t(info.max_length-1)
	check(C.attnkit_model_tokenize(model, 0, C.CString(os.Args[2]), memory, &n, &err))
	ids[n] = info.end_id
	source := C.attn_tensor{data: unsafe.Pointer(memory), dtype_bits: 32, dtype_lanes: 1, ndim: 2, device_type: 1}
	source.shape[0], source.shape[1] = 1, C.int64_t(n+1)
	source.stride[0], source.stride[1] = C.int64_t(n+1), 1

	var session *C.attnkit_session
	check(C.attnkit_session_create(model, 0, &session, &err))
	defer C.attnkit_session_destroy(session)
	check(C.attnkit_session_read(session, &source, 1, &err))
	check(C.attnkit_session_generate(session, 0, memory, &n, &err))
	var translation, stats *C.attnkit_text
	check(C.attnkit_model_detokenize(model, 1, memory, n, &translation, &err))
	defer C.attnkit_text_destroy(translation)
	check(C.attnkit_session_describe(session, &stats, &err))
	defer C.attnkit_text_destroy(stats)
	fmt.Println(C.GoString(C.attnkit_text_data(translation, nil)))
	fmt.Println(C.GoString(C.attnkit_text_data(stats, nil)))
}
