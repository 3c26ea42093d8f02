package attnkit

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// Kinds of models.
const (
	Encoder        = C.ATTNKIT_ENCODER
	Decoder        = C.ATTNKIT_DECODER
	EncoderDecoder = C.ATTNKIT_ENCODER_DECODER
)

// Sides of a model.
const (
	SourceSide = 0
	TargetSide = 1
)

// Roles of blocks.
const (
	EncoderSelf  = C.ATTN_ENCODER_SELF
	DecoderSelf  = C.ATTN_DECODER_SELF
	DecoderCross = C.ATTN_DECODER_CROSS
)

// ModelInfo is the sizes of a model; see attnkit_model_info.
type ModelInfo struct {
	Kind                     int
	SourceVocab, TargetVocab int // 0 where the model has no such side
	Outputs, MaxLength       int
	BeginID, EndID           int32 // what begins a target (of an encoder alone its [CLS] or <s>), what ends source and target; -1: none
	Beams                    int
	Parameters, StateBytes   uint64
	// Of a model that takes speech, else 0.
	SampleRate, FrameLength, FrameShift, Features, Subsampling int
}

// Model is a manifest with its weights and plugins, ready to run; it never changes.
type Model struct {
	handle[C.attnkit_model]
	info     ModelInfo
	facts    facts
	warnings []Diagnostic
}

// The model's description, beside its sizes.
type facts struct {
	Head      struct{ Type string }
	MaxTarget int `json:"max_target"`
	Decode    struct {
		RepetitionPenalty float64 `json:"repetition_penalty"`
		NoRepeat          int     `json:"no_repeat"`
	}
	Speech struct{ Frontend struct{ Type string } }
}

// Encoded is a batch of sources after the encoder, for any model with the same one.
type Encoded struct {
	handle[C.attnkit_encoded]
}

// Open reads a manifest and all it names.  An Error carries every diagnostic.
func Open(r *Runtime, path string) (*Model, error) {
	name, err := cText(path, "the path")
	if err != nil {
		return nil, err
	}
	defer free(name)
	return load(r, func(p *C.attnkit_runtime, context C.uintptr_t, to **C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.attnkit_model_open(p, name, C.attnkit_diagnose(C.goDiagnose), context, to, err)
	})
}

// FromText makes a model of a manifest's text, whose paths are relative to folder.
func FromText(r *Runtime, toml, folder string) (*Model, error) {
	text, err := cText(toml, "the manifest")
	if err != nil {
		return nil, err
	}
	defer free(text)
	dir, err := cText(folder, "the folder")
	if err != nil {
		return nil, err
	}
	defer free(dir)
	return load(r, func(p *C.attnkit_runtime, context C.uintptr_t, to **C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.attnkit_model_create(p, text, dir, C.attnkit_diagnose(C.goDiagnose), context, to, err)
	})
}

// Check returns every problem of a manifest and of its weights, without making a model; none: it opens.
func Check(r *Runtime, toml, folder string) ([]Diagnostic, error) {
	text, err := cText(toml, "the manifest")
	if err != nil {
		return nil, err
	}
	defer free(text)
	dir, err := cText(folder, "the folder")
	if err != nil {
		return nil, err
	}
	defer free(dir)
	if err := given(r == nil, "Runtime"); err != nil {
		return nil, err
	}
	var found []Diagnostic
	list := cgo.NewHandle(&found)
	defer list.Delete()
	err = r.use(func(p *C.attnkit_runtime, err *C.attn_error) C.int32_t {
		return C.attnkit_model_create(p, text, dir, C.attnkit_diagnose(C.goDiagnose), C.uintptr_t(list), nil, err)
	})
	if err != nil && !errors.Is(err, Invalid) {
		return nil, err
	}
	return found, nil
}

