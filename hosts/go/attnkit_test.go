package attnkit_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"attnkit"
)

const (
	folder  = "../../samples/models/numbers-en-de"
	english = "two hundred and forty-one euros"
	german  = "zweihunderteinundvierzig Euro"
)

var background = context.Background()

// The value of a call that must succeed.
func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, code attnkit.Code, part string) {
	t.Helper()
	if !errors.Is(err, code) || !strings.Contains(err.Error(), part) {
		t.Fatalf("%v is no %v about %q", err, code, part)
	}
}

var once sync.Once
var shared *attnkit.Model

func model(t testing.TB) *attnkit.Model {
	once.Do(func() {
		r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 2}))
		shared = must[*attnkit.Model](t)(attnkit.Open(r, filepath.Join(folder, "model.toml")))
	})
	return shared
}

func streaming(t testing.TB) *attnkit.Model {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	toml := must[[]byte](t)(os.ReadFile(filepath.Join(folder, "model.toml")))
	return must[*attnkit.Model](t)(attnkit.FromText(r, string(toml)+"\n[stream]\nreplay = true\n", folder))
}

func source(t testing.TB, m *attnkit.Model, text string) []int32 {
	return append(must[[]int32](t)(m.Tokenize(attnkit.SourceSide, text)), m.Info().EndID)
}

func begun(t testing.TB, m *attnkit.Model) *attnkit.Session {
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	ok(t, s.Read(attnkit.IDs(source(t, m, english)...), true))
	return s
}

func units(ids []int32) (all [][]int32) {
	for _, id := range ids {
		all = append(all, []int32{id})
	}
	return all
}

func TestTranslate(t *testing.T) {
	m := model(t)
	for _, beams := range []int{0, 1, 3} {
		if got := must[string](t)(m.Translate(background, english, beams, 0)); got != german {
			t.Fatal(got)
		}
	}
	texts := []string{english, "half past three", "", "ten", "two euros"}
	for _, batch := range []int{1, 2, 16} {
		for i, got := range must[[]string](t)(m.TranslateAll(background, texts, 2, 0, batch)) {
			if alone := must[string](t)(m.Translate(background, texts[i], 2, 0)); got != alone {
				t.Fatal(got, alone)
			}
		}
		_, err := m.TranslateAll(background, []string{"ten", "a zebra", "two"}, 1, 0, batch)
		refused(t, err, attnkit.Invalid, "text 1: ")
		_, err = m.TranslateAll(background, []string{"ten", "two", strings.Repeat("ten ", 1000)}, 1, 0, batch)
		refused(t, err, attnkit.Invalid, "text 2: source: 1001 tokens")
	}
	_, err := m.TranslateAll(background, texts, 1, 0, 0)
	refused(t, err, attnkit.Invalid, "batch 0")
	if m.Info().Kind != attnkit.EncoderDecoder || len(m.Warnings()) != 0 {
		t.Fatal(m.Info(), m.Warnings())
	}
	if !strings.Contains(must[string](t)(m.Describe(8)), "attnkit.model-description/1") {
		t.Fatal("no description")
	}
}

func TestRuntime(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	if !strings.Contains(must[string](t)(r.List()), `"softmax"`) || !strings.Contains(must[string](t)(r.Describe()), "attnkit.runtime/1") {
		t.Fatal("no plugins")
	}
	if attnkit.Version() == "" || attnkit.ABIMinor() > 99 {
		t.Fatal(attnkit.Version(), attnkit.ABIMinor())
	}
	ok(t, r.Close())
	ok(t, r.Close())
	_, err := r.List()
	refused(t, err, attnkit.Invalid, "this Runtime is closed")
	_, err = attnkit.NewRuntime(attnkit.Options{Threads: -1})
	refused(t, err, attnkit.Invalid, "threads -1")
	_, err = attnkit.NewRuntime(attnkit.Options{PluginPath: "a\x00b"})
	refused(t, err, attnkit.Invalid, "NUL")
}

func TestErrors(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{}))
	defer r.Close()
	const bad = "[model]\nnme = 1\n[one]\n"
	_, err := attnkit.FromText(r, bad, ".")
	var failed *attnkit.Error
	if !errors.As(err, &failed) || len(failed.Diagnostics) < 2 {
		t.Fatal(err)
	}
	if found := must[[]attnkit.Diagnostic](t)(attnkit.Check(r, bad, ".")); !reflect.DeepEqual(found, failed.Diagnostics) {
		t.Fatal(found)
	}
	refused(t, err, attnkit.Invalid, failed.Diagnostics[0].Message)
	_, err = attnkit.Open(r, "missing.toml")
	refused(t, err, attnkit.Invalid, "missing.toml")
	_, err = model(t).Tokenize(attnkit.SourceSide, "zebra")
	refused(t, err, attnkit.Invalid, "cannot spell")
	_, err = model(t).Verify("missing.safetensors")
	refused(t, err, attnkit.Invalid, "missing.safetensors")
	b := must[*attnkit.Block](t)(attnkit.NewBlock(r, "softmax", attnkit.Place{Role: attnkit.EncoderSelf, Heads: 2, DModel: 8}, ""))
	defer b.Close()
	_, err = b.Plan(attnkit.Request{Flags: attnkit.StreamFlag, Workers: 64, Batch: 1, Queries: 1, Keys: 1})
	refused(t, err, attnkit.Unsupported, "stream")
}

func TestStepsAreWhatGenerateDoes(t *testing.T) {
	m := model(t)
	s := begun(t, m)
	defer s.Close()
	copied := must[*attnkit.Session](t)(s.Fork())
	defer copied.Close()
	expected := must[[]int32](t)(copied.Generate(background, 0))
	made, logits := []int32{m.Info().BeginID}, make([]float32, m.Info().Outputs)
	for made[len(made)-1] != m.Info().EndID {
		ok(t, s.Step(made[len(made)-1], logits))
		best := 0
		for i, score := range logits {
			if score > logits[best] {
				best = i
			}
		}
		made = append(made, int32(best))
	}
	if !reflect.DeepEqual(made[1:], expected) {
		t.Fatal(made, expected)
	}
	refused(t, s.Step(1, make([]float32, 3)), attnkit.Invalid, "room for 3")
}

