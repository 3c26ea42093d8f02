package attnkit

// #include "shim.h"
import "C"

import (
	"math"
	"reflect"
	"runtime"
	"unsafe"
)

// Flags of a Request.
const (
	StreamFlag      = C.ATTN_STREAM
	TrainFlag       = C.ATTN_TRAIN
	PrefixFlag      = C.ATTN_PREFIX
	KnowsQTotalFlag = C.ATTN_KNOWS_Q_TOTAL
	KnowsKTotalFlag = C.ATTN_KNOWS_K_TOTAL
	QueryPort       = C.ATTN_QUERY
	KeyPort         = C.ATTN_KEY
	OutputPort      = C.ATTN_OUTPUT
	LearnedPort     = C.ATTN_LEARNED
	TablePort       = C.ATTN_TABLE
	AuxInPort       = C.ATTN_AUX_IN
	AuxOutPort      = C.ATTN_AUX_OUT
)

// Place is where in a transformer a block sits.  KeyWidth, of a query and a key in a head, 0: DModel / Heads; HeadWidth, of a
// value, 0: that of a key; KVHeads, heads of keys and values, 0: Heads.
type Place struct {
	Role                     int // EncoderSelf, ...
	Causal                   bool
	Heads, DModel, HeadWidth int
	KVHeads, KeyWidth        int
}

// Port is one tensor that every run takes or gives; see attn_port.  Code and Bits 0: the run's type.
type Port struct {
	Kind, Flags uint32
	Code, Bits  uint8
	Name, Doc   string
	Shape       []int
}

// Request is upper bounds of runs on the CPU; see attn_request.
type Request struct {
	Flags                      uint32
	Double                     bool // 64-bit numbers, not 32
	Workers                    int  // threads that a run may use; at least the runtime's
	Batch, Queries, Keys, Past int
}

func (r Request) raw() C.attn_request {
	bits := C.uint8_t(32)
	if r.Double {
		bits = 64
	}
	return C.attn_request{struct_size: C.sizeof_attn_request, flags: C.uint32_t(r.Flags), device_type: 1, dtype_code: 2, dtype_bits: bits,
		dtype_lanes: 1, workers: C.uint32_t(r.Workers), batch: C.int64_t(r.Batch), queries: C.int64_t(r.Queries), keys: C.int64_t(r.Keys),
		past: C.int64_t(r.Past)}
}

// Info is what runs need and cost; see attn_info.
type Info struct {
	Flags                                                      uint32
	ScratchBytes, BackwardScratchBytes, SavedBytes, StateBytes uint64
	Flops, BytesRead, BytesWritten                             uint64
}

// Aligned is rows of bytes in memory of C, zero at first: the state of a block.
type Aligned struct {
	memory       unsafe.Pointer
	rows, stride int
}

// NewAligned makes rows of at least so many bytes.
func NewAligned(rows int, bytes uint64) (*Aligned, error) {
	if rows < 1 || bytes < 1 || bytes > 1<<40 || rows > 1<<24 {
		return nil, invalid("%d rows of %d bytes: both must be at least 1", rows, bytes)
	}
	stride := (int(bytes) + C.ATTN_ALIGN - 1) / C.ATTN_ALIGN * C.ATTN_ALIGN
	memory, err := aligned(rows * stride)
	if err != nil {
		return nil, err
	}
	a := &Aligned{memory, rows, stride}
	runtime.SetFinalizer(a, func(a *Aligned) { a.Close() })
	return a, nil
}

// Bytes returns all rows; they are gone after Close, and once nothing refers to a: call runtime.KeepAlive(a) behind the last use
// of them.
func (a *Aligned) Bytes() []byte {
	if a.memory == nil {
		return nil
	}
	return unsafe.Slice((*byte)(a.memory), a.rows*a.stride)
}

// Close frees the bytes.
func (a *Aligned) Close() error {
	C.free(a.memory)
	a.memory = nil
	return nil
}

// Saved is what Run leaves for Backward under TrainFlag.  A mechanism trusts these bytes, so nobody else writes them, and
// Backward takes them for the run that wrote them alone.
type Saved struct {
	bytes   *Aligned
	of      *Block
	request Request
	run     Run // without tensors and state
}

// NewSaved makes room for Info.SavedBytes, where these are not 0.
func NewSaved(bytes uint64) (*Saved, error) {
	a, err := NewAligned(1, bytes)
	if err != nil {
		return nil, err
	}
	return &Saved{bytes: a}, nil
}

// Close frees the bytes.
func (s *Saved) Close() error {
	s.of = nil
	return s.bytes.Close()
}

