package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestMistypedVariablesAreToldAndThoseOfKubernetesAreNot(t *testing.T) {
	got := unknownVariables(newRoot(), []string{
		"METARDS_DIR=rules", "METARDS_LISTEN_ADDR=:1", "METARDS_OUTPTU=json", "METARDSDIR=x", "PATH=/bin", "METARDS_",
		// what a pod gets for the Services metards and metards-two of its namespace
		"METARDS_SERVICE_HOST=10.0.0.1", "METARDS_SERVICE_PORT=15010", "METARDS_SERVICE_PORT_GRPC_XDS=15010", "METARDS_PORT=tcp://10.0.0.1:15010",
		"METARDS_PORT_15010_TCP=tcp://10.0.0.1:15010", "METARDS_PORT_15010_TCP_ADDR=10.0.0.1", "METARDS_TWO_SERVICE_HOST=10.0.0.2", "METARDS_TWO_PORT=x",
	})
	if want := []string{"METARDS_", "METARDS_LISTEN_ADDR", "METARDS_OUTPTU"}; !slices.Equal(got, want) {
		t.Errorf("told are %q, want %q", got, want)
	}
}

func TestTheHelpOfServeHasEveryFlagOnceInAGroup(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"serve", "--help"}, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	serve, _, err := newRoot().Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	serve.Flags().VisitAll(func(f *pflag.Flag) {
		if n := strings.Count(stdout.String(), " --"+f.Name+" "); n < 1 {
			t.Errorf("--%s is not in the help", f.Name)
		}
		if len(f.Annotations[inGroup]) != 1 {
			t.Errorf("--%s is in no group", f.Name)
		}
	})
	for _, title := range []string{"Where the mesh is read from:", "Limits, none of which"} {
		if strings.Count(stdout.String(), title) != 1 {
			t.Errorf("%q is not there once", title)
		}
	}
}
