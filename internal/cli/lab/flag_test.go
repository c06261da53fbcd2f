package lab

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabane/tabane/internal/cli"
)

// flagArguments are arguments of commands that need some.
var flagArguments = map[string][]string{
	"cc load": {"lia"}, "fetch": {"http://[::1]:9/"}, "mptcpify": {"--", "true"}, "status routes": {"::/0"}, "diff": {"a", "b"},
	"http3 fetch": {"https://[::1]:9/bytes/1"}, "lab capture": {"one", "a.pcapng"}, "lab exec": {"one", "--", "true"}, "lab merge": {"epe-steady", "a"},
	"lab run": {"epe-steady"}, "lab set": {"a", "rate=1Mbit/s"}, "lab up": {"epe-steady"}, "load": {"http://[::1]:9/"}, "measure export": {"a"},
	"measure report": {"a"}, "measure run": {"--out", "out", "http://[::1]:9/"}, "papers run": {"D8"}, "qoe withdraw": {"1"}, "reseq": {"a.pcap"}, "sim merge": {"a", "b"},
	"sim run": {"reseq-burst"}, "sim sweep": {"reseq-burst", "--set", "rbuf=1kB", "--out", "a.csv"}, "help config": {"edge"},
	"gateway init": {"--vps", "--dry-run", "--dir", "."}, "gateway invite": {"--dir", "."}, "gateway join": {"--dry-run", "--dir", "."},
}

// flagValues are values that flags with a syntax of their own do not accept: with numbers only
// those that are in range of the flag's type. Other flags with texts are names, files or directories.
var flagValues = map[string]string{
	"--address": "x y", "--bytes": "much", "--max-bytes": "-1", "--object-size": "0", "--total-bytes": "much", "--trial-bytes": "0", "--sort-memory": "x",
	"--rate": "fast", "--listen": "here", "--status": "here", "--edge": "here", "--metrics": "here", "measure serve --peer": "x", "--line": "x=y=z",
	"--prefix": "x", "--limit": "x", "--rd": "x", "--rt": "x", "--table": "x", "--progress": "loud", "--how": "x", "--set": "x", "--compare": "x", "--family": "x",
	"--routers": "x", "--kind": "x", "--backend": "x", "--start": "x", "--shard": "x", "--metric": "x", "--modes": "x", "--service": "x", "--stream": "x",
	"--constants": "x", "--log-level": "x", "--log-format": "x", "--traffic": "x", "--transport": "x", "--case": "x",
}

// flagsOfNames are flags with names, files and directories.
var flagsOfNames = []string{
	"--config", "--name", "--interface", "--congestion", "--output", "--dir", "--out", "--replace", "--key", "--chromium", "--lab", "--summary", "--cacert", "--resume",
	"--answers", "--csv", "--figures", "--pcap", "--report", "--ns2", "--from", "--lan", "--peer", "--kernel",
}

// TestFlags gives each flag of each command values that it does not accept. The error is a line that
// has the flag, the value, and what is accepted, and nothing is done before.
func TestFlags(t *testing.T) {
	t.Chdir(t.TempDir())
	needs := map[string][]string{"sim worlds --constants": {"--ablate"}, "sim worlds --shard": {"--csv", "a.csv"}, "measure run --object-size": {"--objects", "1"}}
	for _, p := range []struct {
		root *cobra.Command
		run  func(context.Context, cli.Options) int
	}{{cli.Command(cli.Options{}), cli.Run}, {Command(cli.Options{}), Run}} {
		walkCommands(p.root, func(c *cobra.Command) {
			if c.DisableFlagParsing { // handed over
				return
			}
			_, path, _ := strings.Cut(c.CommandPath(), " ")
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				for _, value := range badValues(t, path, f) {
					refuses(t, p.run, path, "--"+f.Name, value, needs[path+" --"+f.Name])
				}
			})
		})
	}
}

func walkCommands(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, s := range c.Commands() {
		walkCommands(s, visit)
	}
}

func badValues(t *testing.T, path string, f *pflag.Flag) []string {
	t.Helper()
	switch f.Value.Type() {
	case "bool":
		return []string{"x"}
	case "int":
		return []string{"x", "", "1.5", "-1", "9999999999999999999999"}
	case "uint64":
		return []string{"x", "-1", "9999999999999999999999"}
	case "uint16":
		return []string{"x", "-1", "0", "65536"}
	case "float64":
		return []string{"x", "NaN", "-1", "Inf", "1e999"}
	case "duration":
		return []string{"x", "10", "-1s", "9999999h"}
	}
	value, structured := flagValues[path+" --"+f.Name]
	if !structured {
		value, structured = flagValues["--"+f.Name]
	}
	switch {
	case structured:
		return []string{value}
	case !slices.Contains(flagsOfNames, "--"+f.Name):
		t.Errorf("%s --%s: flagValues has no value that it refuses", path, f.Name)
	}
	return nil
}

// refuses checks that a command refuses a value of a flag.
func refuses(t *testing.T, run func(context.Context, cli.Options) int, path, flag, value string, beside []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	args := append(strings.Fields(path), flag+"="+value)
	args = slices.Concat(args, beside, flagArguments[path])
	var out, err bytes.Buffer
	code := run(ctx, cli.Options{Args: args, Out: &out, Err: &err})
	text := strings.TrimSuffix(err.String(), "\n")
	named := strings.Contains(text, strconv.Quote(value)) || strings.Contains(text, value) && value != ""
	switch {
	case code != 2, strings.Contains(text, "\n"), out.Len() > 0:
		t.Errorf("%s %s=%s: exit code %d, output %q, error %q", path, flag, value, code, out.String(), text)
	case !strings.Contains(text, strings.TrimPrefix(flag, "--")), !named, strings.Contains(text, "strconv"), strings.Contains(text, "parsing"), strings.Contains(text, "time: "):
		t.Errorf("%s %s=%s: %s", path, flag, value, text)
	}
}

// TestObjectFlags: flags that have no effect with --objects are refused.
func TestObjectFlags(t *testing.T) {
	for _, flag := range []string{"--runs=3", "--connections=200", "--change-every=150", "--start=best"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out, err bytes.Buffer
		if code := Run(ctx, cli.Options{Args: []string{"sim", "networks", "--objects=100", flag}, Out: &out, Err: &err}); code != 2 || !strings.Contains(err.String(), "goes with none of") {
			t.Errorf("%s: exit code %d, %q", flag, code, err.String())
		}
	}
}