func TestSample(t *testing.T) {
	m := model(t)
	expected := must[[]int32](t)(begun(t, m).Generate(background, 0))
	if got := must[[]int32](t)(begun(t, m).Sample(background, nil, attnkit.Sampling{}, nil)); !reflect.DeepEqual(got, expected) {
		t.Fatal(got, expected)
	}
	var seen []int32
	each := func(id int32) bool { seen = append(seen, id); return len(seen) < 2 }
	got := must[[]int32](t)(begun(t, m).Sample(background, nil, attnkit.Sampling{}, each))
	if !reflect.DeepEqual(got, expected[:2]) || !reflect.DeepEqual(seen, expected[:2]) {
		t.Fatal(got, seen, expected)
	}
	word := strings.TrimSpace(must[string](t)(m.Detokenize(attnkit.TargetSide, expected[1:2])))
	stopped := attnkit.Sampling{Stops: []string{"nowhere", word}}
	if got = must[[]int32](t)(begun(t, m).Sample(background, nil, stopped, nil)); !reflect.DeepEqual(got, expected[:2]) {
		t.Fatal(got, expected)
	}
	draw := func(seed uint64) []int32 {
		hot := attnkit.Sampling{Temperature: 1000, Seed: seed, Limit: 8}
		return must[[]int32](t)(begun(t, m).Sample(background, nil, hot, nil))
	}
	if reflect.DeepEqual(draw(1), draw(2)) || !reflect.DeepEqual(draw(1), draw(1)) {
		t.Fatal("the seed alone decides what is drawn")
	}
	ctx, cancel := context.WithCancel(background)
	got, err := begun(t, m).Sample(ctx, nil, attnkit.Sampling{}, func(int32) bool { cancel(); return true })
	if !errors.Is(err, context.Canceled) || !reflect.DeepEqual(got, expected[:1]) {
		t.Fatal(got, err)
	}
	s := begun(t, m)
	if got, err = s.Sample(ctx, nil, attnkit.Sampling{}, nil); !errors.Is(err, context.Canceled) || len(got) != 0 {
		t.Fatal(got, err)
	}
	if got = must[[]int32](t)(s.Generate(background, 0)); !reflect.DeepEqual(got, expected) {
		t.Fatal(got, expected)
	}
}

func TestForkAndSave(t *testing.T) {
	m := model(t)
	s := begun(t, m)
	defer s.Close()
	ok(t, s.Step(m.Info().BeginID, nil))
	fork := must[*attnkit.Session](t)(s.Fork())
	defer fork.Close()
	saved := must[[]byte](t)(s.Save())
	loaded := must[*attnkit.Session](t)(attnkit.LoadSession(m, saved))
	defer loaded.Close()
	if loaded.Rows() != 1 {
		t.Fatal(loaded.Rows())
	}
	expected := must[[]int32](t)(s.Generate(background, 0))
	for _, other := range []*attnkit.Session{fork, loaded} {
		if got := must[[]int32](t)(other.Generate(background, 0)); !reflect.DeepEqual(got, expected) {
			t.Fatal(got, expected)
		}
	}
	saved[len(saved)-1] ^= 1
	_, err := attnkit.LoadSession(m, saved)
	refused(t, err, attnkit.Invalid, "")
}

func TestRows(t *testing.T) {
	m := model(t)
	one, two := begun(t, m), must[*attnkit.Session](t)(attnkit.NewSession(m, 2))
	defer one.Close()
	defer two.Close()
	ok(t, two.Read(attnkit.IDs(source(t, m, "half past three")...), true))
	n := m.Info().Outputs
	together, alone, readTogether := make([]float32, 3*n), make([]float32, 3*n), make([]float32, 3*n)
	begin := []int32{m.Info().BeginID}
	pair := []*attnkit.Session{must[*attnkit.Session](t)(attnkit.NewSession(m, 1)), must[*attnkit.Session](t)(attnkit.NewSession(m, 2))}
	sources := attnkit.BatchOf(source(t, m, english), source(t, m, "half past three"))
	refused(t, attnkit.ReadAll(pair[:1], sources, nil), attnkit.Invalid, "2 sources and 0 of last for 1 sessions")
	refused(t, attnkit.ReadAll(pair, sources, []bool{true, false}), attnkit.Invalid, "session 1: a source that grows")
	ok(t, attnkit.ReadAll(pair, sources, nil))
	stepping, cancel := context.WithCancel(background)
	for _, ctx := range []context.Context{background, stepping} {
		whole := []*attnkit.Session{must[*attnkit.Session](t)(pair[0].Fork()), must[*attnkit.Session](t)(pair[1].Fork())}
		for left := append([]*attnkit.Session(nil), whole...); len(left) > 0; {
			made := must[[][]int32](t)(attnkit.GenerateAll(ctx, left, 0))
			for i := len(left) - 1; i >= 0; i-- {
				if made[i] == nil {
					continue
				}
				at := 0
				if left[i] == whole[1] {
					at = 1
				}
				if same := must[*attnkit.Session](t)(pair[at].Fork()); !reflect.DeepEqual(made[i], must[[]int32](t)(same.Generate(background, 0))) {
					t.Fatal("sessions that generate at once differ from each alone")
				}
				left = append(left[:i], left[i+1:]...)
			}
		}
	}
	_, err := attnkit.GenerateAll(background, nil, 0)
	refused(t, err, attnkit.Invalid, "no sessions: give at least one")
	_, err = attnkit.GenerateAll(background, pair, -1)
	refused(t, err, attnkit.Invalid, "limit -1")
	cancel()
	_, err = attnkit.GenerateAll(stepping, pair, 0)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ok(t, attnkit.WriteAll(pair, attnkit.BatchOf(begin, begin, begin), readTogether))
	forks := []*attnkit.Session{must[*attnkit.Session](t)(one.Fork()), must[*attnkit.Session](t)(two.Fork())}
	ok(t, attnkit.WriteAll(forks, attnkit.BatchOf(begin, begin, begin), together))
	ok(t, one.Step(begin[0], alone[:n]))
	ok(t, two.Write(attnkit.BatchOf(begin, begin), alone[n:]))
	if !reflect.DeepEqual(together, alone) {
		t.Fatal("sessions at once differ from each alone")
	}
	if !reflect.DeepEqual(readTogether, alone) {
		t.Fatal("sources read at once differ from each alone")
	}
	ok(t, two.Write(attnkit.BatchOf([]int32{10}, []int32{11}), nil))
	swapped := must[*attnkit.Session](t)(two.Fork())
	defer swapped.Close()
	ok(t, swapped.Reorder([]uint32{1, 0}))
	a, b := make([]float32, 2*n), make([]float32, 2*n)
	ok(t, two.Write(attnkit.BatchOf([]int32{12}, []int32{13}), a))
	ok(t, swapped.Write(attnkit.BatchOf([]int32{13}, []int32{12}), b))
	if !reflect.DeepEqual(a[:n], b[n:]) || !reflect.DeepEqual(a[n:], b[:n]) {
		t.Fatal("rows were not swapped")
	}
	refused(t, two.Reorder([]uint32{0}), attnkit.Invalid, "1 parents for 2 rows")
	refused(t, attnkit.WriteAll([]*attnkit.Session{one, one}, attnkit.BatchOf(begin, begin), nil), attnkit.Invalid, "twice")
	refused(t, attnkit.WriteAll(nil, attnkit.BatchOf(begin), nil), attnkit.Invalid, "no sessions: give at least one")
}

