package cli

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/role"
)

// completeTimeout bounds what a shell waits for names.
const completeTimeout = 500 * time.Millisecond

// Names returns the names of something on this host, none if they are not known.
type Names func(ctx context.Context) []string

// Complete completes the words of a command line: each by the names of its position, and those
// after the last one by none.
func Complete(positions ...Names) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(positions) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return positions[len(args)].beginningWith(c.Context(), word), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteAll completes all words alike.
func CompleteAll(names Names) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return names.beginningWith(c.Context(), word), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteNameOrFile completes the first word by names, or by files that are YAML once it is a
// path.
func CompleteNameOrFile(names Names) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if found := names.beginningWith(c.Context(), word); len(found) > 0 && !strings.ContainsAny(word, "./") {
			return found, cobra.ShellCompDirectiveNoFileComp
		}
		return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
	}
}

// CompleteFlag completes the value of a flag that the command has.
func CompleteFlag(c *cobra.Command, flag string, names Names) {
	if err := c.RegisterFlagCompletionFunc(flag, CompleteAll(names)); err != nil {
		panic("BUG: " + err.Error())
	}
}

func (n Names) beginningWith(ctx context.Context, word string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	list := slices.DeleteFunc(n(ctx), func(name string) bool { return name == "" || !strings.HasPrefix(name, word) })
	slices.Sort(list)
	return slices.Compact(list)
}

// Either are the names of all of these.
func Either(all ...Names) Names {
	return func(ctx context.Context) (list []string) {
		for _, n := range all {
			list = append(list, n(ctx)...)
		}
		return list
	}
}

// answeringDaemons are the daemons of this host that answer; if none does, all that there are.
func answeringDaemons(ctx context.Context) []string {
	var list []string
	eachAnswer(ctx, "/status", func(daemon string, _ []byte) { list = append(list, daemon) })
	if len(list) == 0 {
		return statusNames()
	}
	return list
}

// eachAnswer calls f with what each daemon of this host answers.
func eachAnswer(ctx context.Context, path string, f func(daemon string, body []byte)) {
	for _, r := range role.All() {
		if !r.DefaultStatus().IsValid() {
			continue
		}
		if body, err := ask(ctx, role.Here(r.DefaultStatus()), path); err == nil {
			f(r.Name, body)
		}
	}
}

// statusLists are the lists of a status that have names.
type statusLists struct {
	Peers    []struct{ Name string }
	Sessions []struct{ Neighbor string }
}

// namesIn are the names in the lists of the daemons of this host that are of interest.
func namesIn(ctx context.Context, of func(daemon string) bool) []string {
	var list []string
	eachAnswer(ctx, "/status", func(daemon string, body []byte) {
		var s statusLists
		if err := json.Unmarshal(body, &s); err != nil || !of(daemon) {
			return
		}
		for _, o := range s.Sessions {
			list = append(list, o.Neighbor)
		}
		for _, p := range s.Peers {
			list = append(list, p.Name)
		}
	})
	return list
}

// neighborNames are those of BGP neighbors, which are called after the egress peer or by address.
func neighborNames(ctx context.Context) []string {
	return namesIn(ctx, func(daemon string) bool { return daemon != role.Gateway })
}

// gatewayPeers are those of this host's gateway, which has no sessions of BGP.
func gatewayPeers(ctx context.Context) []string {
	return namesIn(ctx, func(daemon string) bool { return daemon == role.Gateway })
}

// clientNetworks are those of this host's server whose delivery is not the best path.
func clientNetworks(ctx context.Context) []string {
	var list []string
	eachAnswer(ctx, networksPath+"?limit=100", func(_ string, body []byte) {
		var s struct{ List []struct{ Prefix string } }
		if err := json.Unmarshal(body, &s); err != nil {
			return
		}
		for _, n := range s.List {
			list = append(list, n.Prefix)
		}
	})
	return list
}

// interfaceNames are those of this host, without loopback.
func interfaceNames(context.Context) []string {
	var list []string
	all, _ := net.Interfaces() // without them there is nothing to complete
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			list = append(list, i.Name)
		}
	}
	return list
}
