// Text through a model.   translate MODEL.toml "text" [plugin folder, absolute]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"attnkit"
)

// The translation, and what the session then holds.
func translate(manifest, phrase, plugins string) (string, string, error) {
	runtime, err := attnkit.NewRuntime(attnkit.Options{PluginPath: plugins})
	if err != nil {
		return "", "", err
	}
	defer runtime.Close()
	model, err := attnkit.Open(runtime, manifest)
	if err != nil {
		return "", "", err
	}
	defer model.Close()
	ids, err := model.Tokenize(attnkit.SourceSide, phrase)
	if err != nil {
		return "", "", err
	}
	session, err := attnkit.NewSession(model, 0)
	if err != nil {
		return "", "", err
	}
	defer session.Close()
	if err := session.Read(attnkit.IDs(append(ids, model.Info().EndID)...), true); err != nil {
		return "", "", err
	}
	made, err := session.Generate(context.Background(), 0)
	if err != nil {
		return "", "", err
	}
	text, err := model.Detokenize(attnkit.TargetSide, made)
	if err != nil {
		return "", "", err
	}
	stats, err := session.Describe()
	return text, stats, err
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, "usage: translate MODEL.toml \"text\" [plugin folder]")
		os.Exit(2)
	}
	text, stats, err := translate(os.Args[1], os.Args[2], append(os.Args, "")[3])
	if err == nil {
		_, err = fmt.Printf("%s\n%s\n", text, stats)
	}
	var failed *attnkit.Error
	if errors.As(err, &failed) {
		for _, d := range failed.Diagnostics {
			kind := map[bool]string{true: "error", false: "warning"}[d.IsError]
			fmt.Fprintf(os.Stderr, "%s:%d:%d: %s[AK%d]: %s\n", os.Args[1], d.Line, d.Column, kind, d.Code, d.Message)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "translate:", err)
		os.Exit(1)
	}
}