func TestForwardIsEncodeAndDecode(t *testing.T) {
	m := model(t)
	ids := source(t, m, english)
	sources, targets := attnkit.BatchOf(ids, source(t, m, "four")), attnkit.BatchOf([]int32{1, 10, 11}, []int32{1})
	all, rest := make([]float32, 6*m.Info().Outputs), make([]float32, 6*m.Info().Outputs)
	ok(t, m.Forward(sources, targets, all))
	encoded := must[*attnkit.Encoded](t)(m.Encode(sources))
	ok(t, m.Decode(encoded, targets, rest))
	if !reflect.DeepEqual(all, rest) {
		t.Fatal("decode differs from forward")
	}
	refused(t, m.Decode(encoded, attnkit.BatchOf([]int32{1}), rest[:m.Info().Outputs]), attnkit.Invalid, "2")
	ok(t, encoded.Close())
	refused(t, m.Decode(encoded, targets, rest), attnkit.Invalid, "this Encoded is closed")
	refused(t, m.Decode(nil, targets, rest), attnkit.Invalid, "the Encoded is nil")
	lent := must[*attnkit.Batch](t)(attnkit.BatchIDs(ids, []int32{int32(len(ids))}))
	ok(t, m.Forward(lent, attnkit.BatchOf([]int32{1, 10, 11}), rest[:3*m.Info().Outputs]))
	if !reflect.DeepEqual(all[:3*m.Info().Outputs], rest[:3*m.Info().Outputs]) {
		t.Fatal("a row alone differs")
	}
	refused(t, m.Forward(sources, targets, all[1:]), attnkit.Invalid, "room for")
	weights := must[[]byte](t)(m.Weights())
	if binary.LittleEndian.Uint64(weights) > uint64(len(weights)) || weights[8] != '{' {
		t.Fatal("no safetensors")
	}
}

func TestSides(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	writes := must[*attnkit.Model](t)(attnkit.Open(r, "../../samples/manifests/language-model.toml"))
	defer writes.Close()
	some, none := []int32{3, 4, 2}, []int32{999999, -5, 7} // none: of no vocabulary
	for _, c := range []struct {
		m              *attnkit.Model
		source, target []int32
		said           string
	}{
		{model(t), nil, nil, "source must not be NULL: this model has an encoder"},
		{model(t), nil, some, "source must not be NULL: this model has an encoder"},
		{model(t), some, nil, "target must not be NULL: this model has a decoder"},
		{writes, none, some, "source must be NULL: this model has no encoder"},
		{writes, nil, nil, "target must not be NULL: this model has a decoder"},
	} {
		var sources, targets *attnkit.Batch
		var source, target *attnkit.Source
		for _, side := range []struct {
			ids   []int32
			batch **attnkit.Batch
			one   **attnkit.Source
		}{{c.source, &sources, &source}, {c.target, &targets, &target}} {
			if ids := attnkit.IDs(side.ids...); side.ids != nil {
				*side.batch, *side.one = attnkit.BatchOf(side.ids), &ids
			}
		}
		out := make([]float32, 3*c.m.Info().Outputs)
		refused(t, c.m.Forward(sources, targets, out), attnkit.Invalid, c.said)
		refused(t, c.m.Attention(attnkit.DecoderSelf, 1, source, target, out[:4*3*3]), attnkit.Invalid, c.said)
	}
	_, err := model(t).Encode(nil)
	refused(t, err, attnkit.Invalid, "source must not be NULL")
	encoded := must[*attnkit.Encoded](t)(model(t).Encode(attnkit.BatchOf(some)))
	defer encoded.Close()
	refused(t, model(t).Decode(encoded, nil, nil), attnkit.Invalid, "target must not be NULL")
}

