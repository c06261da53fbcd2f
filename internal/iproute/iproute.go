// Package iproute runs commands in the syntax of iproute2 for tests, on machines without iproute2.
// It uses another netlink library than package route, so that it verifies that package
// independently. It has the commands that tests use and refuses all others; only tests may import
// it.
package iproute

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// command is one of iproute2: an object, a verb, and what it does with the arguments after them.
type command struct {
	object, verb string
	run          func(*arguments) (string, error)
}

// commands are all that this package knows. A command without a verb shows the object.
var commands = []command{
	{"address", "show", showAddresses}, {"address", "add", changeAddress}, {"address", "change", changeAddress}, {"address", "del", changeAddress},
	{"link", "show", showLinks}, {"link", "add", addLink}, {"link", "set", setLink}, {"link", "del", deleteLink},
	{"mptcp", "endpoint", showEndpoints},
	{"neighbor", "add", changeNeighbor}, {"neighbor", "replace", changeNeighbor}, {"neighbor", "del", changeNeighbor},
	{"nexthop", "show", showNexthops}, {"nexthop", "add", changeNexthop}, {"nexthop", "replace", changeNexthop}, {"nexthop", "del", changeNexthop},
	{"route", "show", showRoutes}, {"route", "get", getRoute}, {"route", "add", changeRoute}, {"route", "replace", changeRoute},
	{"route", "append", changeRoute}, {"route", "del", changeRoute},
	{"rule", "show", showRules}, {"rule", "add", changeRule}, {"rule", "del", changeRule},
}

// Run does what the commands say, one on each line or between semicolons, in the network namespace
// of the calling thread: "-6 route show table 101". An "ip" before a command and a "-6" may be left
// out; "-4" selects IPv4. It returns what the commands show, in the format of iproute2 6.1 as far as this package
// knows it. The first that fails ends it.
func Run(text string) (string, error) {
	var out strings.Builder
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == ';' }) {
		words := strings.Fields(line)
		family := uint8(unix.AF_INET6)
		for len(words) > 0 && (words[0] == "ip" || words[0] == "-6" || words[0] == "-4") {
			if words[0] == "-4" {
				family = unix.AF_INET
			}
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		shown, err := execute(family, words)
		out.WriteString(shown)
		if err != nil {
			return out.String(), fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
	}
	return out.String(), nil
}

// In is Run in the named network namespace.
func In(namespace, text string) (out string, err error) {
	err = netns.Do(namespace, func() (err error) {
		out, err = Run(text)
		return err
	})
	return out, err
}

func execute(family uint8, words []string) (string, error) {
	verb := "show"
	if len(words) > 1 {
		verb = words[1]
	}
	i := slices.IndexFunc(commands, func(c command) bool { return strings.HasPrefix(c.object, words[0]) && c.verb == verb })
	if i < 0 {
		return "", fmt.Errorf("%q is not a command of this package", strings.Join(words[:min(2, len(words))], " "))
	}
	a := &arguments{family: family, verb: verb, words: words[min(2, len(words)):]}
	out, err := commands[i].run(a)
	if err == nil {
		err = a.end()
	}
	return out, err
}

// arguments are the words after a command. The first fault is kept.
type arguments struct {
	family uint8
	verb   string
	words  []string
	err    error
}

// next takes the next word, empty when there is none.
func (a *arguments) next() string {
	if len(a.words) == 0 {
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// flag takes a word from anywhere, and says whether it was there.
func (a *arguments) flag(word string) bool {
	i := slices.Index(a.words, word)
	if i >= 0 {
		a.words = slices.Delete(a.words, i, i+1)
	}
	return i >= 0
}

// value takes what follows one of the keys, from anywhere; empty when none is there.
func (a *arguments) value(keys ...string) string {
	i := slices.IndexFunc(a.words, func(w string) bool { return slices.Contains(keys, w) })
	if i < 0 {
		return ""
	}
	if i+1 == len(a.words) {
		a.fail("%q needs a value", a.words[i])
		return ""
	}
	v := a.words[i+1]
	a.words = slices.Delete(a.words, i, i+2)
	return v
}

// number takes the number that follows one of the keys; zero when none is there.
func (a *arguments) number(keys ...string) int {
	text := a.value(keys...)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		a.fail("%s %q is no number", keys[0], text)
	}
	return int(n)
}

// table takes the routing table that follows one of the keys; zero when none is there.
func (a *arguments) table(keys ...string) int {
	if text := a.value(keys...); text != "" {
		return a.tableNumber(text)
	}
	return 0
}

func (a *arguments) tableNumber(text string) int {
	for n, name := range tables {
		if name == text {
			return n
		}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		a.fail("table %q is unknown", text)
	}
	return int(n)
}

// group takes a key, its value, and what follows it at once of pairs of other keys and their
// values.
func (a *arguments) group(key string, others ...string) (value string, pairs map[string]string) {
	at := slices.Index(a.words, key)
	value = a.value(key)
	pairs = map[string]string{}
	for at >= 0 && at+1 < len(a.words) && slices.Contains(others, a.words[at]) && pairs[a.words[at]] == "" {
		pairs[a.words[at]] = a.words[at+1]
		a.words = slices.Delete(a.words, at, at+2)
	}
	return value, pairs
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

// end returns the first fault; unused words are one.
func (a *arguments) end() error {
	if len(a.words) > 0 {
		a.fail("%q is not understood", strings.Join(a.words, " "))
	}
	return a.err
}
