// Writes down a recording.   transcribe MODEL.toml RECORDING.wav
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"attnkit"
	. "attnkit/samples/common"
)

// The samples of a WAV file of 16 bits, one channel and this rate.
func samplesOf(file []byte, rate int) ([]float32, error) {
	little := binary.LittleEndian
	good := false // what the fmt chunk says
	if len(file) < 12 || string(file[:4]) != "RIFF" || string(file[8:12]) != "WAVE" {
		file = nil
	}
	for at := 12; at+8 <= len(file); {
		name, size := string(file[at:at+4]), int(little.Uint32(file[at+4:]))
		chunk := file[at+8:]
		if size < len(chunk) {
			chunk = chunk[:size]
		}
		if name == "data" && good {
			samples := make([]float32, len(chunk)/2)
			for i := range samples {
				samples[i] = float32(int16(little.Uint16(chunk[2*i:]))) / 32768
			}
			return samples, nil
		}
		if name == "fmt " {
			good = len(chunk) >= 16 && little.Uint16(chunk[2:]) == 1 && little.Uint32(chunk[4:]) == uint32(rate) && little.Uint16(chunk[14:]) == 16
		}
		at += 8 + size + size%2
	}
	return nil, errors.New("no WAV file of 16 bits and one channel at the model's rate")
}

func main() { Run(2, `MODEL.toml RECORDING.wav`, sample) }

func sample() {
	model := OpenManifest()
	defer model.Close()
	samples := Must(samplesOf(Must(os.ReadFile(os.Args[2])), model.Info().SampleRate))
	session := Must(attnkit.NewSession(model, 1))
	defer session.Close()
	Fail(session.Read(attnkit.Samples(samples), true))
	made := Must(session.Generate(context.Background(), 0))
	fmt.Println(Must(model.Detokenize(attnkit.TargetSide, made)))
}