func TestArgumentsThatAreNil(t *testing.T) {
	m, s := streaming(t), begun(t, model(t))
	_, err := attnkit.Open(nil, "model.toml")
	refused(t, err, attnkit.Invalid, "the Runtime is nil")
	_, err = attnkit.Check(nil, "", ".")
	refused(t, err, attnkit.Invalid, "the Runtime is nil")
	_, err = attnkit.NewBlock(nil, "relu", attnkit.Place{Role: attnkit.EncoderSelf, Heads: 1, DModel: 8}, "")
	refused(t, err, attnkit.Invalid, "the Runtime is nil")
	_, err = attnkit.NewSession(nil, 0)
	refused(t, err, attnkit.Invalid, "the Model is nil")
	_, err = attnkit.LoadSession(nil, nil)
	refused(t, err, attnkit.Invalid, "the Model is nil")
	var none context.Context
	_, err = m.Translate(none, english, 0, 0)
	refused(t, err, attnkit.Invalid, "the context is nil")
	_, err = s.Sample(none, nil, attnkit.Sampling{}, nil)
	refused(t, err, attnkit.Invalid, "the context is nil")
	_, err = attnkit.GenerateAll(none, []*attnkit.Session{s}, 0)
	refused(t, err, attnkit.Invalid, "the context is nil")
	empty := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	_, err = empty.Simulate(none, attnkit.IDs(2), nil, 0, attnkit.WaitK(1), nil)
	refused(t, err, attnkit.Invalid, "the context is nil")
	_, err = empty.Simulate(background, attnkit.IDs(2), nil, 0, nil, nil)
	refused(t, err, attnkit.Invalid, "the policy is nil")
	_, err = empty.Stream(attnkit.Units([]int32{2}), nil).Next(background)
	refused(t, err, attnkit.Invalid, "the policy is nil")
	_, err = empty.Stream(attnkit.Units([]int32{2}), attnkit.WaitK(1)).Next(none)
	refused(t, err, attnkit.Invalid, "the context is nil")
}

func TestAttention(t *testing.T) {
	m := model(t)
	from, to := attnkit.IDs(source(t, m, english)...), attnkit.IDs(1, 10)
	n := len(source(t, m, english))
	out := make([]float32, 4*2*n)
	ok(t, m.Attention(attnkit.DecoderCross, 1, &from, &to, out))
	for row := 0; row < 8; row++ {
		sum := 0.0
		for _, weight := range out[row*n : (row+1)*n] {
			sum += float64(weight)
		}
		if math.Abs(sum-1) > 1e-5 {
			t.Fatal(sum)
		}
	}
	refused(t, m.Attention(attnkit.DecoderCross, 9, &from, &to, out), attnkit.Invalid, "layer")
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	toml := string(must[[]byte](t)(os.ReadFile("../../samples/manifests/whisper.toml")))
	for _, frames := range []string{"frames = 200", "frames = 199"} { // 100 rows of every recording
		text := strings.Replace(toml, "frames = 200", frames, 1)
		whisper := must[*attnkit.Model](t)(attnkit.FromText(r, text, "../../samples/manifests"))
		samples := attnkit.Samples(make([]float32, 1600))
		ok(t, whisper.Attention(attnkit.DecoderCross, 1, &samples, &to, make([]float32, 4*2*100)))
		ok(t, whisper.Attention(attnkit.EncoderSelf, 1, &samples, &to, make([]float32, 4*100*100)))
		ok(t, whisper.Close())
	}
}

func TestStreamIsSimulate(t *testing.T) {
	m := streaming(t)
	defer m.Close()
	ids := source(t, m, english)
	for _, k := range []int{1, 3, 100} {
		s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		writes := 0
		count := func(e attnkit.Event) {
			if e.Action == attnkit.Write {
				writes++
			}
		}
		expected := must[[]int32](t)(s.Simulate(background, attnkit.IDs(ids...), nil, 0, attnkit.WaitK(k), count))
		ok(t, s.Close())
		if writes != len(expected) {
			t.Fatal(writes, expected)
		}
		s = must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		stream, made := s.Stream(attnkit.Units(units(ids)...), attnkit.WaitK(k)), []int32(nil)
		for {
			id, err := stream.Next(background)
			if errors.Is(err, io.EOF) {
				break
			}
			ok(t, err)
			made = append(made, id)
		}
		if !reflect.DeepEqual(made, expected) {
			t.Fatal(k, made, expected)
		}
		ok(t, s.Close())
	}
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	for _, rules := range []string{"no_repeat = 1", "no_repeat = 2", "repetition_penalty = 1.8", ""} {
		toml := string(must[[]byte](t)(os.ReadFile(filepath.Join(folder, "model.toml")))) + "\n[stream]\nreplay = true\n[decode]\n" + rules
		if rules == "" {
			if toml = strings.Replace(toml, "decoder = { layers = 3", "decoder = { layers = 3, max_length = 4", 1); !strings.Contains(toml, "max_length = 4,") {
				t.Fatal(toml)
			}
		}
		m := must[*attnkit.Model](t)(attnkit.FromText(r, toml, folder))
		ids := source(t, m, "two hundred and forty-one thousand three hundred and eleven euros") // hundred twice
		s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		expected := must[[]int32](t)(s.Simulate(background, attnkit.IDs(ids...), nil, 0, attnkit.WaitK(1), nil))
		ok(t, s.Close())
		s = must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		stream, made := s.Stream(attnkit.Units(units(ids)...), attnkit.WaitK(1)), []int32(nil)
		id, err := stream.Next(background)
		for ; err == nil; id, err = stream.Next(background) {
			made = append(made, id)
		}
		if !errors.Is(err, io.EOF) || !reflect.DeepEqual(made, expected) {
			t.Fatal(rules, made, expected, err)
		}
		ok(t, s.Close())
		ok(t, m.Close())
	}
}

