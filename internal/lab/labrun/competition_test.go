package labrun

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/mptcp/ccbpf"
)

// TestCompetition runs connections that compete, with controls that the run loads for itself.
func TestCompetition(t *testing.T) {
	o := runOptions(t, "compete")
	if err := ccbpf.Supported(); err != nil {
		t.Skip(err)
	}
	unlock, err := bpftest.LockNames()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var whole scenario.Spec
	if err := yaml.UnmarshalWithOptions(scenariotest.Text(t, "cc-fairness"), &whole, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if o.Spec, err = whole.Select(scenario.Selection{Cases: []string{"red"}, Transports: []string{"lia"}}); err != nil {
		t.Fatal(err)
	}
	e := o.Spec.Experiment
	e.Cases[0].Settle = 500 * time.Millisecond
	e.Cases[0].Connections = append(e.Cases[0].Connections, scenario.Connection{Start: 500 * time.Millisecond, Stop: 3 * time.Second})
	e.Traffic["bulk"].Duration, e.Traffic["bulk"].Quick = 4*time.Second, 4*time.Second
	o.Trials = 1
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	run := outcome.Runs[0]
	t.Log(run.Metrics, run.Notes)
	if err := run.Err(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{result.Share, result.OwnRate, result.OthersRate, result.FirstPath, result.RoundTrip} {
		if v := run.Metrics[m]; v <= 0 || m == result.Share && v >= 1 || m == result.FirstPath && v >= 1 {
			t.Errorf("%s is %v", m, v)
		}
	}
	// Two connections of two subflows, and a TCP.
	sides := strings.Split(run.Notes[result.NoteLosses], "; ")
	if len(sides) != 2 || len(strings.Fields(sides[0])) != 5 || len(strings.Fields(sides[1])) != 2 {
		t.Errorf("losses %q, want four subflows of client and one of neighbor1", run.Notes[result.NoteLosses])
	}
	if run.Metrics[result.RoundTrip] < 0.04 || run.Metrics[result.RoundTrip] > 1 {
		t.Errorf("a mean round-trip time of %v s over 40 ms", run.Metrics[result.RoundTrip])
	}
	labtest.NothingLeft(t, o.Name)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left, err := netns.ReadSysctl("net.ipv4.tcp_available_congestion_control")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(left, controlOptions(scenario.Settings{Congestion: "lia"}).Prefix) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the controls of the run are still loaded: %s", left)
		}
	}
}

func TestControl(t *testing.T) {
	yes, no := true, false
	own := strconv.FormatInt(int64(os.Getpid()), 36) + "_"
	o := offers{congestion: []string{"reno", "cubic"}}
	for _, c := range []struct {
		settings scenario.Settings
		want     string
		own      bool
	}{
		{scenario.Settings{Congestion: "cubic"}, "cubic", false},
		{scenario.Settings{Congestion: "newreno"}, "reno", false},
		{scenario.Settings{Congestion: "bbr"}, "bbr", false},
		{scenario.Settings{Congestion: "newreno", Pace: &yes}, "p" + own + "newreno", true},
		{scenario.Settings{Congestion: "newreno", Pace: &no}, "b" + own + "newreno", true},
		{scenario.Settings{Congestion: "lia"}, "p" + own + "lia", true},
		{scenario.Settings{Congestion: "cubic", Lowat: &yes}, "bl" + own + "cubic", true},
		{scenario.Settings{Congestion: "lia", Pace: &no, Lowat: &yes}, "bl" + own + "lia", true},
	} {
		if name, own := o.control(c.settings); name != c.want || own != c.own {
			t.Errorf("%+v: %q, %v, want %q, %v", c.settings, name, own, c.want, c.own)
		}
	}
}
