// Package common is what the samples share: a model from the command line, and an end with the reason.
package common

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"attnkit"
)

// Fail ends the program with the reason, if there is one.
func Fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Must returns the value of a call that did not fail.
func Must[T any](value T, err error) T {
	Fail(err)
	return value
}

// OpenManifest returns the model of the first argument, which a second one follows.
func OpenManifest() *attnkit.Model {
	checkArguments()
	runtime := Must(attnkit.NewRuntime(attnkit.Options{}))
	defer runtime.Close()
	return Must(attnkit.Open(runtime, os.Args[1]))
}

func checkArguments() {
	if len(os.Args) < 3 {
		Fail(fmt.Errorf("usage: %s MODEL.toml \"text\" ...", filepath.Base(os.Args[0])))
	}
}

// Open returns the model of the first argument and the second argument's ids.
func Open(streaming bool) (*attnkit.Model, []int32) {
	checkArguments()
	toml := string(Must(os.ReadFile(os.Args[1])))
	if streaming && !regexp.MustCompile(`\n\s*\[stream\]`).MatchString(toml) { // so that a source may grow
		toml += "\n[stream]\nreplay = true\n"
	}
	runtime := Must(attnkit.NewRuntime(attnkit.Options{}))
	defer runtime.Close()
	model := Must(attnkit.FromText(runtime, toml, filepath.Dir(os.Args[1])))
	return model, append(Must(model.Tokenize(attnkit.SourceSide, os.Args[2])), model.Info().EndID)
}