func TestStreamWaitsWhereTheSourceSoFarAllowsNoMore(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	toml := string(must[[]byte](t)(os.ReadFile(filepath.Join(folder, "model.toml")))) + "\n[stream]\nreplay = true\n[decode]\nmin_length = 90\n"
	m := must[*attnkit.Model](t)(attnkit.FromText(r, toml, folder))
	defer m.Close()
	ids := source(t, m, english)
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	var read []int
	last := 0
	stream := s.Stream(attnkit.Units(units(ids)...), func(v attnkit.View) attnkit.Action {
		if last = v.Read; last == 0 {
			return attnkit.Read
		}
		return attnkit.Write
	})
	_, err := stream.Next(background)
	for ; err == nil; _, err = stream.Next(background) {
		read = append(read, last)
	}
	if !errors.Is(err, io.EOF) || len(read) != len(ids)*3/2+20 || !reflect.DeepEqual(read[20:25], []int{1, 2, 2, 3, 4}) {
		t.Fatal(read, err)
	}
}

// Units whose end comes alone, as that of a reader does, and without </s>.
type ending struct{ attnkit.Arriving }

func (e ending) Next(ctx context.Context) (attnkit.Source, bool, error) {
	unit, _, err := e.Arriving.Next(ctx)
	return unit, false, err
}

func TestStreamEnds(t *testing.T) {
	m := streaming(t)
	defer m.Close()
	ids := source(t, m, english)
	expected := must[[]int32](t)(begun(t, m).Generate(background, 0))
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	all := func(s *attnkit.Session, policy attnkit.Policy) (made []int32) {
		stream := s.Stream(ending{attnkit.Units(ids[:len(ids)-1])}, policy)
		for {
			id, err := stream.Next(background)
			if errors.Is(err, io.EOF) {
				return made
			}
			ok(t, err)
			made = append(made, id)
		}
	}
	if made := all(s, attnkit.WaitK(100)); !reflect.DeepEqual(made, expected) {
		t.Fatal(made, expected)
	}
	s = must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	// A token is written between the only unit and the end, which then comes with nothing waiting.
	made := all(s, func(v attnkit.View) attnkit.Action {
		if v.Ended || v.Read == 1 && v.Written == 0 {
			return attnkit.Write
		}
		return attnkit.Read
	})
	if made[len(made)-1] != m.Info().EndID || made[0] != expected[0] {
		t.Fatal(made, expected)
	}
	s = must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	_, err := s.Stream(attnkit.Units(ids), func(attnkit.View) attnkit.Action { return 7 }).Next(background)
	refused(t, err, attnkit.Invalid, "the policy answered 7")
}

// A reader that ends a context behind so many bytes.
type ends struct {
	io.Reader
	left   int
	cancel func()
}

func (e *ends) Read(to []byte) (int, error) {
	if e.left -= 4; e.left < 0 {
		e.cancel()
	}
	return e.Reader.Read(to[:4])
}

func TestSpeechKeepsWhatItTook(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	m := must[*attnkit.Model](t)(attnkit.Open(r, "../../samples/models/numbers-speech/model.toml"))
	defer m.Close()
	bytesOf := make([]byte, 4*m.Info().SampleRate)
	for i := 0; i < len(bytesOf); i += 4 {
		binary.LittleEndian.PutUint32(bytesOf[i:], math.Float32bits(float32(i)/float32(len(bytesOf))))
	}
	whole, _, err := m.Speech(bytes.NewReader(bytesOf)).Next(background)
	ok(t, err)
	ctx, cancel := context.WithCancel(background)
	broken := m.Speech(&ends{bytes.NewReader(bytesOf), 400, cancel})
	if _, _, err = broken.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if again := must[attnkit.Source](t)(unit(broken.Next(background))); !reflect.DeepEqual(again, whole) {
		t.Fatal("samples were lost")
	}
	// A reader that fails inside a sample.
	torn := m.Speech(&tears{r: bytes.NewReader(bytesOf), at: 401})
	if _, _, err = torn.Next(background); !errors.Is(err, errTorn) {
		t.Fatal(err)
	}
	if again := must[attnkit.Source](t)(unit(torn.Next(background))); !reflect.DeepEqual(again, whole) {
		t.Fatal("bytes were lost")
	}
	expected := must[[]byte](t)(io.ReadAll(attnkit.PCM16(bytes.NewReader(bytesOf[:800]))))
	samples := attnkit.PCM16(&tears{r: bytes.NewReader(bytesOf[:800]), at: 401})
	before, err := io.ReadAll(samples)
	if after := must[[]byte](t)(io.ReadAll(samples)); !errors.Is(err, errTorn) || !bytes.Equal(append(before, after...), expected) {
		t.Fatal(err, len(before), len(after), len(expected))
	}
	_, _, err = model(t).Speech(bytes.NewReader(bytesOf)).Next(background)
	refused(t, err, attnkit.Invalid, "this model takes text")
}

var errTorn = errors.New("torn")

// A reader that fails once, behind so many bytes.
type tears struct {
	r  io.Reader
	at int
}

func (r *tears) Read(to []byte) (int, error) {
	if r.at == 0 {
		r.at = -1
		return 0, errTorn
	}
	if r.at > 0 && len(to) > r.at {
		to = to[:r.at]
	}
	n, err := r.r.Read(to)
	if r.at > 0 {
		r.at -= n
	}
	return n, err
}

func unit(s attnkit.Source, _ bool, err error) (attnkit.Source, error) { return s, err }