func load(r *Runtime, f func(*C.attnkit_runtime, C.uintptr_t, **C.attnkit_model, *C.attn_error) C.int32_t) (*Model, error) {
	if err := given(r == nil, "Runtime"); err != nil {
		return nil, err
	}
	var made *C.attnkit_model
	m := &Model{}
	list := cgo.NewHandle(&m.warnings)
	defer list.Delete()
	err := r.use(func(p *C.attnkit_runtime, err *C.attn_error) C.int32_t { return f(p, C.uintptr_t(list), &made, err) })
	if err != nil {
		var failed *Error
		if errors.As(err, &failed) {
			failed.Diagnostics = m.warnings
		}
		return nil, err
	}
	m.set(made, func(p *C.attnkit_model) { C.attnkit_model_destroy(p) })
	var i C.attnkit_model_info
	i.struct_size = C.sizeof_attnkit_model_info
	err = m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t { return C.attnkit_model_get_info(p, &i, err) })
	m.info = ModelInfo{int(i.kind), int(i.source_vocab), int(i.target_vocab), int(i.outputs), int(i.max_length), int32(i.begin_id),
		int32(i.end_id), int(i.beams), uint64(i.parameters), uint64(i.state_bytes), int(i.sample_rate), int(i.frame_length),
		int(i.frame_shift), int(i.features), int(i.subsampling)}
	if err != nil {
		return nil, err
	}
	text, err := m.Describe()
	if err == nil {
		err = json.Unmarshal([]byte(text), &m.facts)
	}
	return m, err
}

// Info returns the sizes of the model.
func (m *Model) Info() ModelInfo { return m.info }

// Warnings returns what was found in the manifest but is no error.
func (m *Model) Warnings() []Diagnostic { return m.warnings }

func (m *Model) text(f func(p *C.attnkit_model, to **C.attnkit_text, err *C.attn_error) C.int32_t) (string, error) {
	var text *C.attnkit_text
	err := m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t { return f(p, &text, err) })
	if err != nil {
		return "", err
	}
	return document(text), nil
}

// Describe returns JSON "attnkit.model-description/1", with costs at the given lengths.
func (m *Model) Describe(lengths ...int64) (string, error) {
	return m.text(func(p *C.attnkit_model, to **C.attnkit_text, err *C.attn_error) C.int32_t {
		return C.attnkit_model_describe(p, (*C.int64_t)(first(lengths)), C.uint32_t(len(lengths)), to, err)
	})
}

// Verify returns JSON "attnkit.verification/1": how far every layer is from a file of golden activations.
func (m *Model) Verify(golden string) (string, error) {
	path, err := cText(golden, "the path")
	if err != nil {
		return "", err
	}
	defer free(path)
	return m.text(func(p *C.attnkit_model, to **C.attnkit_text, err *C.attn_error) C.int32_t {
		return C.attnkit_model_verify(p, path, to, err)
	})
}

// Weights returns all tensors, as read or as made from the seed: the bytes of a safetensors file.
func (m *Model) Weights() ([]byte, error) {
	var blob *C.attnkit_blob
	err := m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t { return C.attnkit_model_weights(p, &blob, err) })
	if err != nil {
		return nil, err
	}
	return bytesOf(blob), nil
}

// Forward computes whole sequences (teacher forcing) into out: (rows, target length, Outputs), or (rows, Outputs) of a
// classifier or an embedding.  nil: a side that the model lacks.
func (m *Model) Forward(source, target *Batch, out []float32) error {
	counted := target
	if m.info.Kind == Encoder {
		counted = source
	}
	to, err := m.logits(counted, out)
	if err != nil {
		return err
	}
	s, from := source.tensor()
	t, aim := target.tensor()
	return m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.shim_forward(p, s, from, source.lens(), t, aim, target.lens(), (*C.float)(first(out)), to, err)
	})
}

// Encode computes the encoder's part of Forward alone, once for several calls of Decode.
func (m *Model) Encode(source *Batch) (*Encoded, error) {
	var made *C.attnkit_encoded
	s, from := source.tensor()
	err := m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.shim_encode(p, s, from, source.lens(), &made, err)
	})
	if err != nil {
		return nil, err
	}
	e := &Encoded{}
	e.set(made, func(p *C.attnkit_encoded) { C.attnkit_encoded_destroy(p) })
	return e, nil
}

// Decode computes the rest of Forward, for the sources of encoded.
func (m *Model) Decode(encoded *Encoded, target *Batch, out []float32) error {
	if err := given(encoded == nil, "Encoded"); err != nil {
		return err
	}
	to, err := m.logits(target, out)
	if err != nil {
		return err
	}
	t, aim := target.tensor()
	return m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		var code C.int32_t
		used := encoded.use(func(e *C.attnkit_encoded, err *C.attn_error) C.int32_t {
			code = C.shim_decode(p, e, t, aim, target.lens(), (*C.float)(first(out)), to, err)
			return code
		})
		return passOn(used, err)
	})
}

