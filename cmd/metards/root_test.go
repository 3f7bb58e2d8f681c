package main

import (
	"slices"
	"testing"
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