func TestCancel(t *testing.T) {
	m := streaming(t)
	defer m.Close()
	ids := attnkit.IDs(source(t, m, english)...)
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	ctx, cancel := context.WithCancel(background)
	made, err := s.Simulate(ctx, ids, nil, 0, attnkit.WaitK(1), func(e attnkit.Event) {
		if e.Written == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(made) != 2 {
		t.Fatal(made, err)
	}
	if _, err := begun(t, m).Generate(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	late, stop := context.WithTimeout(background, time.Nanosecond)
	defer stop()
	<-late.Done()
	if _, err := m.Translate(late, english, 1, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	live, end := context.WithCancel(background)
	defer end()
	if got := must[string](t)(m.Translate(live, english, 1, 0)); got != german {
		t.Fatal(got)
	}
}

// A context that is done when it was asked so often.
type asked struct {
	context.Context
	left int
}

func (a *asked) Err() error {
	if a.left--; a.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestGenerateKeepsWhatItHasWhenCancelled(t *testing.T) {
	live, end := context.WithCancel(background)
	defer end()
	expected := must[[]int32](t)(begun(t, model(t)).Generate(background, 0))
	s := begun(t, model(t))
	made, err := s.Generate(&asked{live, 3}, 0) // before the first token, and after each
	if !errors.Is(err, context.Canceled) || !reflect.DeepEqual(made, expected[:3]) {
		t.Fatal(made, err)
	}
	if rest := must[[]int32](t)(s.Generate(live, 0)); !reflect.DeepEqual(rest, expected[3:]) {
		t.Fatal(rest, expected)
	}
}

func TestGenerateWithEveryContext(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	toml := string(must[[]byte](t)(os.ReadFile(filepath.Join(folder, "model.toml"))))
	live, end := context.WithCancel(background)
	defer end()
	generate := func(m *attnkit.Model, ctx context.Context) []int32 {
		s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		defer s.Close()
		ok(t, s.Read(attnkit.IDs(source(t, m, "two hundred and two euros and two")...), true))
		return must[[]int32](t)(s.Generate(ctx, 0))
	}
	free := generate(model(t), live)
	for _, decode := range []string{"limit = 3", "repetition_penalty = 100.0", "no_repeat = 1"} {
		m := must[*attnkit.Model](t)(attnkit.FromText(r, toml+"\n[decode]\n"+decode+"\n", folder))
		defer m.Close()
		expected := generate(m, background)
		if reflect.DeepEqual(expected, free) {
			t.Fatal(decode, "changes nothing")
		}
		if got := generate(m, live); !reflect.DeepEqual(got, expected) {
			t.Fatal(decode, got, expected)
		}
	}
}

func TestPanicsOfAPolicyPass(t *testing.T) {
	m := streaming(t)
	defer m.Close()
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	defer s.Close()
	defer func() {
		if recover() != "no" {
			t.Fatal("the panic was lost")
		}
	}()
	s.Simulate(background, attnkit.IDs(source(t, m, english)...), nil, 0, func(attnkit.View) attnkit.Action { panic("no") }, nil)
}

func TestSpeech(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 2}))
	defer r.Close()
	path := filepath.Join(folder, "../numbers-speech")
	toml := string(must[[]byte](t)(os.ReadFile(filepath.Join(path, "model.toml"))))
	if !strings.Contains(toml, "[stream]") {
		toml += "\n[stream]\nreplay = true\n"
	}
	m := must[*attnkit.Model](t)(attnkit.FromText(r, toml, path))
	defer m.Close()
	info := m.Info()
	samples, raw, pcm := make([]float32, info.SampleRate), new(bytes.Buffer), new(bytes.Buffer)
	for i := range samples {
		level := int16(3000 * math.Sin(float64(i)*0.05))
		samples[i] = float32(level) / 32768
		binary.Write(pcm, binary.LittleEndian, level)
	}
	binary.Write(raw, binary.LittleEndian, samples)
	frames := must[[]float32](t)(m.Features(samples))
	if len(frames) != ((len(samples)-info.FrameLength)/info.FrameShift+1)*info.Features {
		t.Fatal(len(frames))
	}
	var made [][]int32
	for _, given := range []attnkit.Source{attnkit.Samples(samples), attnkit.Frames(frames, info.Features)} {
		s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		ok(t, s.Read(given, true))
		made = append(made, must[[]int32](t)(s.Generate(background, 5)))
		ok(t, s.Close())
	}
	for _, reader := range []io.Reader{raw, attnkit.PCM16(pcm)} {
		s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
		stream, ids := s.Stream(m.Speech(reader), attnkit.WaitK(1000)), []int32(nil)
		for id, err := stream.Next(background); err == nil && len(ids) < 5; id, err = stream.Next(background) {
			ids = append(ids, id)
		}
		made = append(made, ids)
		ok(t, s.Close())
	}
	for _, ids := range made[1:] {
		if !reflect.DeepEqual(ids, made[0]) {
			t.Fatal(made)
		}
	}
	_, err := attnkit.BatchSpeech(frames[1:], info.Features, []int32{1})
	refused(t, err, attnkit.Invalid, "do not make")
	batch := must[*attnkit.Batch](t)(attnkit.BatchSpeech(samples, 0, []int32{int32(len(samples))}))
	encoded := must[*attnkit.Encoded](t)(m.Encode(batch))
	ok(t, encoded.Close())
}

func TestLength(t *testing.T) {
	s := must[*attnkit.Session](t)(attnkit.NewSession(model(t), 1))
	defer s.Close()
	ok(t, s.SetLength(12.5))
	if !strings.Contains(must[string](t)(s.Describe()), "12.5") {
		t.Fatal("the length was lost")
	}
	refused(t, s.SetLength(-1), attnkit.Invalid, "-1")
}

func tensor(t testing.TB, values ...float32) *attnkit.Tensor {
	made := must[*attnkit.Tensor](t)(attnkit.NewTensor32(1, 1, len(values), 1))
	copy(made.Float32(), values)
	return made
}

func TestNumbersThatCWouldWrap(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	const wide = 1 << 32
	no := func(err error, part string) {
		t.Helper()
		refused(t, err, attnkit.Invalid, part)
	}
	for _, threads := range []int{-1, 1025, wide + 1} {
		_, err := attnkit.NewRuntime(attnkit.Options{Threads: threads})
		no(err, fmt.Sprintf("threads %d: it must be 0 to 1024", threads))
	}
	_, err := attnkit.NewRuntime(attnkit.Options{DeviceType: wide})
	no(err, "device type 4294967296: it must be 0 to 2147483647")
	for _, rows := range []int{-1, 1025, wide + 1} {
		_, err := attnkit.NewSession(model(t), rows)
		no(err, fmt.Sprintf("rows %d: it must be 0 to 1024", rows))
		_, err = model(t).Translate(background, english, rows, 0)
		no(err, fmt.Sprintf("rows %d: it must be 0 to 1024", rows))
	}
	_, err = model(t).Tokenize(wide, english)
	no(err, "side 4294967296: it must be 0 to 1")
	_, err = model(t).Detokenize(-1, []int32{5})
	no(err, "side -1: it must be 0 to 1")
	ids := attnkit.IDs(source(t, model(t), english)...)
	no(model(t).Attention(attnkit.EncoderSelf, wide+1, &ids, nil, nil), "layer 4294967297: it must be 0 to 2147483647")
	good := attnkit.Place{Role: attnkit.EncoderSelf, Heads: 1, DModel: 8}
	for part, change := range map[string]func(*attnkit.Place){
		"role 4294967297":       func(p *attnkit.Place) { p.Role += wide },
		"heads 4294967297":      func(p *attnkit.Place) { p.Heads += wide },
		"d_model 4294967304":    func(p *attnkit.Place) { p.DModel += wide },
		"head width -1":         func(p *attnkit.Place) { p.HeadWidth = -1 },
		"heads of keys 4294967": func(p *attnkit.Place) { p.KVHeads = wide },
		"key width 4294967296":  func(p *attnkit.Place) { p.KeyWidth = wide },
	} {
		place := good
		change(&place)
		_, err := attnkit.NewBlock(r, "relu", place, "")
		no(err, part)
	}
	b := must[*attnkit.Block](t)(attnkit.NewBlock(r, "relu", good, ""))
	defer b.Close()
	no(b.Fill(wide, 1, nil), "port 4294967296: it must be 0 to 3")
	request := attnkit.Request{Workers: wide + 1, Batch: 1, Queries: 1, Keys: 1}
	_, err = b.Plan(request)
	no(err, "workers 4294967297: it must be 0 to 2147483647")
	no(b.Run(request, &attnkit.Run{}), "workers 4294967297")
}

// Every class of error, of the plugin tests/abi/failing/fails.c.
func TestErrorsOfEveryClass(t *testing.T) {
	folder := os.Getenv("ATTNKIT_TEST_FAILING")
	if folder == "" {
		t.Skip("ATTNKIT_TEST_FAILING must name the folder of fails.so; ctest sets it")
	}
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1, PluginPath: folder}))
	defer r.Close()
	try := func(options string) error {
		b, err := attnkit.NewBlock(r, "fails", attnkit.Place{Role: attnkit.EncoderSelf, Heads: 1, DModel: 1}, options)
		if err != nil {
			return err
		}
		defer b.Close()
		request := attnkit.Request{Workers: 1, Batch: 1, Queries: 1, Keys: 1}
		if _, err := b.Plan(request); err != nil {
			return err
		}
		v := must[*attnkit.Tensor](t)(attnkit.NewTensor32(1, 1, 1, 1))
		out := must[*attnkit.Tensor](t)(attnkit.NewTensor32(1, 1, 1, 1))
		defer v.Close()
		defer out.Close()
		return b.Run(request, &attnkit.Run{Batch: 1, Queries: 1, Keys: 1, Ports: []*attnkit.Tensor{v, out}})
	}
	for _, in := range []string{"create", "plan", "run"} {
		for code, class := range map[int]attnkit.Code{1: attnkit.Invalid, 2: attnkit.Unsupported, 3: attnkit.NoMemory, 4: attnkit.Device, 5: attnkit.Internal} {
			refused(t, try(fmt.Sprintf("code = %d, in = '%s'", code, in)), class, "fails: told to fail in "+in)
		}
		refused(t, try(fmt.Sprintf("code = 77, in = '%s'", in)), attnkit.Internal, "returned code 77")
	}
	refused(t, try("in = 'scratch'"), attnkit.NoMemory, "2305843009213693952 bytes of scratch")
}

