// Shows refusals.   errors MODEL.toml "text"
package main

import (
	"errors"
	"fmt"

	"attnkit"
	. "attnkit/samples/common"
)

func show(err error) {
	var failed *attnkit.Error
	switch {
	case errors.Is(err, attnkit.Invalid) && errors.As(err, &failed):
		fmt.Printf("invalid, %d diagnostics: %v\n", len(failed.Diagnostics), err)
	case errors.Is(err, attnkit.Unsupported):
		fmt.Println("unsupported:", err)
	case errors.Is(err, attnkit.NoMemory), errors.Is(err, attnkit.Device), errors.Is(err, attnkit.Internal):
		fmt.Println("not the caller's fault:", err)
	}
}

func main() {
	model, _ := Open(false)
	defer model.Close()
	runtime := Must(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer runtime.Close()
	_, err := attnkit.FromText(runtime, "[model]\nkind = 3\n[what]\n", ".")
	show(err)
	_, err = model.Tokenize(attnkit.SourceSide, "zebra")
	show(err)
	block := Must(attnkit.NewBlock(runtime, "softmax", attnkit.Place{Role: attnkit.EncoderSelf, Heads: 1, DModel: 8}, ""))
	defer block.Close()
	_, err = block.Plan(attnkit.Request{Flags: attnkit.StreamFlag, Workers: 1, Batch: 1, Queries: 1, Keys: 1})
	show(err)
}
