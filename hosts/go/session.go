package attnkit

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/json"
	"runtime"
	"runtime/cgo"
)

// Action is the answer of a policy.
type Action uint32

// The actions.
const (
	Read  Action = C.ATTNKIT_READ  // take the next unit of the source; once it has ended, the same as Write
	Write Action = C.ATTNKIT_WRITE // write the next token of the target
	Stop  Action = C.ATTNKIT_STOP
)

// View is the progress before a decision: units of the source read, tokens written, whether the source has ended.
type View struct {
	Read, Written int
	Ended         bool
}

// Event is one action that was taken, itself included in the numbers.
type Event struct {
	Action        Action
	Read, Written int
	ID            int32 // the token written, or -1
	Ended         bool
	Seconds       float64 // wall clock since the call began
}

// Policy decides between reading and writing.
type Policy func(View) Action

// WaitK writes token i once k + i - 1 units were read, or all.
func WaitK(k int) Policy {
	return func(v View) Action {
		if v.Ended || v.Read >= k+v.Written {
			return Write
		}
		return Read
	}
}

// Session is one input being decoded; its rows are its beams.  One call at a time.
type Session struct {
	handle[C.attnkit_session]
	rows  int
	info  ModelInfo
	facts facts
}

func newSession(m *Model, rows int, f func(p *C.attnkit_model, to **C.attnkit_session, err *C.attn_error) C.int32_t) (*Session, error) {
	if err := given(m == nil, "Model"); err != nil {
		return nil, err
	}
	var made *C.attnkit_session
	err := m.use(func(p *C.attnkit_model, err *C.attn_error) C.int32_t { return f(p, &made, err) })
	if err != nil {
		return nil, err
	}
	if rows == 0 {
		rows = m.info.Beams
	}
	return ownSession(made, rows, m.info, m.facts), nil
}

func ownSession(made *C.attnkit_session, rows int, info ModelInfo, facts facts) *Session {
	s := &Session{rows: rows, info: info, facts: facts}
	s.set(made, func(p *C.attnkit_session) { C.attnkit_session_destroy(p) })
	return s
}

// NewSession makes an empty session of so many beams; 0: as [decode] in the manifest says.
func NewSession(m *Model, rows int) (*Session, error) {
	if err := upTo(1024, named{"rows", rows}); err != nil {
		return nil, err
	}
	return newSession(m, rows, func(p *C.attnkit_model, to **C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_create(p, C.uint32_t(rows), to, err)
	})
}

// LoadSession makes the session whose bytes Save gave.  They must come from someone you trust.
func LoadSession(m *Model, bytes []byte) (*Session, error) {
	s, err := newSession(m, 0, func(p *C.attnkit_model, to **C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_load(p, cBytes(bytes), C.uint64_t(len(bytes)), to, err)
	})
	if err != nil {
		return nil, err
	}
	described, err := s.state()
	s.rows = described.Rows
	return s, err
}

// Fork makes an independent copy, which continues bitwise like this session.
func (s *Session) Fork() (*Session, error) {
	var made *C.attnkit_session
	err := s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t { return C.attnkit_session_clone(p, &made, err) })
	if err != nil {
		return nil, err
	}
	return ownSession(made, s.rows, s.info, s.facts), nil
}

// Rows returns the number of beams.
func (s *Session) Rows() int { return s.rows }

// Reorder makes row i what row parents[i] was.
func (s *Session) Reorder(parents []uint32) error {
	if len(parents) != s.rows {
		return invalid("%d parents for %d rows", len(parents), s.rows)
	}
	return s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_reorder(p, (*C.uint32_t)(first(parents)), err)
	})
}

// Read takes in the source, or more of it; last: it is complete.
func (s *Session) Read(source Source, last bool) error {
	data, from, err := source.tensor()
	if err != nil {
		return err
	}
	complete := C.uint32_t(0)
	if last {
		complete = 1
	}
	return s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.shim_read(p, data, from, complete, err)
	})
}

// SetLength sets the whole length of the target, </s> included, for mechanisms that need it.
func (s *Session) SetLength(length float64) error {
	return s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_set_length(p, C.double(length), err)
	})
}

