// One source read once, two continuations.   fork MODEL.toml "text"
package main

import (
	"context"
	"fmt"

	"attnkit"
	. "attnkit/samples/common"
)

func main() { Run(2, `MODEL.toml "text"`, sample) }

func sample() {
	model, ids := Open(false)
	defer model.Close()
	session := Must(attnkit.NewSession(model, 1))
	defer session.Close()
	Fail(session.Read(attnkit.IDs(ids...), true))
	fork := Must(session.Fork())
	defer fork.Close()
	for _, one := range []*attnkit.Session{session, fork} {
		fmt.Println(Must(model.Detokenize(attnkit.TargetSide, Must(one.Generate(context.Background(), 0)))))
	}
}
