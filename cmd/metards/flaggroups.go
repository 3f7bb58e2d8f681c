package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is what the help of a command with many flags shows together.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// inGroup is the annotation of a flag with its group's title.
const inGroup = "group"

// addGroup adds flags as a group, in the order in which they are registered.
func addGroup(to *pflag.FlagSet, title string, register func(*pflag.FlagSet)) {
	set := pflag.NewFlagSet(title, pflag.ContinueOnError)
	set.SortFlags, to.SortFlags = false, false
	register(set)
	set.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{inGroup: {title}} })
	to.AddFlagSet(set)
}

// groupsOf returns the groups of a command's flags, in their order; flags of none are a group without a title.
func groupsOf(f *pflag.FlagSet) []flagGroup {
	var out []flagGroup
	f.VisitAll(func(x *pflag.Flag) {
		title := ""
		if of := x.Annotations[inGroup]; len(of) > 0 {
			title = of[0]
		}
		i := slices.IndexFunc(out, func(g flagGroup) bool { return g.title == title })
		if i < 0 {
			set := pflag.NewFlagSet(title, pflag.ContinueOnError)
			set.SortFlags = f.SortFlags
			i, out = len(out), append(out, flagGroup{title, set})
		}
		out[i].flags.AddFlag(x)
	})
	return out
}

// helpWidth is where lines of grouped flags are wrapped.
const helpWidth = 120

// groupedUsage is cobra's usage of a command without sub-commands, with the flags in groups.
func groupedUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range groupsOf(cmd.Flags()) {
		fmt.Fprintf(w, "\n%s:\n%s", cmp.Or(g.title, "Flags"), g.flags.FlagUsagesWrapped(helpWidth))
	}
	return nil
}