// Write appends a sequence of tokens to each row; logits: (rows, longest sequence, Outputs), or nil.
func (s *Session) Write(tokens *Batch, logits []float32) error {
	return WriteAll([]*Session{s}, tokens, logits)
}

// Step appends one token to a session of one row; logits: (Outputs), or nil.
func (s *Session) Step(token int32, logits []float32) error {
	if logits != nil && len(logits) != s.info.Outputs {
		return invalid("logits has room for %d numbers, %d are needed", len(logits), s.info.Outputs)
	}
	s.lock.RLock()
	defer s.lock.RUnlock()
	if s.pointer == nil {
		return invalid("this %s is closed", s.kind())
	}
	failed := C.shim_step(s.pointer, C.int32_t(token), (*C.float)(first(logits)), C.int64_t(s.info.Outputs))
	runtime.KeepAlive(s)
	if failed == nil {
		return nil
	}
	defer C.shim_free(failed)
	return failure(failed.code, failed)
}

// WriteAll appends to different sessions of one model in one call, a sequence for each of their rows.
func WriteAll(sessions []*Session, tokens *Batch, logits []float32) error {
	if len(sessions) == 0 {
		return invalid("no sessions: give at least one")
	}
	to := C.shim_shape{}
	if logits != nil {
		outputs := sessions[0].info.Outputs
		if len(logits) != tokens.rows*tokens.length*outputs {
			return invalid("logits has room for %d numbers, (%d, %d, %d) is needed", len(logits), tokens.rows, tokens.length, outputs)
		}
		to = shape(2, 32, tokens.rows, tokens.length, outputs)
	}
	data, from := tokens.tensor()
	return useAll(sessions, func(all **C.attnkit_session, n C.uint32_t, err *C.attn_error) C.int32_t {
		return C.shim_write(all, n, (*C.int32_t)(data), from, tokens.lens(), (*C.float)(first(logits)), to, err)
	})
}

// ReadAll takes in a sequence of sources for each of different sessions of one model, or more of it, and encodes them
// together; last: for each whether its source is complete, or nil: all are.
func ReadAll(sessions []*Session, sources *Batch, last []bool) error {
	if sources.rows != len(sessions) || (last != nil && len(last) != len(sessions)) {
		return invalid("%d sources and %d of last for %d sessions", sources.rows, len(last), len(sessions))
	}
	if len(sessions) == 0 {
		return invalid("no sessions: give at least one")
	}
	complete := make([]C.uint32_t, len(sessions))
	for i := range complete {
		if last == nil || last[i] {
			complete[i] = 1
		}
	}
	data, from := sources.tensor()
	return useAll(sessions, func(all **C.attnkit_session, n C.uint32_t, err *C.attn_error) C.int32_t {
		return C.shim_read_all(all, n, (*C.int32_t)(data), from, sources.lens(), &complete[0], err)
	})
}

// GenerateAll continues different sessions of one model together, each as Generate does, until one of them has ended: the
// ids of those that have ended, nil for the others.  Those go on where they are when they are given again, beside any
// others, under the limit of their first call.  It looks at ctx after every step.
func GenerateAll(ctx context.Context, sessions []*Session, limit int) ([][]int32, error) {
	if err := given(ctx == nil, "context"); err != nil {
		return nil, err
	}
	if len(sessions) == 0 {
		return nil, invalid("no sessions: give at least one")
	}
	width := sessions[0].info.MaxLength
	if limit < 0 {
		return nil, invalid("limit %d: it must be 1 or more, or 0 for the default", limit)
	}
	if limit > width {
		limit = width
	}
	var steps C.uint32_t
	if ctx.Done() != nil {
		steps = 1
	}
	ids, lengths := make([]int32, len(sessions)*width), make([]uint64, len(sessions))
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		err := useAll(sessions, func(all **C.attnkit_session, n C.uint32_t, err *C.attn_error) C.int32_t {
			return C.attnkit_sessions_generate(all, n, C.uint32_t(limit), steps, (*C.int32_t)(&ids[0]), C.uint64_t(width),
				(*C.uint64_t)(&lengths[0]), err)
		})
		if err != nil {
			return nil, err
		}
		made, ended := make([][]int32, len(sessions)), false
		for i, n := range lengths {
			if n > 0 {
				made[i], ended = append([]int32(nil), ids[i*width:i*width+int(n)]...), true
			}
		}
		if ended {
			return made, nil
		}
	}
}

