package attnkit

// #include "shim.h"
import "C"

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"unsafe"
)

func cBytes(bytes []byte) unsafe.Pointer { return unsafe.Pointer(first(bytes)) }

// Arriving is a source that arrives unit by unit.
type Arriving interface {
	// Next returns the next unit, and whether it is the last; io.EOF: there are no more.
	Next(ctx context.Context) (unit Source, last bool, err error)
}

// Units is a source of ids whose units are known; </s> belongs to the last.
func Units(units ...[]int32) Arriving { return &units32{units} }

type units32 struct{ left [][]int32 }

func (u *units32) Next(context.Context) (Source, bool, error) {
	if len(u.left) == 0 {
		return Source{}, true, io.EOF
	}
	unit := u.left[0]
	u.left = u.left[1:]
	return IDs(unit...), len(u.left) == 0, nil
}

// Speech is a source of samples, little-endian float32 within [-1, 1] at the model's sample rate; a unit is what completes the
// next row of the encoder.
func (m *Model) Speech(r io.Reader) Arriving {
	i := m.info
	return &speech{r: bufio.NewReader(r), next: i.FrameLength + (i.Subsampling-1)*i.FrameShift, each: i.Subsampling * i.FrameShift}
}

// PCM16 turns little-endian 16-bit samples, as of WAV files, into those that Speech takes.
func PCM16(r io.Reader) io.Reader { return &pcm16{r: bufio.NewReader(r)} }

type pcm16 struct {
	r      *bufio.Reader
	sample partial
	left   []byte
}

// The bytes of a sample that were read before the reader failed.
type partial struct {
	bytes [4]byte
	n     int
}

// Returns the next `size` bytes; after the reader's error it may be called again.
func (p *partial) read(r io.Reader, size int) ([]byte, error) {
	n, err := io.ReadFull(r, p.bytes[p.n:size])
	if p.n += n; err == io.EOF && p.n > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	p.n = 0
	return p.bytes[:size], nil
}

func (p *pcm16) Read(to []byte) (int, error) {
	if len(p.left) == 0 {
		sample, err := p.sample.read(p.r, 2)
		if err != nil {
			return 0, err
		}
		value := float32(int16(binary.LittleEndian.Uint16(sample))) / 32768
		p.left = binary.LittleEndian.AppendUint32(nil, math.Float32bits(value))
	}
	n := copy(to, p.left)
	p.left = p.left[n:]
	return n, nil
}

type speech struct {
	r          *bufio.Reader
	next, each int       // samples of the next unit, and of those that follow
	taken      []float32 // those of the next unit that were read before a context ended
	sample     partial
}

func (s *speech) Next(ctx context.Context) (Source, bool, error) {
	if s.next == 0 {
		return Source{}, false, invalid("this model takes text: Units is for it")
	}
	for len(s.taken) < s.next {
		if err := ctx.Err(); err != nil {
			return Source{}, false, err
		}
		bytes, err := s.sample.read(s.r, 4)
		if errors.Is(err, io.EOF) {
			rest := s.taken
			s.taken = nil
			return Samples(rest), true, nil
		}
		if err != nil {
			return Source{}, false, err
		}
		s.taken = append(s.taken, math.Float32frombits(binary.LittleEndian.Uint32(bytes)))
	}
	unit := s.taken
	s.next, s.taken = s.each, make([]float32, 0, s.each)
	return Samples(unit), false, nil
}

// Stream is greedy decoding of a source that arrives; see Session.Stream.
type Stream struct {
	session  *Session
	source   Arriving
	policy   Policy
	view     View
	waiting  Source
	complete bool
	tokens   []int32 // <s> and what was written
	most     int     // tokens that the source so far allows, and 20 at least
	done     error
	logits   []float32
}

// Stream decodes a source while it arrives: Next takes units of it whenever policy answers Read.  For an empty session of one
// row, which the stream then uses.
func (s *Session) Stream(source Arriving, policy Policy) *Stream {
	return &Stream{session: s, source: source, policy: policy, tokens: []int32{s.info.BeginID}, most: 20,
		done: given(policy == nil, "policy"), logits: make([]float32, s.info.Outputs)}
}

