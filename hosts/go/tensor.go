package attnkit

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

func shape(code, bits uint8, dimensions ...int) C.shim_shape {
	s := C.shim_shape{code: C.uint8_t(code), bits: C.uint8_t(bits), ndim: C.uint32_t(len(dimensions))}
	for d, n := range dimensions {
		s.shape[d] = C.int64_t(n)
	}
	return s
}

// Source is one source, or a part of one.
type Source struct {
	ids      []int32
	numbers  []float32
	features int
	speech   bool
}

// IDs is a source of token ids.
func IDs(ids ...int32) Source { return Source{ids: ids} }

// Samples is speech, within [-1, 1] at the model's sample rate.
func Samples(samples []float32) Source { return Source{numbers: samples, speech: true} }

// Frames is speech as Model.Features gives it, of so many numbers each.
func Frames(frames []float32, features int) Source {
	return Source{numbers: frames, features: features, speech: true}
}

func (s *Source) tensor() (unsafe.Pointer, C.shim_shape, error) {
	if s == nil {
		return nil, C.shim_shape{}, nil
	}
	if !s.speech {
		return unsafe.Pointer(first(s.ids)), shape(0, 32, 1, len(s.ids)), nil
	}
	if s.features == 0 {
		return unsafe.Pointer(first(s.numbers)), shape(2, 32, 1, len(s.numbers)), nil
	}
	if s.features < 0 || len(s.numbers)%s.features != 0 {
		return nil, C.shim_shape{}, invalid("%d numbers do not make whole frames of %d", len(s.numbers), s.features)
	}
	return unsafe.Pointer(first(s.numbers)), shape(2, 32, 1, len(s.numbers)/s.features, s.features), nil
}

// Batch is sources or targets side by side, of which the first Lengths are real.
type Batch struct {
	ids          []int32
	numbers      []float32
	rows, length int
	features     int
	speech       bool
	lengths      []int32
}

// BatchOf copies sequences of ids into rows of one length.
func BatchOf(rows ...[]int32) *Batch {
	b := &Batch{rows: len(rows)}
	for _, row := range rows {
		if len(row) > b.length {
			b.length = len(row)
		}
		b.lengths = append(b.lengths, int32(len(row)))
	}
	b.ids = make([]int32, b.rows*b.length)
	for i, row := range rows {
		copy(b.ids[i*b.length:], row)
	}
	return b
}

// BatchIDs is rows of ids as they lie.
func BatchIDs(ids []int32, lengths []int32) (*Batch, error) {
	length, err := rowLength(len(ids), len(lengths), 1)
	return &Batch{ids: ids, rows: len(lengths), length: length, lengths: lengths}, err
}

// BatchSpeech is rows of samples as they lie; with features, of frames of so many numbers.
func BatchSpeech(numbers []float32, features int, lengths []int32) (*Batch, error) {
	width := features
	if width == 0 {
		width = 1
	}
	length, err := rowLength(len(numbers), len(lengths), width)
	return &Batch{numbers: numbers, rows: len(lengths), length: length, features: features, speech: true, lengths: lengths}, err
}

func rowLength(numbers, rows, width int) (int, error) {
	if rows < 1 || width < 1 || numbers%(rows*width) != 0 {
		return 0, invalid("%d numbers do not make %d rows of elements of %d", numbers, rows, width)
	}
	return numbers / (rows * width), nil
}

func (b *Batch) tensor() (unsafe.Pointer, C.shim_shape) {
	if b == nil || b.rows == 0 {
		return nil, C.shim_shape{}
	}
	switch {
	case !b.speech:
		return unsafe.Pointer(first(b.ids)), shape(0, 32, b.rows, b.length)
	case b.features == 0:
		return unsafe.Pointer(first(b.numbers)), shape(2, 32, b.rows, b.length)
	}
	return unsafe.Pointer(first(b.numbers)), shape(2, 32, b.rows, b.length, b.features)
}

func (b *Batch) lens() *C.int32_t {
	if b == nil {
		return nil
	}
	return (*C.int32_t)(first(b.lengths))
}

// Tensor is numbers of a block in memory of C, zero at first.  Closing it while a call uses it is an error of the program.
type Tensor struct {
	raw   C.attn_tensor
	count int
}

// NewTensor32 makes a contiguous tensor of float32.
func NewTensor32(dimensions ...int) (*Tensor, error) { return newTensor(32, dimensions) }

// NewTensor64 makes a contiguous tensor of float64.
func NewTensor64(dimensions ...int) (*Tensor, error) { return newTensor(64, dimensions) }

func newTensor(bits int, dimensions []int) (*Tensor, error) {
	if len(dimensions) > 4 {
		return nil, invalid("a tensor of %d dimensions: at most 4", len(dimensions))
	}
	count := 1
	for _, n := range dimensions {
		if n < 0 || n > 0 && count > (1<<48)/n {
			return nil, invalid("a tensor of shape %v is impossible", dimensions)
		}
		count *= n
	}
	memory, err := aligned(count*bits/8 + 1)
	if err != nil {
		return nil, err
	}
	t := &Tensor{raw: C.shim_tensor(memory, shape(2, uint8(bits), dimensions...)), count: count}
	runtime.SetFinalizer(t, func(t *Tensor) { t.Close() })
	return t, nil
}

// Float32 returns the numbers of a tensor of float32; they are gone after Close, and once nothing refers to the tensor: call
// runtime.KeepAlive(t) behind the last use of them.
func (t *Tensor) Float32() []float32 {
	if t.raw.data == nil || t.raw.dtype_bits != 32 {
		return nil
	}
	return unsafe.Slice((*float32)(t.raw.data), t.count)
}

// Float64 returns the numbers of a tensor of float64; they are gone as those of Float32.
func (t *Tensor) Float64() []float64 {
	if t.raw.data == nil || t.raw.dtype_bits != 64 {
		return nil
	}
	return unsafe.Slice((*float64)(t.raw.data), t.count)
}

// Close frees the numbers.
func (t *Tensor) Close() error {
	C.free(t.raw.data)
	t.raw.data = nil
	return nil
}

// Zero bytes that begin at a multiple of ATTN_ALIGN.
func aligned(bytes int) (unsafe.Pointer, error) {
	size := (bytes + C.ATTN_ALIGN - 1) / C.ATTN_ALIGN * C.ATTN_ALIGN
	memory := C.aligned_alloc(C.ATTN_ALIGN, C.size_t(size))
	if memory == nil {
		return nil, &Error{Code: NoMemory, Message: "out of memory: free some, or ask for less", Where: -1}
	}
	C.memset(memory, 0, C.size_t(size))
	return memory, nil
}
