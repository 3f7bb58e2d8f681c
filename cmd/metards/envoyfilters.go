package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metards/metards/pkg/envoyfilter"
	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// envoyFilterFlags are those of the command.
type envoyFilterFlags struct {
	options       envoyfilter.Options
	filter        string
	codecs        []string
	rootNamespace string
	clusterDomain string
	kubeconfig    string
	from          []string // namespaces of the services
	files         filewatch.Limits
	strict        bool
}

func newEnvoyFilters() *cobra.Command {
	var o envoyFilterFlags
	cmd := &cobra.Command{
		Use:   "envoyfilters [DIR]",
		Short: "Print the EnvoyFilters that make proxies ask for tables",
		Long: "Print the EnvoyFilters that put a filter which asks metards for its table in place of tcp_proxy, for each MetaProtocol\n" +
			"port of the ServiceEntries and Services of a directory or, without one, of the API server. They are for kubectl apply\n" +
			"and for GitOps. docs/envoyfilters.md says what is in them and what to look out for.\n\n" +
			"A service that cannot have a filter, for example because no address names its listener, is a warning on standard\n" +
			"error, and the others are printed. Exit code: 0 all is printed (there may be warnings), 1 an object is faulty, or there\n" +
			"is nothing to print, 2 the directory or the API server could not be read, or a wrong use.",
		Example: "  metards envoyfilters examples\n" +
			"  metards envoyfilters --kubeconfig ~/.kube/config > filters.yaml && kubectl apply -f filters.yaml\n" +
			"  metards envoyfilters examples --filter http",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &exitError{2, fmt.Errorf("want one directory, or none for the API server, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(); err != nil {
				return &exitError{2, err}
			}
			services, problems, err := o.read(cmd.Context(), args)
			if err != nil {
				return &exitError{2, err}
			}
			documents, found := envoyfilter.Make(services, o.options)
			if err := envoyfilter.Write(cmd.OutOrStdout(), documents); err != nil {
				return err
			}
			problems = problem.Sorted(append(problems, found...))
			printProblems(cmd.ErrOrStderr(), problems)
			if len(documents) == 0 {
				return &exitError{1, o.nothing(len(services))}
			}
			if problem.HasError(problems) || o.strict && len(problems) > 0 {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	o.register(cmd)
	return cmd
}

func (o *envoyFilterFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.options.Namespace, "filter-namespace", "", "namespace of the outbound EnvoyFilters (default: the root namespace, where they are for the proxies of all namespaces)")
	f.StringVar(&o.filter, "filter", "metaprotocol", "metaprotocol, or http: an HTTP connection manager, for tests with a stock Envoy")
	f.StringArrayVar(&o.codecs, "codec", nil, "NAME=CODEC of an application protocol beside dubbo and thrift, as in myproto=aeraki.meta_protocol.codec.myproto; may be given several times")
	f.StringVar(&o.options.Cluster, "cluster", "metards", "cluster of the proxies' bootstrap that tables come from")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server, if no directory is given (default: the cluster around us)")
	f.StringSliceVar(&o.from, "service-namespaces", nil, "namespaces whose services are looked at (default: all)")
	f.StringVar(&o.rootNamespace, "root-namespace", "istio-system", "root namespace of the mesh")
	f.StringVar(&o.clusterDomain, "cluster-domain", "cluster.local", "domain of the cluster, in which the hosts of Services end")
	f.Int64Var(&o.files.FileSize, "max-file-size", 16<<20, "largest file that is read from the directory, in bytes")
	f.BoolVar(&o.strict, "strict", false, "exit with 1 for warnings too")
}

// complete checks the flags and makes the options of them.
func (o *envoyFilterFlags) complete() error {
	switch o.filter {
	case "metaprotocol", "http":
		o.options.HTTP = o.filter == "http"
	default:
		return fmt.Errorf("--filter %q is not known: use metaprotocol or http", o.filter)
	}
	if o.options.Cluster == "" {
		return errors.New("--cluster must not be empty: it is the cluster of the proxies' bootstrap that tables come from")
	}
	o.options.Namespace = cmp.Or(o.options.Namespace, o.rootNamespace)
	o.options.Codecs = envoyfilter.Codecs()
	for _, text := range o.codecs {
		name, codec, ok := strings.Cut(text, "=")
		if !ok || name == "" || codec == "" {
			return fmt.Errorf("--codec %q is not NAME=CODEC", text)
		}
		if strings.Contains(name, "-") {
			return fmt.Errorf("--codec %q: the name is the third part of a port name, which has no hyphen", text)
		}
		o.options.Codecs[name] = codec
	}
	return nil
}

// nothing says why nothing is printed.
func (o *envoyFilterFlags) nothing(services int) error {
	switch {
	case services > 0:
		return fmt.Errorf("nothing to print: of %s none has a MetaProtocol port (named like tcp-metaprotocol-dubbo) that can have a filter", count(services, "service"))
	case len(o.from) > 0:
		return fmt.Errorf("nothing to print: no ServiceEntry or Service was found in the namespaces %v", o.from)
	}
	return errors.New("nothing to print: no ServiceEntry or Service was found")
}

// read reads the services from a directory, or from the API server if none is given.
func (o *envoyFilterFlags) read(ctx context.Context, args []string) ([]envoyfilter.Service, []problem.Problem, error) {
	if len(args) == 0 {
		return o.readCluster(ctx)
	}
	reading, trees, err := filewatch.ReadTrees(args[0], o.files)
	if err != nil {
		return nil, nil, err
	}
	d := &directory{flags: o, problems: reading.Problems, counts: map[*mesh.Object]bool{}, seen: map[problem.Object]filewatch.Tree{}}
	for _, object := range reading.Objects {
		d.counts[object] = true
		d.problems = append(d.problems, object.Faults...)
	}
	for _, t := range trees {
		d.take(t)
	}
	return d.services, d.problems, nil
}

// directory collects the services of a directory.
type directory struct {
	flags    *envoyFilterFlags
	counts   map[*mesh.Object]bool // of those with one key, the one that comes first
	seen     map[problem.Object]filewatch.Tree
	services []envoyfilter.Service
	problems []problem.Problem
}

func (d *directory) take(t filewatch.Tree) {
	switch {
	case t.Object != nil:
		if t.Object.Kind != mesh.KindServiceEntry || t.Object.Spec == nil || !d.counts[t.Object] {
			return
		}
	case t.Value["kind"] != "Service" || t.Value["apiVersion"] != "v1":
		return
	}
	s, err := envoyfilter.Decode(t.Value, d.flags.clusterDomain)
	if err != nil {
		d.problems = append(d.problems, undecodable(t.Value, err, t.File, t.Line))
		return
	}
	if first, again := d.seen[s.Object]; again {
		d.problems = append(d.problems, problem.Problem{
			Severity: problem.Error, Object: s.Object, Reason: problem.Duplicate, File: t.File, Line: t.Line,
			Detail: fmt.Sprintf("another object of this name comes first, at %s:%d", first.File, first.Line), Consequence: "this one is not used",
		})
		return
	}
	d.seen[s.Object] = t
	if s.File, s.Line = t.File, t.Line; d.flags.wants(s.Namespace) {
		d.services = append(d.services, *s)
	}
}

func (o *envoyFilterFlags) wants(namespace string) bool {
	return len(o.from) == 0 || slices.Contains(o.from, namespace)
}

// undecodable is the Problem of an object that no Service could be made of.
func undecodable(tree map[string]any, err error, file string, line int) problem.Problem {
	meta, _ := tree["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	return problem.Problem{
		Severity: problem.Error, Reason: problem.Undecodable, Detail: err.Error(), File: file, Line: line, Consequence: "it has no EnvoyFilter",
		Object: problem.Object{Kind: fmt.Sprint(tree["kind"]), Namespace: cmp.Or(namespace, mesh.DefaultNamespace), Name: name},
	}
}
