package acceptance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/testkit/published"
)

// sitesTrials is how often BenchmarkProxySites measures each cell.
const sitesTrials = 2

// sitesCases are the cases of proxy-sites, with what the table of docs/proxy.md calls them.
var sitesCases = [][2]string{{"equal", "50 + 50"}, {"unequal", "50 + 10"}, {"longer", "50 + 50, the second 25 ms longer"}, {"lossy", "50 + 50, the second loses 1 %"}}

// BenchmarkProxySites compares a pair of proxies with a pair of gateways on the same two lines, on
// the kernel and in the simulator, by the scenario proxy-sites.
func BenchmarkProxySites(b *testing.B) {
	of := map[string]map[string]float64{}
	loadBefore := loadAverage(b)
	for b.Loop() {
		for _, backend := range []string{"lab", "sim"} {
			of[backend] = runSites(b, backend)
		}
	}
	lines := append([]string{
		fmt.Sprintf("Medians of %d runs of 5 s of `tabane lab run proxy-sites --quick`, on %s, and one simulated run,", sitesTrials, published.Machine()),
		"in Mbit/s, in parentheses of what both lines carry at most of plain TCP. The proxies have bounded unsent data, as with tabane_cubic.",
		fmt.Sprintf("Processes that wanted to run, on average of a minute: %.1f before, %.1f after the measurement.", loadBefore, loadAverage(b)), "",
	}, published.Head("lines, Mbit/s, 10 ms", "first line alone", "proxies", "gateways", "simulated: proxies", "gateways")...)
	for _, c := range sitesCases {
		row := []string{c[1]}
		for _, cell := range [][2]string{{"lab", "direct"}, {"lab", "proxies"}, {"lab", "gateways"}, {"sim", "proxies"}, {"sim", "gateways"}} {
			got := of[cell[0]][c[0]+" "+cell[1]+" goodput_bps"]
			text := fmt.Sprintf("%.1f", got/1e6)
			if cell[1] != "direct" {
				text += fmt.Sprintf(" (%.3f)", got/of[cell[0]][c[0]+" "+cell[1]+" limit_tcp_bps"])
			}
			row = append(row, text)
		}
		lines = append(lines, published.Row(row...))
	}
	publish(b, "docs/proxy.md", "sites", "make bench-sites", lines)
}

// runSites runs proxy-sites and returns the medians of its cells, by case, transport and metric.
func runSites(b *testing.B, backend string) map[string]float64 {
	out := filepath.Join(b.TempDir(), backend)
	args := []string{backend, "run", "proxy-sites", "--quick", "--out", out}
	if backend == "lab" {
		args = append(args, "--trials", fmt.Sprint(sitesTrials), "--jobs", "2")
	}
	if text, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", backend, err, text)
	}
	data, err := os.ReadFile(filepath.Join(out, "result.json"))
	var r struct {
		Summary []struct {
			Case, Transport, Metric string
			Median                  float64
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		b.Fatal(err)
	}
	medians := map[string]float64{}
	for _, s := range r.Summary {
		medians[s.Case+" "+s.Transport+" "+s.Metric] = s.Median
	}
	return medians
}
