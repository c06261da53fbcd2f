package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/cli/config"
)

// What cannot be printed, as to a full disk, is an error, also of a verb that ignores it.
func TestOutputIsLost(t *testing.T) {
	const lost = "tabane: write standard output: no space left on device; send it where there is room\n"
	for _, tt := range []struct {
		name string
		run  func(out io.Writer) error
		text string
	}{
		{"ignored", func(out io.Writer) error { fmt.Fprintln(out, "result"); return nil }, lost},
		{"returned", func(out io.Writer) error { _, err := fmt.Fprintln(out, "result"); return err }, lost},
		{"returned of the second write", func(out io.Writer) error {
			fmt.Fprintln(out, "result")
			_, err := fmt.Fprintln(out, "end")
			return fmt.Errorf("print: %w", err)
		}, lost},
		{"result that does not hold", func(out io.Writer) error { fmt.Fprintln(out, "result"); return ErrUnmet }, lost},
		{"other failure", func(out io.Writer) error { fmt.Fprintln(out, "result"); return errors.New("denied") }, "tabane: denied\n"},
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		a := &App{Out: full, Err: &text}
		root := &cobra.Command{Use: "tabane", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return tt.run(a.Out) }}
		if code := a.Execute(t.Context(), root); code != 2 || text.String() != tt.text {
			t.Errorf("%s: exit code %d, %q, want 2, %q", tt.name, code, text.String(), tt.text)
		}
		if err := full.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		code int
		text string
	}{
		{"nothing wrong", nil, 0, ""},
		{"does not hold", fmt.Errorf("run: %w", ErrUnmet), 1, ""},
		{"failure", &Failure{What: "serve at", Name: "[::1]:80", Why: errors.New("taken"), Do: "choose another"}, 2, "tabane: serve at \"[::1]:80\": taken; choose another\n"},
		{"failure without a name", &Failure{What: "list labs", Why: errors.New("denied")}, 2, "tabane: list labs: denied\n"},
		{"hostile name", &Failure{What: "read capture", Name: "a\n\x1b[2J", Why: errors.New("empty")}, 2, `tabane: read capture "a\n\x1b[2J": empty` + "\n"},
		{"failure of a path", FileFailure("read", "a", &os.PathError{Op: "open", Path: "a", Err: os.ErrNotExist}), 2, "tabane: read \"a\": file does not exist; check the path\n"},
		{"failure of another path", FileFailure("make directory", "a/b", &os.PathError{Op: "mkdir", Path: "a", Err: os.ErrPermission}), 2, "tabane: make directory \"a/b\": mkdir a: permission denied; give this user access to it\n"},
		{"failure of a path within", FileFailure("read configuration", "a", fmt.Errorf("read file: %w", &os.PathError{Op: "read", Path: "a", Err: syscall.EISDIR})), 2, "tabane: read configuration \"a\": is a directory; name a file in it\n"},
		{"failure that names the object again", &Failure{What: "show lab", Name: "a", Why: errors.New(`open lab "a": no such lab`)}, 2, "tabane: show lab \"a\": no such lab\n"},
		{"failure that says what again", &Failure{What: "read result", Name: "a", Why: errors.New("read result: too large")}, 2, "tabane: read result \"a\": too large\n"},
		{"failure that names another object", &Failure{What: "show lab", Name: "a", Why: errors.New(`open lab "b": no such lab`)}, 2, "tabane: show lab \"a\": open lab \"b\": no such lab\n"},
		{"failure whose cause has a cause", &Failure{What: "fetch", Name: "a", Why: errors.New(`find key: read "a": empty`)}, 2, "tabane: fetch \"a\": find key: read \"a\": empty\n"},
		{"failure of an address", &Failure{What: "query edge", Name: "[::1]:80", Why: refusedDial("::1")}, 2, "tabane: query edge \"[::1]:80\": connection refused\n"},
		{"failure of one address of several", serveFailure("[::1]:80, [::2]:80", fmt.Errorf("listen: %w", refusedDial("::2"))), 2, "tabane: serve at \"[::2]:80\": connection refused\n"},
		{"failure of another address", &Failure{What: "query edge", Name: "[::1]:80", Why: refusedDial("::2")}, 2, "tabane: query edge \"[::1]:80\": dial tcp [::2]:80: connect: connection refused\n"},
		{"several lines", errors.Join(errors.New("a"), errors.New("b")), 2, "tabane: a; b\n"},
		{"faults", &config.Error{File: "f", Faults: []config.Fault{
			{Line: 1, Column: 2, Fault: fault.Fault{Path: "p", Message: "m"}}, {Fault: fault.Fault{Message: "n"}},
		}}, 2, "f:1:2: p: m\nf: n\n"},
	} {
		var out bytes.Buffer
		a := &App{Err: &out}
		if got := a.finish(tt.err); got != tt.code || out.String() != tt.text {
			t.Errorf("%s: exit code %d and %q, want %d and %q", tt.name, got, out.String(), tt.code, tt.text)
		}
	}
}

