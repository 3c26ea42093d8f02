// Package attnkit is attnkit.h for Go: transformers composed of attention mechanisms that are plugins.
//
//	runtime, err := attnkit.NewRuntime(attnkit.Options{})
//	defer runtime.Close()
//	model, err := attnkit.Open(runtime, "model.toml")
//	defer model.Close()
//	fmt.Println(model.Translate(ctx, "two hundred and forty-one euros", 0, 0))
//
// Shapes, units and numbers are those of attnkit.h.  Slices are lent to a call and never kept.  A Runtime, Model, Encoded and
// Block may be used by any goroutines at once, a Session by one at a time; every value is closed with Close, in any order,
// which waits for the calls that run.  What was forgotten is freed when the collector finds it, at a time nobody knows.
//
// It is built with what "pkg-config attnkit" says.
package attnkit

/*
#cgo pkg-config: attnkit
#include "shim.h"
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// Code is the class of an Error; errors.Is(err, attnkit.Invalid) asks for one.
type Code int32

// The codes of attnkit.h.
const (
	Invalid     Code = C.ATTN_INVALID     // a wrong value, or a broken rule of the call
	Unsupported Code = C.ATTN_UNSUPPORTED // a well-formed request that is refused; the message is the reason
	NoMemory    Code = C.ATTN_NO_MEMORY
	Device      Code = C.ATTN_DEVICE
	Internal    Code = C.ATTN_INTERNAL
)

func (c Code) Error() string {
	switch c {
	case Invalid:
		return "invalid"
	case Unsupported:
		return "unsupported"
	case NoMemory:
		return "no memory"
	case Device:
		return "the device failed"
	case Internal:
		return "internal"
	}
	return fmt.Sprintf("code %d", int32(c))
}

// Diagnostic is one problem of a manifest or of what it names; Line and Column from 1, 0: no place.
type Diagnostic struct {
	IsError            bool
	Area               uint32
	Code, Line, Column int
	Message, Help      string
}

// Error is a call that was refused or failed.
type Error struct {
	Code        Code
	Message     string       // one line: the thing, its value, the limit, what to do
	Where       int          // index of the option, port or session at fault, or -1
	Diagnostics []Diagnostic // everything that is wrong with a manifest, sorted by place
}

func (e *Error) Error() string { return e.Message }

// Is says whether target is this error's code.
func (e *Error) Is(target error) bool { return target == error(e.Code) }

func invalid(format string, arguments ...any) error {
	return &Error{Code: Invalid, Message: fmt.Sprintf(format, arguments...), Where: -1}
}

// Refuses an argument that is nil.
func given(isNil bool, what string) error {
	if isNil {
		return invalid("the %s is nil: give one", what)
	}
	return nil
}

// The error of a context that is nil or done.
func contextError(ctx context.Context) error {
	if err := given(ctx == nil, "context"); err != nil {
		return err
	}
	return ctx.Err()
}

// A number of the caller's, which C has in 32 bits.
type named struct {
	what  string
	value int
}

// Refuses the first that is not from 0 to most: of some C would make others.
func upTo(most int, numbers ...named) error {
	for _, n := range numbers {
		if n.value < 0 || n.value > most {
			return invalid("%s %d: it must be 0 to %d", n.what, n.value, most)
		}
	}
	return nil
}

// They live in C's memory, so that a call allocates none.
var errorPool = sync.Pool{New: func() any {
	e := (*C.attn_error)(C.calloc(1, C.sizeof_attn_error))
	e.struct_size = C.sizeof_attn_error
	kept := &pooled{e}
	runtime.SetFinalizer(kept, func(p *pooled) { C.free(unsafe.Pointer(p.err)) })
	return kept
}}

type pooled struct{ err *C.attn_error }

// Calls f with an error to fill.
func call(f func(err *C.attn_error) C.int32_t) error {
	p := errorPool.Get().(*pooled)
	defer errorPool.Put(p)
	return failure(f(p.err), p.err)
}

func failure(code C.int32_t, err *C.attn_error) error {
	if code == C.ATTN_OK {
		return nil
	}
	return &Error{Code: Code(code), Message: C.GoString(&err.message[0]), Where: int(err.where)}
}

// A handle of the library.  use holds it open; Close waits for those that hold it.
type handle[T any] struct {
	lock    sync.RWMutex
	pointer *T
	destroy func(*T)
}

func (h *handle[T]) set(pointer *T, destroy func(*T)) {
	h.pointer, h.destroy = pointer, destroy
	runtime.SetFinalizer(h, func(h *handle[T]) { h.Close() })
}

// Close frees the value; a call that runs ends first, so a function that this call calls, as Sample calls each, must not close:
// it would wait for ever.  Closing twice is fine.
func (h *handle[T]) Close() error {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.pointer != nil {
		h.destroy(h.pointer)
		h.pointer = nil
		runtime.SetFinalizer(h, nil)
	}
	return nil
}

// Holds the handle while f calls the library.
func (h *handle[T]) use(f func(pointer *T, err *C.attn_error) C.int32_t) error {
	h.lock.RLock()
	defer h.lock.RUnlock()
	if h.pointer == nil {
		return invalid("this %s is closed", h.kind())
	}
	p := errorPool.Get().(*pooled)
	defer errorPool.Put(p)
	err := failure(f(h.pointer, p.err), p.err)
	runtime.KeepAlive(h)
	return err
}

func (h *handle[T]) kind() string {
	switch any(h.pointer).(type) {
	case *C.attnkit_runtime:
		return "Runtime"
	case *C.attnkit_model:
		return "Model"
	case *C.attnkit_encoded:
		return "Encoded"
	case *C.attnkit_session:
		return "Session"
	}
	return "Block"
}

// A text for C, to be freed.
func cText(text, what string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, invalid("%s holds a NUL byte", what)
	}
	return C.CString(text), nil
}

func free(text *C.char) { C.free(unsafe.Pointer(text)) }

// The document behind a text, which is freed.
func document(text *C.attnkit_text) string {
	defer C.attnkit_text_destroy(text)
	var n C.uint64_t
	first := C.attnkit_text_data(text, &n)
	return string(unsafe.Slice((*byte)(unsafe.Pointer(first)), int(n)))
}

// A copy of the bytes of a blob, which is freed.
func bytesOf(blob *C.attnkit_blob) []byte {
	defer C.attnkit_blob_destroy(blob)
	var n C.uint64_t
	first := C.attnkit_blob_data(blob, &n)
	return append([]byte(nil), unsafe.Slice((*byte)(first), int(n))...)
}

// The address of a slice's first element, nil for none.
func first[T any](values []T) *T {
	if len(values) == 0 {
		return nil
	}
	return &values[0]
}

// Version returns the library's version, such as "0.1.0".
func Version() string { return C.GoString(C.attnkit_version()) }

// ABIMinor returns the minor of the ABI that the library was built for.
func ABIMinor() int { return int(C.attnkit_abi_minor()) }