// Next returns the next token; io.EOF behind </s>, at the limit of 1.5 times the source and 20, and at Stop.  Where there are
// as many tokens as the source so far allows, it is read on whatever the policy says.  After ctx's error it may be called again.
func (t *Stream) Next(ctx context.Context) (int32, error) {
	for t.done == nil {
		if err := contextError(ctx); err != nil {
			return -1, err
		}
		full, err := t.full()
		if err != nil {
			t.done = err
			return -1, err
		}
		action := Read
		if !full {
			action = t.policy(t.view)
		}
		switch {
		case full && (t.view.Ended || t.view.Written >= t.session.facts.MaxTarget):
			t.done = io.EOF
		case action == Stop:
			t.done = io.EOF
		case action == Read && !t.view.Ended:
			unit, last, err := t.source.Next(ctx)
			if errors.Is(err, io.EOF) {
				last, err = true, nil
				if n := len(t.waiting.ids); n > 0 && t.waiting.ids[n-1] != t.session.info.EndID {
					t.waiting.ids = append(t.waiting.ids, t.session.info.EndID)
				}
			} else if err == nil {
				t.waiting.ids = append(t.waiting.ids, unit.ids...)
				t.waiting.numbers = append(t.waiting.numbers, unit.numbers...)
				t.waiting.speech, t.waiting.features = unit.speech, unit.features
				t.view.Read++
			}
			if err != nil {
				return -1, err
			}
			t.view.Ended = last
		case action != Read && action != Write:
			t.done = invalid("the policy answered %d: it must answer Read, Write or Stop", action)
		default:
			id, err := t.write()
			if err != nil {
				t.done = err
				return -1, err
			}
			t.tokens = append(t.tokens, id)
			t.view.Written++
			if id == t.session.info.EndID {
				t.done = io.EOF
			}
			return id, nil
		}
	}
	return -1, t.done
}

// full says whether there are as many tokens as the source so far allows.
func (t *Stream) full() (bool, error) {
	longest := t.session.facts.MaxTarget
	if t.most <= t.view.Written && t.view.Written < longest {
		if err := t.handOver(); err != nil {
			return false, err
		}
		described, err := t.session.state()
		if err != nil {
			return false, err
		}
		t.most = described.SourceLength*3/2 + 20
	}
	return t.view.Written >= t.most || t.view.Written >= longest, nil
}

// handOver gives the session what was read.
func (t *Stream) handOver() error {
	completes := t.view.Ended && !t.complete
	if completes && !t.waiting.speech && len(t.waiting.ids) == 0 {
		t.waiting.ids = append(t.waiting.ids, t.session.info.EndID) // the unit that was the last was read as if more came
	}
	if len(t.waiting.ids)+len(t.waiting.numbers) > 0 || completes {
		if err := t.session.Read(t.waiting, t.view.Ended); err != nil {
			return err
		}
		t.waiting.ids, t.waiting.numbers = nil, nil
	}
	t.complete = t.view.Ended
	return nil
}

func (t *Stream) write() (int32, error) {
	if t.view.Read == 0 {
		return -1, invalid("the policy wants to write before anything of the source was read: it must read first")
	}
	if err := t.handOver(); err != nil {
		return -1, err
	}
	if err := t.session.Step(t.tokens[len(t.tokens)-1], t.logits); err != nil {
		return -1, err
	}
	rules := t.session.facts.Decode
	return best(t.logits, t.tokens, rules.RepetitionPenalty, rules.NoRepeat)
}

// The id with the highest of the scores of one position, the first of equals, by [decode] of the manifest, whose
// repetition_penalty and no_repeat look back at the tokens that were there.
func best(scores []float32, before []int32, penalty float64, noRepeat int) (int32, error) {
	for _, score := range scores {
		if score != score {
			return -1, &Error{Code: Internal, Message: "the model's scores are not numbers (NaN): its weights or a mechanism are broken", Where: -1}
		}
	}
	if penalty != 1 {
		seen := map[int32]bool{}
		for _, id := range before {
			if score := float64(scores[id]); !seen[id] && score < 0 {
				scores[id] = float32(score * penalty)
			} else if !seen[id] {
				scores[id] = float32(score / penalty)
			}
			seen[id] = true
		}
	}
	never := float32(math.Inf(-1))
	if repeats := repeating(before, noRepeat); len(repeats) > 0 {
		only := true // what must come may repeat
		for id, score := range scores {
			only = only && (score == never || repeats[int32(id)])
		}
		for id := range repeats {
			if !only {
				scores[id] = never
			}
		}
	}
	top := 0
	for id, score := range scores {
		if score > scores[top] {
			top = id
		}
	}
	if scores[top] == never {
		return -1, invalid("no token may follow: suppress, suppress_first and min_length of [decode] leave none")
	}
	return int32(top), nil
}

// The tokens that would repeat `n` of those before in a row.
func repeating(before []int32, n int) map[int32]bool {
	found := map[int32]bool{}
	if n == 0 || len(before) < n {
		return found
	}
	last := before[len(before)-n+1:]
	for i := range before[n-1:] {
		same := true
		for j, id := range last {
			same = same && before[i+j] == id
		}
		if same {
			found[before[i+n-1]] = true
		}
	}
	return found
}
