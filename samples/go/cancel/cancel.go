// Ends a call after two tokens.   cancel MODEL.toml "text"
package main

import (
	"context"
	"errors"
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
	ctx, cancel := context.WithCancel(context.Background())
	offline := func(v attnkit.View) attnkit.Action {
		if v.Ended {
			return attnkit.Write
		}
		return attnkit.Read
	}
	made, err := session.Simulate(ctx, attnkit.IDs(ids...), nil, 0, offline, func(e attnkit.Event) {
		if e.Written == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		Fail(err)
	}
	fmt.Println(Must(model.Detokenize(attnkit.TargetSide, made)))
}
