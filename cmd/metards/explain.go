package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/metards/metards/pkg/explain"
)

func newExplain() *cobra.Command {
	var m meshFlags
	var q explain.Question
	var dir, server, root string
	var attributes []string
	cmd := &cobra.Command{
		Use:   "explain HOST[:PORT] --namespace NS (--dir DIR | --server ADDR) [--attribute NAME=VALUE ...]",
		Short: "Say where a request goes, and why not elsewhere",
		Long: "Say which route a request with the given attributes takes in the tables of a namespace's proxies, why the\n" +
			"earlier routes do not match, and to which clusters with what weights it goes. Without attributes, the tables\n" +
			"in words. The tables are those that a directory gives, or those of a running server, which is asked on its\n" +
			"admin port; that answers peers on its own machine, so reach it with kubectl port-forward.",
		Example: "  metards explain orders.shop.svc.cluster.local --dir examples/dubbo-canary --namespace web\n" +
			"  metards explain orders.shop.svc.cluster.local:20880 --dir examples/dubbo-canary --namespace web --attribute method=getOrder\n" +
			"  metards explain orders.shop.svc.cluster.local --server 127.0.0.1:15014 --namespace web --attribute tier=beta",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &exitError{2, fmt.Errorf("want exactly one HOST or HOST:PORT, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.View.Namespace == "" || (dir == "") == (server == "") {
				return &exitError{2, fmt.Errorf("--namespace and one of --dir and --server are required")}
			}
			if q.Host, q.Port, err = explain.ParseHost(args[0]); err != nil {
				return &exitError{2, err}
			}
			if q.Attributes, err = explain.ParseAttributes(attributes); err != nil {
				return &exitError{2, fmt.Errorf("--attribute: %w", err)}
			}
			if server != "" {
				return askServer(cmd.Context(), cmd.OutOrStdout(), server, root, q)
			}
			l, err := m.load(dir)
			if err != nil {
				return &exitError{2, err}
			}
			return l.answer(cmd.OutOrStdout(), q)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of ServiceEntries, DestinationRules and MetaRouters")
	cmd.Flags().StringVar(&server, "server", "", "HOST:PORT of a running server's admin port, or its URL")
	cmd.Flags().StringVar(&root, "server-root", "", "PEM file of the roots that the certificate of a server with --admin-tls chains to, whatever name it is for (default: the machine's roots, and the name must be that of the URL)")
	cmd.Flags().StringVarP(&q.View.Namespace, "namespace", "n", "", "namespace of the proxy that sends the request (required)")
	cmd.Flags().BoolVar(&q.View.Gateway, "gateway", false, "the proxy is a gateway (node type router)")
	cmd.Flags().StringArrayVarP(&attributes, "attribute", "a", nil, "NAME=VALUE of the request, as in method=sayHello; may be given several times")
	m.register(cmd.Flags())
	return cmd
}

// answer answers from the directory.
func (l *loaded) answer(w io.Writer, q explain.Question) error {
	tables, _ := l.compileHost(q.View, q.Host)
	answers := make([]explain.Table, len(tables))
	for i, t := range tables {
		answers[i].Plan = t.plan
	}
	var text bytes.Buffer
	if err := q.Answer(&text, answers); err != nil {
		return &exitError{1, fmt.Errorf("%w; see metards render", err)}
	}
	_, err := text.WriteTo(w)
	return err
}
