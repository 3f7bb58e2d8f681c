package main

import (
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// meshFlags are what every command that compiles tables needs to know.
type meshFlags struct {
	settings mesh.Settings
	limits   routes.Limits
	files    filewatch.Limits
}

func (m *meshFlags) register(f *pflag.FlagSet) {
	m.registerSettings(f)
	m.registerLimits(f)
}

func (m *meshFlags) registerSettings(f *pflag.FlagSet) {
	f.StringVar(&m.settings.RootNamespace, "root-namespace", "istio-system", "root namespace of the mesh")
	f.StringVar(&m.settings.ClusterDomain, "cluster-domain", "cluster.local", "domain of the cluster, which completes short host names")
	f.StringSliceVar(&m.settings.DefaultServiceExportTo, "default-service-export-to", nil,
		"namespaces that see ServiceEntries without exportTo, as in the mesh's defaultServiceExportTo (default: all)")
	f.StringSliceVar(&m.settings.DefaultRuleExportTo, "default-destination-rule-export-to", nil,
		"namespaces that see DestinationRules without exportTo, as in the mesh's defaultDestinationRuleExportTo (default: all)")
}

func (m *meshFlags) registerLimits(f *pflag.FlagSet) {
	f.IntVar(&m.limits.RegexLength, "max-regex-length", 4096, "longest regex of a MetaRouter, in bytes")
	f.IntVar(&m.limits.RegexProgram, "max-regex-program", 10_000, "largest compiled regex of a MetaRouter, in instructions as Go's regexp counts them")
	f.IntVar(&m.limits.Entries, "max-entries", 50_000, "most hosts, routes, destinations, attributes and mutations of one MetaRouter together")
	f.Int64Var(&m.files.FileSize, "max-file-size", 16<<20, "largest file that is read from the directory, in bytes")
}

// newStore returns a store that waits for the given lists.
func (m *meshFlags) newStore(board *problem.Board, expect []mesh.Feed) (*mesh.Store, error) {
	return mesh.NewStore(mesh.Options{
		Settings: m.settings, Expect: expect, Problems: board,
		Judge: func(o *mesh.Object) []problem.Problem { return routes.Validate(o, m.limits) },
	})
}

// loaded is a directory as a fresh start would see it.
type loaded struct {
	store   *mesh.Store
	board   *problem.Board
	reading *filewatch.Reading
}

// load reads a directory once.
func (m *meshFlags) load(dir string) (*loaded, error) {
	reading, err := filewatch.Read(dir, m.files)
	if err != nil {
		return nil, err
	}
	board := problem.NewBoard(slog.New(slog.DiscardHandler))
	store, err := m.newStore(board, feedsOf(mesh.Directory, mesh.Kinds()...))
	if err != nil {
		return nil, err
	}
	board.Set("files", reading.Problems)
	store.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: reading.Objects})
	return &loaded{store, board, reading}, nil
}