// The part of a run that says what of its tensors is read.
func (r *Run) bounds() Run {
	ints := func(values []int32) []int32 { return append([]int32(nil), values...) }
	reals := func(values []float64) []float64 { return append([]float64(nil), values...) }
	return Run{Batch: r.Batch, Queries: r.Queries, Keys: r.Keys, QLen: ints(r.QLen), KLen: ints(r.KLen), QPos: ints(r.QPos),
		KPos: ints(r.KPos), QTotal: reals(r.QTotal), KTotal: reals(r.KTotal), Visible: ints(r.Visible)}
}

// Run is one run; see attn_run.  What is nil is absent; per-row slices have an entry for each row of the batch.
type Run struct {
	Batch, Queries, Keys   int
	Ports                  []*Tensor // one for each port, in their order
	QLen, KLen, QPos, KPos []int32
	QTotal, KTotal         []float64
	Visible                []int32 // (Batch, Queries)
	State                  *Aligned
	Saved                  *Saved
	Slots                  []int32
}

// Block is one mechanism by itself.
type Block struct {
	handle[C.attnkit_block]
	ports []Port
}

// NewBlock makes a mechanism in a block; options: an inline table's content such as "guard = 'add', eps = 1e-6", or "".
func NewBlock(r *Runtime, mechanism string, place Place, options string) (*Block, error) {
	err := upTo(math.MaxInt32, named{"role", place.Role}, named{"heads", place.Heads}, named{"d_model", place.DModel},
		named{"head width", place.HeadWidth}, named{"heads of keys", place.KVHeads}, named{"key width", place.KeyWidth})
	if err == nil {
		err = given(r == nil, "Runtime")
	}
	if err != nil {
		return nil, err
	}
	name, err := cText(mechanism, "the mechanism")
	if err != nil {
		return nil, err
	}
	defer free(name)
	toml, err := cText(options, "the options")
	if err != nil {
		return nil, err
	}
	defer free(toml)
	width := place.HeadWidth
	if width == 0 {
		width = place.KeyWidth
	}
	if width == 0 && place.Heads > 0 {
		width = place.DModel / place.Heads
	}
	where := C.attn_block{struct_size: C.sizeof_attn_block, role: C.uint32_t(place.Role), heads: C.uint32_t(place.Heads),
		d_model: C.int32_t(place.DModel), head_width: C.int32_t(width), kv_heads: C.uint32_t(place.KVHeads),
		key_width: C.int32_t(place.KeyWidth)}
	if place.Causal {
		where.causal = 1
	}
	var made *C.attnkit_block
	err = r.use(func(p *C.attnkit_runtime, err *C.attn_error) C.int32_t {
		return C.attnkit_block_create(p, name, &where, toml, &made, err)
	})
	if err != nil {
		return nil, err
	}
	b := &Block{}
	b.set(made, func(p *C.attnkit_block) { C.attnkit_block_destroy(p) })
	var n C.uint32_t
	for _, p := range unsafe.Slice(C.attnkit_block_ports(made, &n), int(n)) {
		port := Port{Kind: uint32(p.kind), Flags: uint32(p.flags), Code: uint8(p.dtype_code), Bits: uint8(p.dtype_bits), Name: C.GoString(p.name)}
		if p.doc != nil {
			port.Doc = C.GoString(p.doc)
		}
		for d := 0; d < int(p.ndim); d++ {
			port.Shape = append(port.Shape, int(p.shape[d]))
		}
		b.ports = append(b.ports, port)
	}
	return b, nil
}

// Ports returns what every run takes and gives, in the order of Run.Ports.
func (b *Block) Ports() []Port { return b.ports }

// Fill writes the initial content of a LEARNED or TABLE port.
func (b *Block) Fill(port int, seed uint64, t *Tensor) error {
	if err := upTo(len(b.ports)-1, named{"port", port}); err != nil {
		return err
	}
	err := b.use(func(p *C.attnkit_block, err *C.attn_error) C.int32_t {
		return C.attnkit_block_fill(p, C.uint32_t(port), C.uint64_t(seed), &t.raw, err)
	})
	runtime.KeepAlive(t)
	return err
}

// Plan says whether the mechanism takes runs within these bounds, and what they need.
func (b *Block) Plan(request Request) (Info, error) {
	if err := upTo(math.MaxInt32, named{"workers", request.Workers}); err != nil {
		return Info{}, err
	}
	r := request.raw()
	i := C.attn_info{struct_size: C.sizeof_attn_info}
	err := b.use(func(p *C.attnkit_block, err *C.attn_error) C.int32_t { return C.attnkit_block_plan(p, &r, &i, err) })
	return Info{uint32(i.flags), uint64(i.scratch_bytes), uint64(i.backward_scratch_bytes), uint64(i.saved_bytes), uint64(i.state_bytes),
		uint64(i.flops), uint64(i.bytes_read), uint64(i.bytes_written)}, err
}

// Run computes one run within the request.
func (b *Block) Run(request Request, run *Run) error {
	if run.Saved == nil {
		return b.run(request, run, nil)
	}
	run.Saved.of = nil
	if err := b.run(request, run, nil); err != nil {
		return err
	}
	run.Saved.of, run.Saved.request, run.Saved.run = b, request, run.bounds()
	return nil
}

