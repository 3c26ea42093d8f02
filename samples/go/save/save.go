// Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE
package main

import (
	"context"
	"fmt"
	"os"

	"attnkit"
	. "attnkit/samples/common"
)

func main() { Run(3, `MODEL.toml "text" FILE`, sample) }

func sample() {
	model, ids := Open(false)
	defer model.Close()
	session := Must(attnkit.NewSession(model, 1))
	defer session.Close()
	Fail(session.Read(attnkit.IDs(ids...), true))
	first := Must(session.Generate(context.Background(), 1))
	Fail(os.WriteFile(os.Args[3], Must(session.Save()), 0o600))

	restored := Must(attnkit.LoadSession(model, Must(os.ReadFile(os.Args[3]))))
	defer restored.Close()
	rest := Must(restored.Generate(context.Background(), 0))
	fmt.Println(Must(model.Detokenize(attnkit.TargetSide, append(first, rest...))))
}