// Passes the error of an inner call to an outer one.
func passOn(inner error, err *C.attn_error) C.int32_t {
	var failed *Error
	if !errors.As(inner, &failed) {
		return C.ATTN_OK
	}
	err.where = C.int32_t(failed.Where)
	room := unsafe.Slice((*byte)(unsafe.Pointer(&err.message[0])), len(err.message))
	room[copy(room[:len(room)-1], failed.Message)] = 0
	return C.int32_t(failed.Code)
}

func (m *Model) logits(rows *Batch, out []float32) (C.shim_shape, error) {
	if rows == nil || rows.rows == 0 {
		return C.shim_shape{}, nil // the library refuses the side that is not there
	}
	dimensions := []int{rows.rows, rows.length, m.info.Outputs}
	if m.facts.Head.Type != "lm" { // one row for each input
		dimensions = []int{rows.rows, m.info.Outputs}
	}
	needed := 1
	for _, d := range dimensions {
		needed *= d
	}
	if len(out) != needed {
		return C.shim_shape{}, invalid("out has room for %d numbers, %v needs %d", len(out), dimensions, needed)
	}
	return shape(2, 32, dimensions...), nil
}

// Attention computes the attention weights of one block for one input into out, (heads, queries, keys) with the rows that
// the block has for this input; layers count from 1.  nil: a side that the model lacks.
func (m *Model) Attention(role, layer int, source, target *Source, out []float32) error {
	if err := upTo(math.MaxInt32, named{"role", role}, named{"layer", layer}); err != nil {
		return err
	}
	s, from, err := source.tensor()
	if err != nil {
		return err
	}
	t, aim, err := target.tensor()
	if err != nil {
		return err
	}
	keys, err := m.rows(source, from)
	if err != nil {
		return err
	}
	queries := keys
	if role != EncoderSelf {
		queries = int(aim.shape[1])
	}
	if role == DecoderSelf {
		keys = queries
	}
	heads := 0
	if queries*keys > 0 { // else the library refuses the side that is not there
		heads = len(out) / (queries * keys)
		if heads*queries*keys != len(out) {
			return invalid("out has room for %d numbers, whole heads of (%d, %d) are needed", len(out), queries, keys)
		}
	}
	return m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.shim_attention(p, C.uint32_t(role), C.uint32_t(layer), s, from, t, aim, (*C.float)(first(out)),
			shape(2, 32, heads, queries, keys), err)
	})
}

// Rows of the encoder for a source of this shape.
func (m *Model) rows(source *Source, shape C.shim_shape) (int, error) {
	n := int(shape.shape[1])
	if shape.ndim == 0 || !source.speech || m.info.Subsampling == 0 {
		return n, nil
	}
	if shape.ndim == 2 {
		var err error
		if n, err = m.frames(source.numbers); err != nil {
			return 0, err
		}
	}
	if m.facts.Speech.Frontend.Type == "centred" { // the last row may have fewer frames
		n += m.info.Subsampling - 1
	}
	return n / m.info.Subsampling, nil
}

// The number of frames that Features makes.
func (m *Model) frames(samples []float32) (int, error) {
	var n C.uint64_t
	err := m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.shim_features(p, (*C.float)(first(samples)), shape(2, 32, 1, len(samples)), nil, C.shim_shape{}, &n, err)
	})
	return int(n), err
}

// Tokenize returns the ids of a text, of SourceSide with what the vocabulary puts before it ([CLS], a language), of
// TargetSide without BeginID; without the token that ends it.
func (m *Model) Tokenize(side int, text string) ([]int32, error) {
	if err := upTo(TargetSide, named{"side", side}); err != nil {
		return nil, err
	}
	c, err := cText(text, "the text")
	if err != nil {
		return nil, err
	}
	defer free(c)
	ids := make([]int32, 2*len(text)+1) // each word may be a mark and a token for each byte; normalisation may make more
	for {
		n := C.uint64_t(len(ids))
		err = m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
			return C.attnkit_model_tokenize(p, C.uint32_t(side), c, (*C.int32_t)(&ids[0]), &n, err)
		})
		if err == nil {
			return ids[:n], nil
		}
		if int(n) <= len(ids) {
			return nil, err
		}
		ids = make([]int32, n)
	}
}

// Detokenize returns the text of ids; special tokens are left out.
func (m *Model) Detokenize(side int, ids []int32) (string, error) {
	if err := upTo(TargetSide, named{"side", side}); err != nil {
		return "", err
	}
	return m.text(func(p *C.attnkit_model, to **C.attnkit_text, err *C.attn_error) C.int32_t {
		return C.attnkit_model_detokenize(p, C.uint32_t(side), (*C.int32_t)(first(ids)), C.uint64_t(len(ids)), to, err)
	})
}