// Backward computes the gradients of a run under TrainFlag, by port: those of the outputs are given, the others written, of
// LEARNED ports added; nil ones are not computed.  run.Saved must be of a Run of this block with the same request and run.
func (b *Block) Backward(request Request, run *Run, grads []*Tensor) error {
	if len(grads) != len(b.ports) {
		return invalid("%d gradients for %d ports", len(grads), len(b.ports))
	}
	if s := run.Saved; s != nil && (s.of != b || s.request != request || !reflect.DeepEqual(s.run, run.bounds())) {
		return invalid("Saved is not of a Run of this block with the same request and run: call Run before Backward")
	}
	return b.run(request, run, grads)
}

func (b *Block) run(request Request, run *Run, grads []*Tensor) error {
	if err := b.check(request, run); err != nil {
		return err
	}
	ports, err := cTensors(run.Ports)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(ports))
	var given *C.attn_tensor
	if grads != nil {
		if given, err = cTensors(grads); err != nil {
			return err
		}
		defer C.free(unsafe.Pointer(given))
	}
	asked := request.raw()
	raw := C.attn_run{batch: C.int64_t(run.Batch), queries: C.int64_t(run.Queries), keys: C.int64_t(run.Keys), ports: ports}
	if run.State != nil {
		raw.state, raw.state_stride = run.State.memory, C.uint64_t(run.State.stride)
	}
	if run.Saved != nil {
		raw.saved = run.Saved.bytes.memory
	}
	ints := func(values []int32) *C.int32_t { return (*C.int32_t)(first(values)) }
	reals := func(values []float64) *C.double { return (*C.double)(first(values)) }
	err = b.use(func(p *C.attnkit_block, err *C.attn_error) C.int32_t {
		return C.shim_run(p, &asked, &raw, ints(run.QLen), ints(run.KLen), ints(run.QPos), ints(run.KPos), reals(run.QTotal),
			reals(run.KTotal), ints(run.Visible), ints(run.Slots), given, err)
	})
	runtime.KeepAlive(run)
	runtime.KeepAlive(grads)
	return err
}

// Refuses what would reach past the memory of a slice; the library sees pointers alone.
func (b *Block) check(request Request, run *Run) error {
	if err := upTo(math.MaxInt32, named{"workers", request.Workers}); err != nil {
		return err
	}
	if len(run.Ports) != len(b.ports) {
		return invalid("%d tensors for %d ports", len(run.Ports), len(b.ports))
	}
	for name, values := range map[string][]int32{"QLen": run.QLen, "KLen": run.KLen, "QPos": run.QPos, "KPos": run.KPos, "Slots": run.Slots} {
		if values != nil && len(values) != run.Batch {
			return invalid("%s has %d entries for a batch of %d", name, len(values), run.Batch)
		}
	}
	for name, values := range map[string][]float64{"QTotal": run.QTotal, "KTotal": run.KTotal} {
		if values != nil && len(values) != run.Batch {
			return invalid("%s has %d entries for a batch of %d", name, len(values), run.Batch)
		}
	}
	if run.Visible != nil && len(run.Visible) != run.Batch*run.Queries {
		return invalid("Visible has %d entries, (%d, %d) is needed", len(run.Visible), run.Batch, run.Queries)
	}
	if run.State != nil {
		used := map[int32]bool{}
		for row := 0; row < run.Batch; row++ {
			slot := int32(row)
			if run.Slots != nil {
				slot = run.Slots[row]
			}
			if slot < 0 || int(slot) >= run.State.rows {
				return invalid("slot %d of a state with %d rows", slot, run.State.rows)
			}
			if used[slot] && run.Keys > 0 {
				return invalid("slot %d is used twice: rows that append keys share none", slot)
			}
			used[slot] = true
		}
	}
	if request.Flags&TrainFlag != 0 {
		info, err := b.Plan(request)
		if err != nil {
			return err
		}
		if info.SavedBytes > 0 && (run.Saved == nil || uint64(len(run.Saved.bytes.Bytes())) < info.SavedBytes) {
			return invalid("the plan saves %d bytes, and Saved has no room for them", info.SavedBytes)
		}
	}
	return nil
}

// An array of them in C's memory, to be freed; nil: absent.
func cTensors(tensors []*Tensor) (*C.attn_tensor, error) {
	array := (*C.attn_tensor)(C.calloc(C.size_t(len(tensors)), C.sizeof_attn_tensor))
	to := unsafe.Slice(array, len(tensors))
	for i, t := range tensors {
		if t == nil {
			continue
		}
		if t.raw.data == nil {
			C.free(unsafe.Pointer(array))
			return nil, invalid("the tensor of port %d is closed", i)
		}
		to[i] = t.raw
	}
	return array, nil
}
