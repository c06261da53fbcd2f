package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/study/qoe"
)

// madeStudy is a made-up study of n participants, who rate mptcp higher than tcp on the map.
func madeStudy(t *testing.T, n int, services ...string) Study {
	t.Helper()
	conditions := []qoe.Condition{{Environment: "near", Transport: "tcp"}, {Environment: "near", Transport: "mptcp"}, {Environment: "far", Transport: "tcp"}, {Environment: "far", Transport: "mptcp"}}
	var answers []qoe.Answer
	for i := range n {
		for j, c := range conditions {
			for _, service := range services {
				a := qoe.Answer{
					Participant: fmt.Sprintf("P%d", i), Language: "en", Position: j, Environment: c.Environment, Transport: c.Transport, Service: service,
					Took: time.Duration(30+7*((i*j)%5)) * time.Second, Met: 3 - i%2, Views: 1, Score: qoe.Score(2 + (i+j/2)%2),
				}
				if service == "map" && c.Transport == "mptcp" {
					a.Score += 2
				}
				if i == 0 && j == 0 {
					a.Score, a.Interrupted = 0, true
				}
				answers = append(answers, a)
			}
		}
	}
	a, err := qoe.Analyze(conditions, services, answers)
	if err != nil {
		t.Fatal(err)
	}
	return Study{Title: "Pages & paths", Command: "tabane qoe report -c study.yaml -o out", Version: "1", Agreed: n + 1, Withdrawn: 2, Counted: true, Analysis: a}
}

func written(t *testing.T, s Study) func(name string) string {
	t.Helper()
	dir := t.TempDir()
	if *keep != "" {
		dir = filepath.Join(*keep, t.Name())
	}
	if err := WriteStudy(dir, s); err != nil {
		t.Fatal(err)
	}
	return func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

func TestWriteStudy(t *testing.T) {
	read := written(t, madeStudy(t, 12, "map", "shop"))
	html := read("report.html")
	for _, want := range []string{
		"Of 16 comparisons 6 differ significantly.", "near map: tcp and mptcp (-2.00, p = 0.0029, r = -1.00)", "13 participants agreed and did not withdraw, 12 of them have an answer; 12 finished all tasks.",
		"<dt>Withdrawn</dt><dd>2;", "Satisfaction (1 to 5), rating of people", "Time of the task (s), measured", "the server was restarted during the task", "no rating was given", "Means with their 95 % confidence intervals, rating.",
		"Pages &amp; paths", "Wilcoxon&#39;s signed-rank test, two-sided", "Of 4 pairs of transports none differs significantly",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	rows := func(name string) [][]string {
		all, err := csv.NewReader(strings.NewReader(read(name))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := rows("summary.csv"); len(got) != 1+4*8 || got[1][5] != "11" || got[1][1] != "rating" || got[1][13] != "1: no rating was given" {
		t.Errorf("summary.csv: %d rows, first %q", len(got), got[1])
	}
	compared := rows("comparisons.csv")
	if got := strings.Join(compared[1][:8], " "); len(compared) != 1+4*4 || got != "rating rating near map tcp mptcp 11 8" || compared[1][13] != "0.00292969" || compared[1][16] != "" {
		t.Errorf("comparisons.csv: %d rows, first %q", len(compared), compared[1])
	}
	// The ratings of the first pair all differ by the same; the times do not.
	if times := compared[5]; times[0] != "task-time" || times[16] == "" || times[17] == "" {
		t.Errorf("comparisons.csv: %q", times)
	}
	for _, name := range []string{"rating", "task-time", "conditions-met", "efficiency"} {
		if !strings.Contains(read("figures/"+name+".svg"), "</svg>") || !strings.HasPrefix(read("figures/"+name+".png"), "\x89PNG") {
			t.Errorf("figure %s is missing", name)
		}
	}
}

// TestStudyWithoutEnoughParticipants: nothing is judged, and no p-value is written.
func TestStudyWithoutEnoughParticipants(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		s := madeStudy(t, n, "map")
		s.Counted = false
		read := written(t, s)
		html := read("report.html")
		for _, want := range []string{fmt.Sprintf("Not enough participants to compare transports: %d.", n), "and 7 are needed, so nothing is judged", "not known: the answers are of an export as CSV"} {
			if !strings.Contains(html, want) {
				t.Errorf("%d participants: the page has no %q", n, want)
			}
		}
		all, err := csv.NewReader(strings.NewReader(read("comparisons.csv"))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all[1:] {
			if strings.Join(row[10:], "") != "" {
				t.Errorf("%d participants: judged %q", n, row)
			}
		}
	}
}

// TestStudyIsReproducible: equal answers have equal files.
func TestStudyIsReproducible(t *testing.T) {
	first, err := madeStudy(t, 9, "map", "shop").assemble()
	if err != nil {
		t.Fatal(err)
	}
	second, err := madeStudy(t, 9, "map", "shop").assemble()
	if err != nil {
		t.Fatal(err)
	}
	for i := range first {
		if !bytes.Equal(first[i].data, second[i].data) {
			t.Errorf("%s differs", first[i].name)
		}
	}
}
