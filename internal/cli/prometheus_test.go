package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// shown is a machine with a fixed status.
type shown struct {
	role.Machine
	status any
}

func (s shown) Status() any { return s.status }

// TestPrometheusLoadsDeployedFiles starts Prometheus with the alert rules on the metrics of a
// daemon that is degraded, and asks it for each expression of the dashboard.
func TestPrometheusLoadsDeployedFiles(t *testing.T) {
	program := programs.Need(t, "prometheus")
	border, server, site := asbr.Status{}, edge.Status{}, gateway.Status{}
	fill(reflect.ValueOf(&border).Elem())
	fill(reflect.ValueOf(&server).Elem())
	fill(reflect.ValueOf(&site).Elem())
	var targets []string
	for name, status := range map[string]any{"asbr": border, "edge": server, "gateway": site} {
		handler, err := handler(slog.New(slog.DiscardHandler), name, "test", shown{status: status})
		if err != nil {
			t.Fatal(err)
		}
		daemon := httptest.NewServer(handler)
		defer daemon.Close()
		targets = append(targets, strconv.Quote(daemon.Listener.Addr().String()))
	}

	rules, err := filepath.Abs("../../deploy/prometheus/tabane.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`global: {scrape_interval: 200ms, evaluation_interval: 200ms}
rule_files: [%q]
scrape_configs: [{job_name: tabane, static_configs: [{targets: [%s]}]}]
`, rules, strings.Join(targets, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := freePort(t)
	var log bytes.Buffer
	command := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			t.Logf("prometheus:\n%s", log.String())
		}
	}()

	// answer waits for an answer that holds.
	answer := func(path, what string, holds func(data string) bool) {
		t.Helper()
		var last string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			response, err := http.Get("http://" + at + "/api/v1/" + path)
			if err != nil {
				continue
			}
			var body struct {
				Status, Error string
				Data          json.RawMessage
			}
			err = json.NewDecoder(response.Body).Decode(&body)
			response.Body.Close()
			if last = fmt.Sprint(body.Error, string(body.Data), err); err == nil && body.Status == "success" && holds(string(body.Data)) {
				return
			}
		}
		t.Errorf("%s: %s", what, last)
	}
	answer("rules", "alert rules", func(data string) bool {
		return strings.Count(data, `"health":"ok"`) == strings.Count(data, `"type":"alerting"`) && strings.Contains(data, `"TabaneDegraded"`)
	})
	answer("alerts", "alert of a degraded daemon", func(data string) bool { return strings.Contains(data, `"TabaneDegraded"`) })

	board, err := os.ReadFile("../../deploy/grafana/tabane.json")
	if err != nil {
		t.Fatal(err)
	}
	expressions := regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(board, -1)
	if len(expressions) == 0 {
		t.Error("the dashboard has no expression")
	}
	for _, e := range expressions {
		var expression string
		if err := json.Unmarshal(e[1], &expression); err != nil {
			t.Fatal(err)
		}
		answer("query?"+url.Values{"query": {expression}}.Encode(), expression, func(data string) bool { return strings.Contains(data, `"value"`) })
	}
}

// freePort returns an address of the loopback interface whose port was free.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