func TestBlock(t *testing.T) {
	r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer r.Close()
	b := must[*attnkit.Block](t)(attnkit.NewBlock(r, "relu", attnkit.Place{Role: attnkit.DecoderSelf, Causal: true, Heads: 1, DModel: 1}, ""))
	defer b.Close()
	if len(b.Ports()) != 4 || b.Ports()[3].Kind != attnkit.OutputPort {
		t.Fatal(b.Ports())
	}
	ports := []*attnkit.Tensor{tensor(t, 1, 1, 1), tensor(t, 1, 3, 4), tensor(t, 10, 20, 40), tensor(t, 0, 0, 0)}
	whole := attnkit.Request{Flags: attnkit.TrainFlag, Workers: 1, Batch: 1, Queries: 3, Keys: 3}
	run := &attnkit.Run{Batch: 1, Queries: 3, Keys: 3, Ports: ports, Saved: must[*attnkit.Saved](t)(attnkit.NewSaved(4096))}
	ok(t, b.Run(whole, run))
	if !reflect.DeepEqual(ports[3].Float32(), []float32{10, 17.5, 28.75}) {
		t.Fatal(ports[3].Float32())
	}
	dv := tensor(t, 0, 0, 0)
	grads := []*attnkit.Tensor{nil, nil, dv, tensor(t, 0, 0, 1)}
	ok(t, b.Backward(whole, run, grads))
	if !reflect.DeepEqual(dv.Float32(), []float32{0.125, 0.375, 0.5}) {
		t.Fatal(dv.Float32())
	}
	foreign := "Saved is not of a Run of this block with the same request and run"
	run.QLen = []int32{2}
	refused(t, b.Backward(whole, run, grads), attnkit.Invalid, foreign)
	run.QLen = nil
	larger := whole
	larger.Keys = 4
	refused(t, b.Backward(larger, run, grads), attnkit.Invalid, foreign)
	twin := must[*attnkit.Block](t)(attnkit.NewBlock(r, "relu", attnkit.Place{Role: attnkit.DecoderSelf, Causal: true, Heads: 1, DModel: 1}, ""))
	defer twin.Close()
	refused(t, twin.Backward(whole, run, grads), attnkit.Invalid, foreign)
	written := run.Saved
	run.Saved = must[*attnkit.Saved](t)(attnkit.NewSaved(4096))
	refused(t, b.Backward(whole, run, grads), attnkit.Invalid, foreign)
	run.Saved = written
	ok(t, b.Backward(whole, run, grads))
	ok(t, run.Saved.Close())
	refused(t, b.Backward(whole, run, grads), attnkit.Invalid, foreign)
	refused(t, b.Run(whole, run), attnkit.Invalid, "saves")
	step := attnkit.Request{Flags: attnkit.StreamFlag, Workers: 1, Batch: 1, Queries: 1, Keys: 1, Past: 2}
	info := must[attnkit.Info](t)(b.Plan(step))
	state := must[*attnkit.Aligned](t)(attnkit.NewAligned(1, info.StateBytes))
	defer state.Close()
	for i, expected := range []float32{10, 17.5, 28.75} {
		at, o := []int32{int32(i)}, tensor(t, 0)
		one := []*attnkit.Tensor{tensor(t, 1), tensor(t, ports[1].Float32()[i]), tensor(t, ports[2].Float32()[i]), o}
		ok(t, b.Run(step, &attnkit.Run{Batch: 1, Queries: 1, Keys: 1, Ports: one, QPos: at, KPos: at, State: state}))
		if o.Float32()[0] != expected {
			t.Fatal(i, o.Float32())
		}
	}
	one := &attnkit.Run{Batch: 1, Queries: 1, Keys: 1, Ports: ports[:3], State: state}
	refused(t, b.Run(step, one), attnkit.Invalid, "3 tensors for 4 ports")
	one.Ports, one.Slots = ports, []int32{1}
	refused(t, b.Run(step, one), attnkit.Invalid, "slot 1 of a state with 1 rows")
	one.Slots, one.QPos = nil, []int32{0, 0}
	refused(t, b.Run(step, one), attnkit.Invalid, "QPos has 2 entries")
	run.Saved = nil
	refused(t, b.Run(whole, run), attnkit.Invalid, "saves")
	ok(t, ports[0].Close())
	one.QPos = nil
	refused(t, b.Run(step, one), attnkit.Invalid, "port 0 is closed")
	shared := attnkit.Place{Role: attnkit.DecoderSelf, Causal: true, Heads: 4, DModel: 8, KVHeads: 2, KeyWidth: 3}
	own := must[*attnkit.Block](t)(attnkit.NewBlock(r, "softmax", shared, "")).Ports()
	if !reflect.DeepEqual(own[0].Shape, []int{0, 4, 0, 3}) || !reflect.DeepEqual(own[1].Shape, []int{0, 2, 0, 3}) {
		t.Fatal(own)
	}
	leap := must[*attnkit.Block](t)(attnkit.NewBlock(r, "leap", attnkit.Place{Role: attnkit.DecoderCross, Heads: 4, DModel: 32}, "factor = 2"))
	defer leap.Close()
	for i, port := range leap.Ports() {
		if port.Kind == attnkit.LearnedPort && len(port.Shape) == 2 {
			filled := must[*attnkit.Tensor](t)(attnkit.NewTensor32(port.Shape...))
			ok(t, leap.Fill(i, 7, filled))
			if filled.Float32()[0] == 0 {
				t.Fatal("nothing was filled")
			}
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	m := model(t)
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if got, err := m.Translate(background, english, 1, 0); err != nil || got != german {
				t.Error(got, err)
			}
		}()
	}
	all.Wait()
}