func TestPrintStatus(t *testing.T) {
	const body = `{"role":"edge","ready":true,"asn":65000,"none":null,"locators":["fc00::/16","fd00::/16"],
		"peers":[{"name":"a","routes":2},{"name":"bcd","routes":10,"last_error":"gone"}],"mptcp":{"subflows":8,"mean":2343569.8041100483,"share":0.00012345,"huge":1.5e300},"refused":{},
		"sessions":[{"neighbor":"a","faults":{"ignored":0},"messages_sent":{"open":1}},{"neighbor":"b","faults":{"ignored":0},"messages_sent":{"open":1,"keepalive":0,"update":3}}],
		"why":"a word for each of the many columns that a terminal of eighty columns has, and two",
		"odd":[[1]]}`
	var out bytes.Buffer
	if err := printStatus(&out, source{"edge", netip.MustParseAddrPort("[::1]:9117")}, []byte(body), false); err != nil {
		t.Fatal(err)
	}
	want := `edge at [::1]:9117
  role      edge
  ready     yes
  asn       65000
  none      -
  locators  fc00::/16, fd00::/16
  refused   -
  why       a word for each of the many columns that a terminal of eighty
            columns has, and two
  peers
    NAME  ROUTES  LAST ERROR
    a     2       
    bcd   10      gone
  mptcp
    subflows  8
    mean      2343569.804
    share     0.00012345
    huge      1.5e300
  sessions
    NEIGHBOR  MESSAGES SENT
    a         1 open
    b         1 open, 3 update
  odd
    [[1]]
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	overview, err := selectKeys([]byte(body), withoutMessages)
	if err != nil || string(overview) != strings.NewReplacer(`,"messages_sent":{"open":1}`, "", `,"messages_sent":{"open":1,"keepalive":0,"update":3}`, "", "\n\t\t", "").Replace(body) {
		t.Errorf("overview %s: %v", overview, err)
	}
	for _, bad := range []string{"", "[]", "hello", `{"a":`} {
		if err := printStatus(io.Discard, source{}, []byte(bad), false); err == nil {
			t.Errorf("%q was printed", bad)
		}
	}
}

// TestWideTable: a table wider than a terminal continues below, with the columns that name its
// rows.
func TestWideTable(t *testing.T) {
	const body = `[{"peer":"hq","path":"fiber","endpoint":"[2001:db8:f1::2]:4790","nat_denied":0,"rate_bps":19815000,"rtt_ms":21.36,"sent_packets":101,"received_packets":22404,"reason":"-"},
		{"peer":"hq","path":"lte","endpoint":"[2001:db8:f2::2]:4790","nat_denied":0,"rate_bps":0,"rtt_ms":35.5,"sent_packets":7,"received_packets":8,"reason":"no route through \"wwan0\": add a default route with a metric, or via"}]`
	var out bytes.Buffer
	if err := printTable(&out, "    ", []byte(body)); err != nil {
		t.Fatal(err)
	}
	const want = `    PEER  PATH   ENDPOINT               RATE BPS  RTT MS  SENT PACKETS
    hq    fiber  [2001:db8:f1::2]:4790  19815000  21.36   101
    hq    lte    [2001:db8:f2::2]:4790  0         35.5    7
    PEER  PATH   RECEIVED PACKETS
    hq    fiber  22404
    hq    lte    8
    PEER  PATH   REASON
    hq    fiber  -
    hq    lte    no route through "wwan0": add a default route with a metric, or
                 via
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestNestedTable: lists of objects in rows are a table below, with what names their rows.
func TestNestedTable(t *testing.T) {
	const body = `[{"prefix":"2001:db8:a::/48","mode":"best"},{"prefix":"2001:db8:c::/48","mode":"spray","sprayed":[{"peer":"transit-a","tcp_bytes":7},{"peer":"transit-b","tcp_bytes":9}]}]`
	const want = `  PREFIX           MODE
  2001:db8:a::/48  best
  2001:db8:c::/48  spray
  sprayed
    PREFIX           PEER       TCP BYTES
    2001:db8:c::/48  transit-a  7
    2001:db8:c::/48  transit-b  9
`
	var out strings.Builder
	if err := printTable(&out, "  ", []byte(body)); err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestTableCells: a list without a value other than 0 is "none"; a cell has one line, and nothing
// that breaks the columns or controls a terminal.
func TestTableCells(t *testing.T) {
	for body, want := range map[string]string{
		`[{"sent":0},{"sent":0}]`:                                          "  none\n",
		`[{"a":"x\ty\nz","b":"\u001b[2Jw"},{"a":"v","b":1}]`:               "  A       B\n  x y; z  \ufffd[2Jw\n  v       1\n",
		`[{"a":["x\ty"],"\u001bb":{"c\u0007":2}}]`:                         "  A    \ufffdB\n  x y  2 c\ufffd\n",
		"[1,\n[\"\\u001b\"]]":                                              "  [1,; [\"\\u001b\"]]\n",
		`[{"a":"1"},{"a":{"b":[{"c":"x"}],` + "\t\n" + `"d":["\u009b"]}}]`: "  A\n  1\n  {\"b\":[{\"c\":\"x\"}], ; \"d\":[\"\\u009b\"]}\n",
	} {
		var out bytes.Buffer
		if err := printTable(&out, "  ", []byte(body)); err != nil || out.String() != want {
			t.Errorf("%s: got\n%s, %v; want\n%s", body, out.String(), err, want)
		}
	}
}

// TestRemedies: the command of a remedy is in a line of its own, to be copied, and nothing else is
// wider than a terminal.
func TestRemedies(t *testing.T) {
	command := "ip6tables-legacy -t filter -I FORWARD -i lan -j ACCEPT; ip6tables-legacy -t filter -I FORWARD -i wan -j ACCEPT"
	rows := `[{"problem":"the base chain FORWARD of ip6tables-legacy drops forwarded packets unless one of its rules accepts them","remedy":"` + command + `"},
		{"problem":"this kernel runs without IPv6","remedy":"boot without ipv6.disable=1"}]`
	want := `  PROBLEM
  the base chain FORWARD of ip6tables-legacy drops forwarded packets unless one
  of its rules accepts them
  -> ` + command + `
  this kernel runs without IPv6
  -> boot without ipv6.disable=1
`
	var out bytes.Buffer
	if err := printTable(&out, "  ", []byte(rows)); err != nil || out.String() != want {
		t.Errorf("got\n%s, %v; want\n%s", out.String(), err, want)
	}
}

// TestWideTables: whatever the rows are, no line is wider than a terminal unless one cell is, and
// no value is lost.
func TestWideTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := rapid.SliceOfN(rapid.StringMatching(`[a-z]{0,24}`), 1, 12)
		rows := rapid.SliceOfN(cells, 1, 4).Draw(t, "rows")
		var list []map[string]string
		for _, row := range rows {
			o := map[string]string{}
			for i, cell := range row {
				o[fmt.Sprintf("k%02d", i)] = cell
			}
			list = append(list, o)
		}
		body, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := printTable(&out, "", body); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			// Three columns of 24 name a row, one more follows.
			if n := len(strings.TrimRight(line, " \n")); n > max(statusWidth, 4*(24+columnGap)) {
				t.Errorf("a line has %d columns: %q", n, line)
			}
		}
		for _, row := range rows {
			for _, cell := range row {
				if !strings.Contains(out.String(), cell) {
					t.Errorf("%q is not printed in\n%s", cell, out.String())
				}
			}
		}
	})
}

