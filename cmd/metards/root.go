package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "metards",
		Short: "The route source of an Istio mesh's MetaProtocol proxies",
		Long: "metards compiles MetaRouters (routing rules for Dubbo, Thrift and other protocols carried by Aeraki's\n" +
			"MetaProtocol filter) into route tables and serves them over RDS to the proxies of an Istio mesh.",
		Version:      version,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range unknownVariables(cmd.Root(), os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "metards: the environment variable %s is ignored: it is no flag's\n", name)
			}
			return wrongUse(cmd, fromEnvironment(cmd.Flags(), os.LookupEnv))
		},
	}
	root.SetFlagErrorFunc(wrongUse)
	root.AddCommand(newServe(), newDemo(), newRender(), newValidate(), newExplain(), newEnvoyFilters(), newDevCerts(), newVersion())
	root.SetVersionTemplate(versionLine() + "\n")
	root.CompletionOptions.DisableDefaultCmd = true
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage += " [" + variable(f.Name) + "]" })
	}
	return root
}

// wrongUse gives the error of a flag or variable that cannot be read the exit code of a command's other wrong
// uses, so that a pipeline does not take it for a finding. For serve there is but one code.
func wrongUse(cmd *cobra.Command, err error) error {
	if err == nil || cmd.Name() == "serve" {
		return err
	}
	return &exitError{2, err}
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "METARDS_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line does not set.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(variable(f.Name))
		if f.Changed || !ok || failed != nil || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = fmt.Errorf("environment variable %s: %w", variable(f.Name), err)
		}
	})
	return failed
}

// ofKubernetes are the variables that a pod gets for each Service of its namespace, such as one named metards.
var ofKubernetes = regexp.MustCompile(`^METARDS_(.+_)?(SERVICE_(HOST|PORT)|PORT)(_|$)`)

// unknownVariables are the names in an environment that look like a flag's of any command and are none.
func unknownVariables(root *cobra.Command, environment []string) []string {
	known := map[string]bool{}
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[variable(f.Name)] = true })
	}
	var out []string
	for _, text := range environment {
		name, _, _ := strings.Cut(text, "=")
		if strings.HasPrefix(name, "METARDS_") && !known[name] && !ofKubernetes.MatchString(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
