package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/study/content"
)

// browsertime are the metrics of browsertime.json with the places that browsertime 27 has them at,
// and in its unit: ms for times.
var browsertime = []struct {
	metric string
	scale  float64
	// script is the place below browserScripts and statistics, other the one that both have at the
	// top.
	script, other []string
}{
	{result.TTFB, 1000, []string{"timings", "ttfb"}, []string{"googleWebVitals", "ttfb"}},
	{result.TTFB, 1000, []string{"timings", "pageTimings", "backEndTime"}, nil},
	{result.FCP, 1000, []string{"timings", "paintTiming", "first-contentful-paint"}, []string{"googleWebVitals", "firstContentfulPaint"}},
	{result.LCP, 1000, []string{"timings", "largestContentfulPaint", "renderTime"}, []string{"googleWebVitals", "largestContentfulPaint"}},
	{result.CLS, 1, []string{"pageinfo", "cumulativeLayoutShift"}, []string{"googleWebVitals", "cumulativeLayoutShift"}},
	{result.PageLoad, 1000, []string{"timings", "loadEventEnd"}, nil},
	{result.SpeedIndex, 1000, nil, []string{"visualMetrics", "SpeedIndex"}},
	{result.FirstChange, 1000, nil, []string{"visualMetrics", "FirstVisualChange"}},
	{result.LastChange, 1000, nil, []string{"visualMetrics", "LastVisualChange"}},
}

// browserStatistics are those that browsertime computes, as it computes them.
type browserStatistics struct {
	Median float64 `json:"median"`
	Mean   float64 `json:"mean"`
	// Mdev is the standard deviation of the mean, RSD the relative standard deviation in percent,
	// Stddev that of the values as a whole population.
	Mdev   float64 `json:"mdev"`
	RSD    float64 `json:"rsd"`
	Stddev float64 `json:"stddev"`
	Min    float64 `json:"min"`
	P10    float64 `json:"p10"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// statisticsOf returns the statistics of values, of which there are some.
func statisticsOf(values []float64) browserStatistics {
	sorted := slices.Sorted(slices.Values(values))
	n := float64(len(sorted))
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	s := browserStatistics{Mean: sum / n, Min: sorted[0], Max: sorted[len(sorted)-1], Median: (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2}
	squares := 0.0
	for _, v := range sorted {
		squares += (v - s.Mean) * (v - s.Mean)
	}
	s.Stddev = math.Sqrt(squares / n)
	s.Mdev = s.Stddev / math.Sqrt(n)
	if s.Stddev > 0 && s.Mean != 0 {
		s.RSD = 100 * s.Stddev / s.Mean
	}
	percentile := func(p float64) float64 { return sorted[min(len(sorted)-1, int(n*p/100))] }
	s.P10, s.P90, s.P99 = percentile(10), percentile(90), percentile(99)
	return s
}

// browsertimePage is a cell of browsertime.json, as browsertime has the results of a page.
type browsertimePage struct {
	Info struct {
		URL   string `json:"url"`
		Alias string `json:"alias"`
		// Extra has the cell.
		Extra struct {
			Case      string `json:"case"`
			Traffic   string `json:"traffic"`
			Transport string `json:"transport"`
		} `json:"extra"`
	} `json:"info"`
	MarkedAsFailure int      `json:"markedAsFailure"`
	FailureMessages []string `json:"failureMessages"`
	// These have an element for each trial that did not fail.
	BrowserScripts  []tree `json:"browserScripts"`
	VisualMetrics   []tree `json:"visualMetrics"`
	GoogleWebVitals []tree `json:"googleWebVitals"`
	Statistics      tree   `json:"statistics"`
}

// tree is an object of objects.
type tree map[string]any

// set sets a value at a place.
func (t tree) set(value any, place ...string) {
	for _, key := range place[:len(place)-1] {
		below, ok := t[key].(tree)
		if !ok {
			below = tree{}
			t[key] = below
		}
		t = below
	}
	t[place[len(place)-1]] = value
}

// browsertimeFile returns browsertime.json: an element for each cell.
func browsertimeFile(r result.Result, e *scenario.Experiment) ([]byte, error) {
	pages := []browsertimePage{}
	for _, k := range e.Cells() {
		p := browsertimePage{FailureMessages: []string{}, BrowserScripts: []tree{}, VisualMetrics: []tree{}, GoogleWebVitals: []tree{}, Statistics: tree{}}
		p.Info.Alias = strings.Join([]string{k.Case, k.Traffic, k.Transport}, " ")
		p.Info.Extra.Case, p.Info.Extra.Traffic, p.Info.Extra.Transport = k.Case, k.Traffic, k.Transport
		if t := e.TrafficIn(e.Case(k.Case), k.Traffic); t.Web != nil {
			p.Info.URL = "https://" + e.Server + content.Path(t.Web.Service, t.Web.Heavy)
		}
		values := make([][]float64, len(browsertime))
		for _, run := range r.Runs {
			if run.CellKey != k {
				continue
			}
			if err := run.Err(); err != nil {
				p.MarkedAsFailure = 1
				p.FailureMessages = append(p.FailureMessages, err.Error())
				continue
			}
			scripts, other := tree{}, tree{"visualMetrics": tree{}, "googleWebVitals": tree{}}
			for i, b := range browsertime {
				v, ok := run.Metrics[b.metric]
				if !ok {
					continue
				}
				v *= b.scale
				values[i] = append(values[i], v)
				if b.script != nil {
					scripts.set(v, b.script...)
				}
				if b.other != nil {
					other.set(v, b.other...)
				}
			}
			p.BrowserScripts = append(p.BrowserScripts, scripts)
			p.VisualMetrics = append(p.VisualMetrics, other["visualMetrics"].(tree))
			p.GoogleWebVitals = append(p.GoogleWebVitals, other["googleWebVitals"].(tree))
		}
		for i, b := range browsertime {
			if len(values[i]) == 0 {
				continue
			}
			for _, place := range [][]string{b.script, b.other} {
				if place != nil {
					p.Statistics.set(statisticsOf(values[i]), place...)
				}
			}
		}
		pages = append(pages, p)
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(pages); err != nil {
		return nil, fmt.Errorf("encode browsertime.json: %w", err)
	}
	return b.Bytes(), nil
}
