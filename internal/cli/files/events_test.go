package files

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Invalid events are refused with their position in the file.
func TestImpossibleEventsAreRefusedWithTheirPlace(t *testing.T) {
	data, err := os.ReadFile("../../../scenarios/epe-change/scenario.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const event = "        - set: {link: a, rate: 15Mbit/s, queue: 20ms}\n"
	if strings.Count(string(data), event) != 1 {
		t.Fatalf("the scenario does not have the event once")
	}
	line := 1 + strings.Count(string(data[:strings.Index(string(data), event)]), "\n")
	for _, tt := range []struct {
		event        string
		line, column int
		want         string
	}{
		{"        - set: {link: c, rate: 15Mbit/s}\n", 0, 23, `experiment.cases[0].events[0].set.link: link "c" is not in links`},
		{"        - after: 30s\n          set: {link: a, rate: 15Mbit/s}\n", 0, 11, `experiment.cases[0].events[0]: must be over before traffic "bi" can end`},
		{event + "        - after: -1s\n          down: {node: transit-a, interface: link-a}\n", 1, 18, "experiment.cases[0].events[1].after: must not be negative, got -1s"},
		{"        - after: 1s\n          down: {node: transit-a, interface: link-a}\n        - up: {node: transit-a, interface: link-a}\n", 2, 0,
			"experiment.cases[0].events[1].after: must not be before the event above, at 1s, got 0s"},
		{"        - kill: {node: asbr3, role: asbr}\n", 0, 24, `experiment.cases[0].events[0].kill.node: node "asbr3" is not in nodes`},
		{"        - kill: {node: asbr1, role: edge}\n", 0, 37, `experiment.cases[0].events[0].kill.role: node "asbr1" runs no edge`},
		{"        - explode: {node: asbr1}\n", 0, 11, `experiment.cases[0].events[0].explode: unknown key`},
	} {
		_, err := Parse("file.yaml", []byte(strings.Replace(string(data), event, tt.event, 1)))
		if err == nil {
			t.Errorf("%s is accepted", tt.event)
			continue
		}
		place := fmt.Sprintf("file.yaml:%d:%d: ", line+tt.line, tt.column)
		if tt.column == 0 {
			place = fmt.Sprintf("file.yaml:%d:", line+tt.line)
		}
		if text := err.Error(); !strings.Contains(text, place) || !strings.Contains(text, tt.want) {
			t.Errorf("%s: got\n%s\nwant %s%s", tt.event, text, place, tt.want)
		}
	}
}

// Invalid schedules of a link are refused with their position in the file.
func TestImpossibleSchedulesAreRefusedWithTheirPlace(t *testing.T) {
	data, err := os.ReadFile("../../../scenarios/epe-steady/scenario.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const link = "\n  a:\n"
	if strings.Count(string(data), link) != 1 {
		t.Fatal("the scenario does not have the link once")
	}
	line := 3 + strings.Count(string(data[:strings.Index(string(data), link)]), "\n")
	for schedule, want := range map[string]string{
		"[{at: 9s, rate: 15Mbit/s}, {at: 4s, loss: {kind: random, p: 0.01}}]": ":%d:47: links.a.schedule[1].at: must not be before the step above it, at 9s, got 4s",
		"[{at: 4s, rate: 15Mbit/s, direction: sideways}]":                     `:%d:52: links.a.schedule[0].direction: direction "sideways" is none of`,
		"[{at: 4s, speed: 15Mbit/s}]":                                         ":%d:25: links.a.schedule[0].speed: unknown key",
		"[{at: -4s, rate: 15Mbit/s}]":                                         ":%d:21: links.a.schedule[0].at: must be >= 0s, got -4s",
	} {
		text := strings.Replace(string(data), link, link+"    schedule: "+schedule+"\n", 1)
		_, err := Parse("file.yaml", []byte(text))
		if want := "file.yaml" + fmt.Sprintf(want, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got\n%v\nwant %s", schedule, err, want)
		}
	}
	fine := strings.Replace(string(data), link, link+"    schedule: [{at: 4s, rate: 15Mbit/s, direction: forward}, {at: 4s, delay: 20ms, queue: {time: 20ms}}]\n", 1)
	if _, err := Parse("file.yaml", []byte(fine)); err != nil {
		t.Error(err)
	}
}
