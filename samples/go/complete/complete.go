// Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"attnkit"
	. "attnkit/samples/common"
)

func main() { Run(2, `MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]`, sample) }

func sample() {
	model := OpenManifest()
	defer model.Close()
	prompt := Must(model.Tokenize(attnkit.TargetSide, os.Args[2]))
	if begin := model.Info().BeginID; begin >= 0 {
		prompt = append([]int32{begin}, prompt...)
	}
	sampling := attnkit.Sampling{Limit: 64, Temperature: 0.8, TopP: 0.95, Seed: 1}
	if len(os.Args) > 3 {
		sampling.Limit = Must(strconv.Atoi(os.Args[3]))
	}
	if len(os.Args) > 4 {
		sampling.Temperature = Must(strconv.ParseFloat(os.Args[4], 64))
	}
	stop := ""
	if len(os.Args) > 5 {
		stop = os.Args[5]
		sampling.Stops = []string{stop}
	}
	var made []int32
	shown := 0
	show := func(all bool) {
		text := Must(model.Detokenize(attnkit.TargetSide, made))
		// A character may take several tokens; until the last of them it is U+FFFD.  So may the stop, which is not shown.
		if !all && strings.HasSuffix(text, "\uFFFD") {
			return
		}
		end := len(text)
		if found := strings.Index(text, stop); stop != "" && found >= 0 {
			end = found
		} else if stop != "" && !all {
			end -= len(stop) - 1
		}
		if end > shown {
			fmt.Print(text[shown:end])
			shown = end
		}
	}
	session := Must(attnkit.NewSession(model, 1))
	defer session.Close()
	Must(session.Sample(context.Background(), prompt, sampling, func(id int32) bool {
		made = append(made, id)
		show(false)
		return true
	}))
	show(true)
	fmt.Println()
}