// fakeMachine runs until its context ends, or fails.
type fakeMachine struct{ fail error }

func (m fakeMachine) Run(ctx context.Context) error {
	if m.fail != nil {
		return m.fail
	}
	<-ctx.Done()
	return ctx.Err()
}

func (fakeMachine) Status() any {
	return struct {
		Ready bool `json:"ready"`
	}{true}
}

func TestMonitor(t *testing.T) {
	l, err := listen(t.Context(), netip.MustParseAddrPort("[::1]:0"))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- monitor(ctx, slog.New(slog.DiscardHandler), netip.AddrPort{}, l, "edge", "1.2", fakeMachine{})
	}()

	body, err := ask(t.Context(), at, "/status")
	if err != nil || string(body) != "{\"ready\":true}\n" {
		t.Errorf("status: got %q, %v", body, err)
	}
	resp, err := http.Get("http://" + at.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`tabane_build_info{role="edge",version="1.2"} 1`, "tabane_ready 1", "go_goroutines", "process_open_fds"} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stopped: got %v", err)
	}
	if c, err := net.Dial("tcp", at.String()); err == nil {
		c.Close()
		t.Error("the status is still served")
	}

	// If the machine fails, monitor ends and returns its error.
	l, err = listen(t.Context(), netip.MustParseAddrPort("[::1]:0"))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := monitor(t.Context(), slog.New(slog.DiscardHandler), netip.AddrPort{}, l, "edge", "1.2", fakeMachine{fail: broken}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestRateMeter(t *testing.T) {
	var m RateMeter
	if got := m.Rate(); got != 0 {
		t.Errorf("nothing: got %v", got)
	}
	for range 20 {
		m.Add(0, 100*time.Millisecond)
	}
	for range 10 {
		m.Add(125_000, 100*time.Millisecond) // 10 Mbit/s for the last second
	}
	if got := m.Rate(); got != 10e6 {
		t.Errorf("got %v", got)
	}
}

// refusedDial is the error of package net for a refused connection to port 80.
func refusedDial(ip string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 80}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}
