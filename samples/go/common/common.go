// Package common is what the samples share: a model from the command line, and a main that ends with the reason.
package common

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"attnkit"
)

// A reason to end the program, which Fail panics with.
type failure struct{ reason error }

// Run is a sample's main: f, which needs n arguments.  Where Fail ended it, and what it deferred has run, it gives the reason.
func Run(n int, usage string, f func()) {
	if len(os.Args) <= n {
		fmt.Fprintf(os.Stderr, "usage: %s %s\n", filepath.Base(os.Args[0]), usage)
		os.Exit(2)
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			fmt.Fprintln(os.Stderr, p.reason)
			os.Exit(1)
		default:
			panic(p)
		}
	}()
	f()
}

// Fail ends f of Run with the reason, if there is one.
func Fail(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must returns the value of a call that did not fail.
func Must[T any](value T, err error) T {
	Fail(err)
	return value
}

// OpenManifest returns the model of the first argument.
func OpenManifest() *attnkit.Model {
	runtime := Must(attnkit.NewRuntime(attnkit.Options{}))
	defer runtime.Close()
	return Must(attnkit.Open(runtime, os.Args[1]))
}

// Open returns the model of the first argument and the second argument's ids.
func Open(streaming bool) (*attnkit.Model, []int32) {
	toml := string(Must(os.ReadFile(os.Args[1])))
	if streaming && !regexp.MustCompile(`\n\s*\[stream\]`).MatchString(toml) { // so that a source may grow
		toml += "\n[stream]\nreplay = true\n"
	}
	runtime := Must(attnkit.NewRuntime(attnkit.Options{}))
	defer runtime.Close()
	model := Must(attnkit.FromText(runtime, toml, filepath.Dir(os.Args[1])))
	return model, append(Must(model.Tokenize(attnkit.SourceSide, os.Args[2])), model.Info().EndID)
}