// The collector runs all the time while values are forgotten, closed and used: nothing that a call uses may go.
func TestCollector(t *testing.T) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for i := 0; i < 20; i++ {
		r := must[*attnkit.Runtime](t)(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
		m := must[*attnkit.Model](t)(attnkit.Open(r, filepath.Join(folder, "model.toml")))
		s := begun(t, m)
		if i%2 == 0 {
			ok(t, r.Close())
			ok(t, m.Close())
		}
		r, m = nil, nil
		saved := must[[]byte](t)(must[*attnkit.Session](t)(s.Fork()).Save())
		if len(saved) == 0 || len(must[[]int32](t)(s.Generate(background, 0))) < 3 {
			t.Fatal("nothing was made")
		}
	}
}

// Close waits for a call, and a call after it is refused.
func TestCloseWhileItRuns(t *testing.T) {
	m := streaming(t)
	defer m.Close()
	s := must[*attnkit.Session](t)(attnkit.NewSession(m, 1))
	inside, closed := make(chan struct{}), make(chan struct{})
	var begin sync.Once
	policy := func(v attnkit.View) attnkit.Action {
		begin.Do(func() {
			close(inside)
			go func() { s.Close(); close(closed) }()
		})
		return attnkit.WaitK(1)(v)
	}
	go func() { <-inside }()
	made := must[[]int32](t)(s.Simulate(background, attnkit.IDs(source(t, m, english)...), nil, 0, policy, nil))
	<-closed
	if len(made) < 3 {
		t.Fatal(made)
	}
	_, err := s.Save()
	refused(t, err, attnkit.Invalid, "closed")
}
