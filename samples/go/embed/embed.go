// Compares texts with the first: cosines of their vectors.   embed MODEL.toml "text" "text" ...
package main

import (
	"fmt"
	"math"
	"os"

	"attnkit"
	. "attnkit/samples/common"
)

func dot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func main() { Run(3, `MODEL.toml "text" "text" ...`, sample) }

func sample() {
	model := OpenManifest()
	defer model.Close()
	texts, width := os.Args[2:], model.Info().Outputs
	var sources [][]int32
	for _, text := range texts {
		sources = append(sources, append(Must(model.Tokenize(attnkit.SourceSide, text)), model.Info().EndID))
	}
	vectors := make([]float32, len(texts)*width)
	Fail(model.Forward(attnkit.BatchOf(sources...), nil, vectors))
	first := vectors[:width]
	for i := 1; i < len(texts); i++ {
		row := vectors[i*width : (i+1)*width]
		fmt.Printf("%.4f %s\n", dot(first, row)/math.Sqrt(dot(first, first)*dot(row, row)), texts[i])
	}
}