// Features returns the frames that a model which takes speech makes of samples, side by side.
func (m *Model) Features(samples []float32) ([]float32, error) {
	n, err := m.frames(samples)
	frames := make([]float32, n*m.info.Features)
	if err != nil || n == 0 {
		return frames, err
	}
	count := C.uint64_t(n)
	return frames, m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t {
		return C.shim_features(p, (*C.float)(first(samples)), shape(2, 32, 1, len(samples)), (*C.float)(first(frames)),
			shape(2, 32, 1, n, m.info.Features), &count, err)
	})
}

// Translate is greedy or, with more than one beam, beam search; beams and limit 0: as in the manifest.  A decoder alone
// continues the text.
func (m *Model) Translate(ctx context.Context, text string, beams, limit int) (string, error) {
	session, err := NewSession(m, beams)
	if err != nil {
		return "", err
	}
	defer session.Close()
	source, err := m.begin(session, text)
	if err == nil && source != nil {
		err = session.Read(IDs(source...), true)
	}
	if err != nil {
		return "", err
	}
	made, err := session.Generate(ctx, limit)
	if err != nil {
		return "", err
	}
	return m.Detokenize(TargetSide, made)
}

// begin returns the source that a session is to read; where a decoder continues the text it writes that, and returns nil.
func (m *Model) begin(session *Session, text string) ([]int32, error) {
	if m.info.Kind == EncoderDecoder {
		ids, err := m.Tokenize(SourceSide, text)
		return append(ids, m.info.EndID), err
	}
	ids, err := m.Tokenize(TargetSide, text)
	if err != nil {
		return nil, err
	}
	if m.info.BeginID >= 0 {
		ids = append([]int32{m.info.BeginID}, ids...)
	}
	rows := make([][]int32, session.Rows())
	for i := range rows {
		rows[i] = ids
	}
	return nil, session.Write(BatchOf(rows...), nil)
}

// TranslateAll gives what Translate does for each of many texts, up to batch of them decoded together; an error says of
// which text.  It looks at ctx after every step.
func (m *Model) TranslateAll(ctx context.Context, texts []string, beams, limit, batch int) ([]string, error) {
	if batch < 1 {
		return nil, invalid("batch %d: it must be 1 or more", batch)
	}
	if limit < 0 {
		return nil, invalid("limit %d: it must be 1 or more, or 0 for the default", limit)
	}
	made := make([]string, len(texts))
	var going []*Session
	var numbers []int // of their texts
	defer func() {
		for _, session := range going {
			session.Close()
		}
	}()
	for next := 0; next < len(texts) || len(going) > 0; {
		before := len(going)
		var sources [][]int32
		for ; next < len(texts) && len(going) < batch; next++ {
			session, err := NewSession(m, beams)
			if err != nil {
				return nil, err
			}
			going, numbers = append(going, session), append(numbers, next)
			source, err := m.begin(session, texts[next])
			if err != nil {
				return nil, ofText(err, numbers[len(numbers)-1:], len(texts))
			}
			if source != nil {
				sources = append(sources, source)
			}
		}
		if len(sources) > 0 {
			if err := ReadAll(going[before:], BatchOf(sources...), nil); err != nil {
				return nil, ofText(err, numbers[before:], len(texts))
			}
		}
		ended, err := GenerateAll(ctx, going, limit)
		if err != nil {
			return nil, ofText(err, numbers, len(texts))
		}
		left := 0
		for i, ids := range ended {
			if ids == nil {
				going[left], numbers[left] = going[i], numbers[i]
				left++
				continue
			}
			going[i].Close()
			if made[numbers[i]], err = m.Detokenize(TargetSide, ids); err != nil {
				return nil, err
			}
		}
		going, numbers = going[:left], numbers[:left]
	}
	return made, nil
}

// ofText says of which of `count` texts an error is; numbers: those of the call.
func ofText(err error, numbers []int, count int) error {
	var failed *Error
	if !errors.As(err, &failed) || count == 1 {
		return err
	}
	at := failed.Where
	if len(numbers) == 1 {
		at = 0
	}
	if at < 0 {
		return err
	}
	message := strings.TrimPrefix(failed.Message, fmt.Sprintf("session %d: ", at))
	return &Error{Code: failed.Code, Message: fmt.Sprintf("text %d: %s", numbers[at], message), Where: -1}
}
