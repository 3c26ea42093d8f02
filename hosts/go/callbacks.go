package attnkit

// #include <attnkit/attnkit.h>
import "C"

import "runtime/cgo"

//export goDiagnose
func goDiagnose(context C.uintptr_t, d *C.attnkit_diagnostic) {
	list := cgo.Handle(context).Value().(*[]Diagnostic)
	found := Diagnostic{IsError: d.severity == C.ATTNKIT_ERROR, Area: uint32(d.area), Code: int(d.code), Line: int(d.line),
		Column: int(d.column), Message: C.GoString(d.message)}
	if d.help != nil {
		found.Help = C.GoString(d.help)
	}
	*list = append(*list, found)
}

//export goDecide
func goDecide(context C.uintptr_t, view *C.attnkit_stream_view) (action C.uint32_t) {
	s := cgo.Handle(context).Value().(*simulation)
	defer s.recovered(func() { action = C.ATTNKIT_STOP })
	if s.err = s.ctx.Err(); s.panicked != nil || s.err != nil {
		return C.ATTNKIT_STOP
	}
	return C.uint32_t(s.policy(View{int(view.read), int(view.written), view.ended != 0}))
}

//export goObserve
func goObserve(context C.uintptr_t, e *C.attnkit_stream_event) {
	s := cgo.Handle(context).Value().(*simulation)
	defer s.recovered(func() {})
	if s.observe != nil && s.panicked == nil {
		s.observe(Event{Action(e.action), int(e.read), int(e.written), int32(e.id), e.ended != 0, float64(e.seconds)})
	}
}

//export goToken
func goToken(context C.uintptr_t, id C.int32_t) (end C.uint32_t) {
	d := cgo.Handle(context).Value().(*drawing)
	defer func() {
		if p := recover(); p != nil {
			d.panicked, end = p, 1
		}
	}()
	if d.each != nil && !d.each(int32(id)) {
		return 1
	}
	if d.err = d.ctx.Err(); d.err != nil {
		return 1
	}
	return 0
}
