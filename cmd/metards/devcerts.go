package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/metards/metards/pkg/tlsboot"
)

func newDevCerts() *cobra.Command {
	var trustDomain string
	proxy := tlsboot.IssueOptions{}
	cmd := &cobra.Command{
		Use:   "dev-certs DIR",
		Short: "Write throw-away certificates to try metards without a mesh",
		Long: "Write the certificates that a mesh's CA would give, to a new directory: server.pem for metards serve on this\n" +
			"machine, proxy.pem for a proxy of a namespace, each with its key, and root.pem, to which both chain. The\n" +
			"two are valid for a day, and nobody keeps the root's key: for another certificate make another directory.",
		Example: "  metards dev-certs certs --namespace web\n" +
			"  metards serve --dir examples/dubbo-canary --cert certs/server.pem --key certs/server-key.pem --root certs/root.pem",
		Args: exactlyOneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := writeDevCerts(cmd.OutOrStdout(), args[0], trustDomain, proxy); err != nil {
				return &exitError{2, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&trustDomain, "trust-domain", "cluster.local", "trust domain of the certificates")
	cmd.Flags().StringVarP(&proxy.Namespace, "namespace", "n", "web", "namespace of the proxy")
	cmd.Flags().StringVar(&proxy.ServiceAccount, "service-account", "default", "service account of the proxy")
	return cmd
}

func writeDevCerts(w io.Writer, dir, trustDomain string, proxy tlsboot.IssueOptions) error {
	ca, err := tlsboot.NewDevCA(trustDomain)
	if err != nil {
		return err
	}
	server := tlsboot.IssueOptions{
		Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	names := []string{"server", "proxy"}
	pairs := make([]*tlsboot.Pair, len(names))
	for i, options := range []tlsboot.IssueOptions{server, proxy} {
		if pairs[i], err = ca.Issue(options); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already: what it holds would be replaced by certificates of another root; remove it or name another", dir)
	} else if err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	for i, name := range names {
		if err := ca.WriteFiles(dir, name, pairs[i]); err != nil {
			return err
		}
		leaf := pairs[i].TLS.Leaf
		fmt.Fprintf(w, "%s: %s until %s\n", filepath.Join(dir, name+".pem"), leaf.URIs[0], leaf.NotAfter.Local().Format("2006-01-02 15:04"))
	}
	return nil
}
