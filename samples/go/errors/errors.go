// Shows errors.   errors MODEL.toml "text" [FOLDER]
// FOLDER: where fails.so of samples/failing_plugin is, for an error of every class; absolute.
package main

import (
	"errors"
	"fmt"
	"os"

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
	case errors.Is(err, attnkit.NoMemory):
		fmt.Println("no memory:", err)
	case errors.Is(err, attnkit.Device):
		fmt.Println("device:", err)
	case errors.Is(err, attnkit.Internal):
		fmt.Println("internal:", err)
	}
}

func main() { Run(2, `MODEL.toml "text" [FOLDER]`, sample) }

func sample() {
	model, _ := Open(false)
	defer model.Close()
	runtime := Must(attnkit.NewRuntime(attnkit.Options{Threads: 1}))
	defer runtime.Close()
	_, err := attnkit.FromText(runtime, "[model]\nkind = 3\n[what]\n", ".")
	show(err)
	_, err = model.Tokenize(attnkit.SourceSide, "zebra")
	show(err)
	place := attnkit.Place{Role: attnkit.EncoderSelf, Heads: 1, DModel: 8}
	block := Must(attnkit.NewBlock(runtime, "softmax", place, ""))
	defer block.Close()
	_, err = block.Plan(attnkit.Request{Flags: attnkit.StreamFlag, Workers: 1, Batch: 1, Queries: 1, Keys: 1})
	show(err)
	if len(os.Args) < 4 {
		return
	}
	failing := Must(attnkit.NewRuntime(attnkit.Options{PluginPath: os.Args[3]}))
	defer failing.Close()
	for code := attnkit.Invalid; code <= attnkit.Internal; code++ {
		_, err = attnkit.NewBlock(failing, "fails", place, fmt.Sprintf("code = %d", code))
		show(err)
	}
}
