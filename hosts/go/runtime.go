package attnkit

// #include "shim.h"
import "C"

import "math"

// Options of a runtime; those that are zero are the library's.
type Options struct {
	Threads              int    // of one call, its caller included, 1 to 1024; 0: one per processor that the process may use
	PluginPath           string // folders separated by ':', searched first for plugins
	DeviceType, DeviceID int    // which variants of mechanisms blocks use: 0 and 1 the CPU, 2 CUDA
}

// Runtime is threads and loaded plugins.
type Runtime struct {
	handle[C.attnkit_runtime]
}

// NewRuntime finds and loads every usable plugin of the search path.
func NewRuntime(options Options) (*Runtime, error) {
	if err := upTo(1024, named{"threads", options.Threads}); err != nil {
		return nil, err
	}
	if err := upTo(math.MaxInt32, named{"device type", options.DeviceType}, named{"device id", options.DeviceID}); err != nil {
		return nil, err
	}
	path, err := cText(options.PluginPath, "the plugin path")
	if err != nil {
		return nil, err
	}
	defer free(path)
	var made *C.attnkit_runtime
	err = call(func(err *C.attn_error) C.int32_t {
		return C.shim_runtime(C.uint32_t(options.Threads), path, C.int32_t(options.DeviceType), C.int32_t(options.DeviceID), &made, err)
	})
	if err != nil {
		return nil, err
	}
	r := &Runtime{}
	r.set(made, func(p *C.attnkit_runtime) { C.attnkit_runtime_destroy(p) })
	return r, nil
}

// Describe returns JSON "attnkit.runtime/1": search path, plugins with options and costs, skipped files with the reason.
func (r *Runtime) Describe() (string, error) {
	var text *C.attnkit_text
	err := r.use(func(p *C.attnkit_runtime, err *C.attn_error) C.int32_t {
		return C.attnkit_runtime_describe(p, &text, err)
	})
	if err != nil {
		return "", err
	}
	return document(text), nil
}

// List returns JSON "attnkit.plugin-list/1": the loaded plugins, without calling them.
func (r *Runtime) List() (string, error) {
	var text *C.attnkit_text
	err := r.use(func(p *C.attnkit_runtime, err *C.attn_error) C.int32_t { return C.attnkit_runtime_list(p, &text, err) })
	if err != nil {
		return "", err
	}
	return document(text), nil
}