// useAll calls f with different sessions, none of which is closed meanwhile.
func useAll(sessions []*Session, f func(**C.attnkit_session, C.uint32_t, *C.attn_error) C.int32_t) error {
	handles := make([]*C.attnkit_session, len(sessions))
	seen := make(map[*Session]bool, len(sessions))
	for i, s := range sessions {
		if seen[s] {
			return invalid("session %d is there twice", i)
		}
		seen[s] = true
		s.lock.RLock()
		defer s.lock.RUnlock()
		if handles[i] = s.pointer; s.pointer == nil {
			return invalid("session %d is closed", i)
		}
	}
	err := call(func(err *C.attn_error) C.int32_t {
		return f(&handles[0], C.uint32_t(len(handles)), err)
	})
	runtime.KeepAlive(sessions)
	return err
}

// Generate goes on until </s> or the limit, 0: as [decode] says, else 1.5 times the source and 20, of a decoder alone what
// MaxLength leaves; greedy with one row, beam search with more.  It looks at ctx after every token; a greedy session then
// returns what it has.
func (s *Session) Generate(ctx context.Context, limit int) ([]int32, error) {
	if err := given(ctx == nil, "context"); err != nil {
		return nil, err
	}
	if s.rows == 1 && ctx.Done() != nil {
		return s.Sample(ctx, nil, Sampling{Limit: limit}, nil)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if limit < 0 {
		return nil, invalid("limit %d: it must be 1 or more, or 0 for the default", limit)
	}
	if limit > s.info.MaxLength {
		limit = s.info.MaxLength
	}
	if ctx.Done() == nil {
		return s.generate(limit)
	}
	same := make([]uint32, s.rows)
	for i := range same {
		same[i] = uint32(i)
	}
	if err := s.Reorder(same); err != nil { // a search that another call began is not this one
		return nil, err
	}
	made, err := GenerateAll(ctx, []*Session{s}, limit)
	if err != nil {
		return nil, err
	}
	return made[0], nil
}

func (s *Session) generate(limit int) ([]int32, error) {
	room := limit
	if room == 0 {
		room = s.info.MaxLength
	}
	ids := make([]int32, room)
	var n C.uint64_t
	err := s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_generate(p, C.uint32_t(limit), (*C.int32_t)(first(ids)), &n, err)
	})
	return ids[:n], err
}

// Sampling says how tokens are drawn; see attnkit_sample_options.  A zero field means its default.
type Sampling struct {
	Limit             int     // most tokens
	RepetitionPenalty float64 // scores of tokens that were there are divided by it, or times it where they are below 0
	Temperature       float64 // 0: always the best token
	TopK              uint64
	TopP              float64
	Seed, Stream      uint64  // texts of one seed that differ in Stream are unrelated
	Seen              []int32 // tokens beside the prompt and those drawn that count as there
	// The token that completes one of them in the text of what is drawn is the last; the output is the text before it.
	Stops []string
}

type drawing struct {
	ctx      context.Context
	each     func(int32) bool
	err      error // that of ctx, where it ended the call
	panicked any
}

