// Prints the nanoseconds of a one-token call for each line that it reads.   step MODEL.toml STEPS
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"time"

	"attnkit"
	. "attnkit/samples/common"
)

func main() { Run(2, "MODEL.toml STEPS", step) }

func step() {
	model := OpenManifest()
	defer model.Close()
	logits := make([]float32, model.Info().Outputs)
	steps := Must(strconv.Atoi(os.Args[2]))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		session := Must(attnkit.NewSession(model, 1))
		start := time.Now()
		for i := 0; i < steps; i++ {
			Fail(session.Step(int32(i%16), logits))
		}
		fmt.Println(float64(time.Since(start).Nanoseconds()) / float64(steps))
		session.Close()
	}
}
