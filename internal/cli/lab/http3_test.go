package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// runHTTP3 runs a command line until ctx ends and returns its exit code.
func runHTTP3(ctx context.Context, out, diag io.Writer, args ...string) int {
	return Run(ctx, cli.Options{Args: append([]string{"http3"}, args...), Out: out, Err: diag})
}

// TestHTTP3: the client gets what the server has over HTTP/3, as one object, as several on new
// connections, and until a limit; what it cannot get it says.
func TestHTTP3(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	said, says := io.Pipe()
	served := make(chan int, 1)
	var diag bytes.Buffer
	go func() { served <- runHTTP3(ctx, says, &diag, "serve", "--listen", "[::1]:0") }()
	defer func() {
		stop()
		if code := <-served; code != 0 {
			t.Errorf("serve: exit code %d, %s", code, diag.String())
		}
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	at, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	at, pin, certified := strings.Cut(at, " with the certificate ")
	if err != nil || !ok || !certified {
		t.Fatalf("serve says %q, %v", line, err)
	}
	fetch := func(want int, args ...string) (r traffic.Report, complaint string) {
		t.Helper()
		var out, diag bytes.Buffer
		if code := runHTTP3(t.Context(), &out, &diag, append([]string{"fetch"}, args...)...); code != want {
			t.Errorf("%v: exit code %d, %s", args, code, diag.String())
		}
		for lines := json.NewDecoder(&out); ; {
			var line traffic.FetchLine
			if err := lines.Decode(&line); errors.Is(err, io.EOF) {
				return r, diag.String()
			} else if err != nil {
				t.Fatal(err)
			}
			if line.Report != nil {
				r = *line.Report
			}
		}
	}
	const size = 3_000_000
	if r, _ := fetch(0, "https://"+at+"/bytes/3000000"); r.Bytes != size || r.GoodputBps == 0 || r.FirstByte == 0 || r.Duration < r.FirstByte || r.UsedMPTCP || len(r.Series) == 0 {
		t.Errorf("%+v", r)
	}
	for _, more := range [][]string{nil, {"--new-connections"}} {
		if r, _ := fetch(0, append(more, "--objects", "3", "https://"+at+"/bytes/3000000")...); r.Bytes != 3*size || len(r.Objects) != 3 || r.Objects[0] == 0 {
			t.Errorf("%v: %+v", more, r)
		}
	}
	t.Run("Chromium", func(t *testing.T) {
		programs.Need(t, "chromium")
		for _, more := range [][]string{nil, {"--new-connections"}} {
			if r, _ := fetch(0, append(more, "--chromium", pin, "--objects", "2", "https://"+at+"/bytes/3000000")...); r.Bytes != 2*size || len(r.Objects) != 2 || r.Objects[0] == 0 {
				t.Errorf("%v: %+v", more, r)
			}
		}
		if _, complaint := fetch(2, "--chromium", pin, "https://"+at+"/nothing"); !strings.Contains(complaint, "404") || strings.Count(complaint, "\n") != 1 {
			t.Errorf("it says %q", complaint)
		}
		const another = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
		if _, complaint := fetch(2, "--chromium", another, "https://"+at+"/bytes/1"); !strings.Contains(complaint, "no response") {
			t.Errorf("another certificate: it says %q", complaint)
		}
	})
	const limit = 300 * time.Millisecond
	if r, _ := fetch(0, "--limit", limit.String(), "https://"+at+"/cbr?rate=8Mbit/s&duration=60s"); r.Duration != limit || r.Bytes == 0 || r.Bytes > 400_000 {
		t.Errorf("until a limit: %+v", r)
	}
	if _, complaint := fetch(2, "https://"+at+"/nothing"); !strings.Contains(complaint, "404") || strings.Count(complaint, "\n") != 1 {
		t.Errorf("it says %q", complaint)
	}
	if _, complaint := fetch(2, "http://"+at+"/bytes/1"); !strings.Contains(complaint, "want a URL like https://") {
		t.Errorf("it says %q", complaint)
	}
}
