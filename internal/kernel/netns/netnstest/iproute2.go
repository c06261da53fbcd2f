package netnstest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// IP runs commands of ip(8) in a namespace, or in that of the calling thread if it has no name, one
// on each line or between semicolons, and returns what they show: "link set lo up; -4 route show".
// The word "ip" may be in front. A route, rule or nexthop is of IPv6 unless it begins with "-4" or
// its first address is of IPv4. The first command that fails fails the test. Addresses are shown on
// one line each.
func IP(t testing.TB, namespace, commands string) string {
	t.Helper()
	out, err := TryIP(t, namespace, commands)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryIP is IP, but returns the error of the first command that fails, and what those before it have
// shown.
func TryIP(t testing.TB, namespace, commands string) (string, error) {
	t.Helper()
	program := programs.Need(t, "ip")
	var all strings.Builder
	for command := range strings.FieldsFuncSeq(commands, func(r rune) bool { return r == '\n' || r == ';' }) {
		args := arguments(command)
		if len(args) == 0 {
			continue
		}
		out, err := output(namespace, program, args...)
		if err != nil && strings.Contains(err.Error(), "FIB table does not exist") {
			err = nil // it has no routes
		}
		all.WriteString(out)
		if err != nil {
			return all.String(), err
		}
	}
	return all.String(), nil
}

// arguments are those of ip for a command.
func arguments(command string) []string {
	words := strings.Fields(command)
	if len(words) > 0 && words[0] == "ip" {
		words = words[1:]
	}
	if len(words) == 0 || strings.HasPrefix(words[0], "-") {
		return words
	}
	show := len(words) == 1 || words[1] == "show"
	switch {
	case strings.HasPrefix(words[0], "addr") && show:
		return append([]string{"-oneline"}, words...)
	case words[0] == "route", words[0] == "rule", words[0] == "nexthop" && !show:
	default:
		return words
	}
	for _, w := range words {
		w, _, _ = strings.Cut(w, "/")
		if a, err := netip.ParseAddr(w); err == nil {
			if a.Is4() {
				return words
			}
			break
		}
	}
	return append([]string{"-6"}, words...)
}

// spaces are those that a program prints at the end of a line and between empty fields.
var spaces = regexp.MustCompile(` +\n| {2,}`)

// output runs a program in a namespace and returns what it prints, with single spaces. Its error
// says what it has been asked, and what it complains about.
func output(namespace, program string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	start := cmd.Start
	if namespace != "" {
		start = func() error { return netns.Start(namespace, cmd) }
	}
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return spaces.ReplaceAllStringFunc(out.String(), func(s string) string {
		if strings.HasSuffix(s, "\n") {
			return "\n"
		}
		return " "
	}), err
}

// Monitor watches the IPv6 routes, the rules and the nexthop objects of a namespace. The function
// that it returns ends that and returns what has changed, as `ip monitor` prints it.
func Monitor(t testing.TB, namespace string) (end func() string) {
	t.Helper()
	// A file, so that the program never waits for a reader.
	file, err := os.CreateTemp(t.TempDir(), "monitor")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(programs.Need(t, "ip"), "-6", "-rcvbuf", strconv.Itoa(monitorBuffer), "monitor", "route", "rule", "nexthop")
	cmd.Stdout, cmd.Stderr = file, file
	Start(t, namespace, cmd)
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("ip monitor: %s", what)
			}
		}
	}
	wait("it does not listen", func() bool {
		return slices.ContainsFunc(netlinkSockets(t, namespace), func(s netlinkSocket) bool {
			return s.port == cmd.Process.Pid && s.groups&nexthopGroup != 0
		})
	})
	return func() string {
		t.Helper()
		// The kernel reports changes in their order, so after this one all others are printed.
		last := "from 2001:db8:ffff::ffff lookup main pref " + lastRule
		IP(t, namespace, "rule add "+last+"; rule del "+last)
		var text string
		wait("it does not print the last change", func() (printed bool) {
			b, err := os.ReadFile(file.Name())
			if err != nil {
				t.Fatal(err)
			}
			text, _, printed = strings.Cut("\n"+string(b), "\n"+lastRule+":")
			return printed
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		return text
	}
}

const (
	// monitorBuffer holds what happens while the program is not scheduled, in bytes.
	monitorBuffer = 4 << 20
	// nexthopGroup is the bit of RTNLGRP_NEXTHOP, the last group that ip monitor joins.
	nexthopGroup = 1 << 31
	// lastRule is the preference of a rule that no test has.
	lastRule = "4294967"
)

// netlinkSocket is a row of /proc/net/netlink.
type netlinkSocket struct {
	port   int // the process that owns it
	groups uint64
}

func netlinkSockets(t testing.TB, namespace string) (all []netlinkSocket) {
	t.Helper()
	Do(t, namespace, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[1] != "0" { // NETLINK_ROUTE
				continue
			}
			var s netlinkSocket
			var e1, e2 error
			s.port, e1 = strconv.Atoi(f[2])
			s.groups, e2 = strconv.ParseUint(f[3], 16, 32)
			err = errors.Join(err, e1, e2)
			all = append(all, s)
		}
		return err
	})
	return all
}

// Socket is a TCP socket; a subflow is one, an MPTCP connection is not.
type Socket struct {
	Local, Remote netip.AddrPort
	PathMTU       uint32 // bytes
}

// States of a Socket, as ss(8) names them.
const (
	Established = "established"
	Listening   = "listening"
)

// Sockets lists the TCP sockets of a namespace in one of the states.
func Sockets(t testing.TB, namespace, state string) (sockets []Socket, err error) {
	t.Helper()
	out, err := output(namespace, programs.Need(t, "ss"), "-HtniO", "state", state)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 {
			return nil, fmt.Errorf("ss shows %q", line)
		}
		s := Socket{Local: endpoint(f[2]), Remote: endpoint(f[3])}
		for _, x := range f[4:] {
			if n, ok := strings.CutPrefix(x, "pmtu:"); ok {
				mtu, err := strconv.ParseUint(n, 10, 32)
				if err != nil {
					return nil, fmt.Errorf("ss shows %q: %w", line, err)
				}
				s.PathMTU = uint32(mtu)
			}
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

// endpoint is what ss shows of an end of a socket: "[::1]:80", "10.0.0.1%eth0:80", "*:80",
// "[::]:*".
func endpoint(text string) netip.AddrPort {
	at := strings.LastIndexByte(text, ':')
	address, _, _ := strings.Cut(strings.Trim(text[:max(at, 0)], "[]"), "%")
	a, err := netip.ParseAddr(strings.TrimSuffix(address, "]"))
	if err != nil { // "*"
		a = netip.IPv6Unspecified()
	}
	port, _ := strconv.ParseUint(text[at+1:], 10, 16) // "*" is 0
	return netip.AddrPortFrom(a, uint16(port))
}
