// One mechanism by itself: three tokens, causal.
package main

import (
	"fmt"

	"attnkit"
	. "attnkit/samples/common"
)

func column(values ...float32) *attnkit.Tensor {
	t := Must(attnkit.NewTensor32(1, 1, len(values), 1))
	copy(t.Float32(), values)
	return t
}

func main() { Run(0, "", sample) }

func sample() {
	runtime := Must(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer runtime.Close()
	where := attnkit.Place{Role: attnkit.DecoderSelf, Causal: true, Heads: 1, DModel: 1}
	block := Must(attnkit.NewBlock(runtime, "relu", where, ""))
	defer block.Close()
	out := column(0, 0, 0)
	ports := []*attnkit.Tensor{column(1, 1, 1), column(1, 3, 4), column(10, 20, 40), out} // in the order of block.Ports()
	request := attnkit.Request{Workers: 1, Batch: 1, Queries: 3, Keys: 3}
	Fail(block.Run(request, &attnkit.Run{Batch: 1, Queries: 3, Keys: 3, Ports: ports}))
	o := out.Float32()
	fmt.Println(o[0], o[1], o[2])
	for _, t := range ports {
		t.Close()
	}
}
