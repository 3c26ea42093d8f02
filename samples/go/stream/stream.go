// Translates while the source arrives, three tokens behind.   stream MODEL.toml "text"
package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"attnkit"
	. "attnkit/samples/common"
)

func main() { Run(2, `MODEL.toml "text"`, sample) }

func sample() {
	model, ids := Open(true)
	defer model.Close()
	session := Must(attnkit.NewSession(model, 1))
	defer session.Close()
	var units [][]int32
	for i := range ids {
		units = append(units, ids[i:i+1])
	}
	var made []int32
	read := 0
	policy := func(v attnkit.View) attnkit.Action {
		read = v.Read
		return attnkit.WaitK(3)(v)
	}
	stream := session.Stream(attnkit.Units(units...), policy)
	for {
		id, err := stream.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		made = append(made, Must(id, err))
		fmt.Println(read, len(made))
	}
	fmt.Println(Must(model.Detokenize(attnkit.TargetSide, made)))
}