// Sample draws tokens behind a prompt; each, when not nil, sees every token before the next is computed and says whether to go
// on.  When ctx is done it returns what was drawn so far with ctx's error.
func (s *Session) Sample(ctx context.Context, prompt []int32, sampling Sampling, each func(int32) bool) ([]int32, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	limit := sampling.Limit
	if limit > s.info.MaxLength {
		limit = s.info.MaxLength
	}
	if limit < 0 {
		return nil, invalid("limit %d: it must be 1 or more, or 0 for the default", limit)
	}
	options := C.attnkit_sample_options{limit: C.uint32_t(limit), repetition_penalty: C.double(sampling.RepetitionPenalty),
		temperature: C.double(sampling.Temperature), top_k: C.uint64_t(sampling.TopK), top_p: C.double(sampling.TopP),
		seed: C.uint64_t(sampling.Seed), stream: C.uint64_t(sampling.Stream), n_seen: C.uint64_t(len(sampling.Seen)),
		n_stops: C.uint64_t(len(sampling.Stops))}
	stops := make([]*C.char, 0, len(sampling.Stops))
	for _, stop := range sampling.Stops {
		text, err := cText(stop, "a stop")
		if err != nil {
			return nil, err
		}
		defer free(text)
		stops = append(stops, text)
	}
	both := &drawing{ctx: ctx, each: each}
	context := cgo.NewHandle(both)
	defer context.Delete()
	ids := make([]int32, s.info.MaxLength)
	var n C.uint64_t
	err := s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.shim_sample(p, (*C.int32_t)(first(prompt)), C.uint64_t(len(prompt)), &options, (*C.int32_t)(first(sampling.Seen)),
			first(stops), C.uintptr_t(context), (*C.int32_t)(&ids[0]), &n, err)
	})
	if both.panicked != nil {
		panic(both.panicked)
	}
	if err == nil {
		err = both.err
	}
	return ids[:n], err
}

// Save returns the whole session as bytes, from which any process with the same model can continue.
func (s *Session) Save() ([]byte, error) {
	var blob *C.attnkit_blob
	err := s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t { return C.attnkit_session_save(p, &blob, err) })
	if err != nil {
		return nil, err
	}
	return bytesOf(blob), nil
}

// Describe returns JSON "attnkit.session/1": rows, lengths, state bytes per block, what ran anew.
func (s *Session) Describe() (string, error) {
	var text *C.attnkit_text
	err := s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.attnkit_session_describe(p, &text, err)
	})
	if err != nil {
		return "", err
	}
	return document(text), nil
}

type described struct {
	Rows         int
	SourceLength int `json:"source_length"`
}

func (s *Session) state() (described, error) {
	var d described
	text, err := s.Describe()
	if err == nil {
		err = json.Unmarshal([]byte(text), &d)
	}
	return d, err
}

// Carries policy and observer through C, and their panics around it.
type simulation struct {
	ctx      context.Context
	policy   Policy
	observe  func(Event)
	err      error // that of ctx, where it ended the call
	panicked any
}

func (s *simulation) recovered(stop func()) {
	if p := recover(); p != nil {
		s.panicked = p
		stop()
	}
}

// Simulate decodes a known source as if it arrived unit by unit, in an empty session of one row: policy answers before every
// action, observe, when not nil, sees each.  ends: where each unit ends in the source, nil: each id is one.  When ctx is done
// it returns what was written so far with ctx's error.  A panic of the functions goes on after the call.
func (s *Session) Simulate(ctx context.Context, source Source, ends []int64, limit int, policy Policy, observe func(Event)) ([]int32, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	if err := given(policy == nil, "policy"); err != nil {
		return nil, err
	}
	data, from, err := source.tensor()
	if err != nil {
		return nil, err
	}
	if limit > s.info.MaxLength {
		limit = s.info.MaxLength
	}
	if limit < 0 {
		return nil, invalid("limit %d: it must be 1 or more, or 0 for the default", limit)
	}
	both := &simulation{ctx: ctx, policy: policy, observe: observe}
	context := cgo.NewHandle(both)
	defer context.Delete()
	ids := make([]int32, s.info.MaxLength)
	var n C.uint64_t
	err = s.use(func(p *C.attnkit_session, err *C.attn_error) C.int32_t {
		return C.shim_simulate(p, data, from, C.uint32_t(limit), C.uintptr_t(context), (*C.int64_t)(first(ends)), C.uint64_t(len(ends)),
			(*C.int32_t)(&ids[0]), &n, err)
	})
	if both.panicked != nil {
		panic(both.panicked)
	}
	if err == nil {
		err = both.err
	}
	return ids[:n], err
}
