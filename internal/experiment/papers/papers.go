// Package papers is the table of the figures of five papers (docs/papers.md), of what reproduces
// each, and of what came out. It runs nothing and opens no file: a command line runs the scenario
// of a figure, and a test compares what is recorded here with the simulator and with the published
// results of labs.
package papers

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Verdict is what a reader of the paper can rely on.
type Verdict string

const (
	// Reproduced: all claims hold.
	Reproduced Verdict = "reproduced"
	// Differs: some claims hold; Because says which do not, and why.
	Differs Verdict = "reproduced with differences"
	// NotReproduced: no claim holds; Because says why.
	NotReproduced Verdict = "not reproduced"
	// NotTested: nothing tests it; Because says why.
	NotTested Verdict = "not tested"
)

// BackendMeasure is that of figures with trials of "tabane measure".
const BackendMeasure = "measure"

// Figure is a figure, a table or another finding of a paper.
type Figure struct {
	// ID is the letter of the paper and the number of the first figure, "D8"; t is before the
	// number of a table, s before that of a section.
	ID string
	// Title is what it shows, with the numbers of the figures.
	Title string
	// Published is what the paper says of it, in words. Values of figures without numbers in the
	// text are not read from pictures.
	Published string
	// Scenario reproduces it on Backend, in the cells that Cells selects.
	Scenario, Backend string
	Cells             scenario.Selection
	// Routers are those of an experiment that changes routes. Default: embedded.
	Routers string
	// Command reproduces it where no scenario does.
	Command string
	// Kernel is a published result of the scenario in a lab, by its path in the source tree.
	Kernel string
	// InLab names the transports of a lab that stand for those that the simulator alone has.
	InLab map[string]string
	// Trials are those of a published report of "tabane measure" (trials.csv), by their path in the
	// source tree, of a figure that no scenario reproduces. Its cases are client networks, its
	// transports modes.
	Trials string
	// Values are what came out, in the order of the text.
	Values []Value
	// Claims are the findings of the paper as bounds, of Backend, and Counts those about the number
	// of client networks. They decide the verdict.
	Claims []scenario.Expectation
	Counts []Count
	// Ours says in words what is there where nothing is measured. Numbers are Values.
	Ours string
	// Verdict is that of a figure without claims.
	Verdict Verdict
	// Because says what differs, and why.
	Because string
	// See is the page with the details, as a link relative to docs/.
	See string
}

// Value is a metric in one or several cases.
type Value struct {
	// Text has a %s for all numbers, or one for each.
	Text  string
	Cases []string
	// Traffic may be empty where there is only one.
	Traffic, Transport, Metric string
	// Stat and Relative are as in scenario.Expectation.
	Stat, Relative string
	// Divide is what the values are divided by, 1 if it is 0. Digits is the number of decimals.
	Divide float64
	Digits int
	// Kernel: of the result in Figure.Kernel, for figures of the simulator.
	Kernel bool
}

// Count is how many client networks have at least AtLeast times the goodput of TCP in a mode, and
// less than Below times if it is not 0: of the medians, as in paper A.
type Count struct {
	Name, Mode     string
	AtLeast, Below float64
	Want           int
}

// All returns the figures of all papers in their order.
func All() []Figure { return slices.Concat(paperA, paperB, paperC, paperD, paperE) }

// Find returns the figure with that ID, in capitals or not.
func Find(id string) (Figure, bool) {
	all := All()
	i := slices.IndexFunc(all, func(f Figure) bool { return strings.EqualFold(f.ID, id) })
	if i < 0 {
		return Figure{}, false
	}
	return all[i], true
}

// Paper is the letter of the figure's paper.
func (f Figure) Paper() string { return f.ID[:1] }

// On returns the figure for a backend: in a lab, claims about transports that the simulator alone
// has are about those that stand for them.
func (f Figure) On(backend string) Figure {
	from := f.Backend
	f.Backend = backend
	if from != result.BackendSim || backend != result.BackendLab || len(f.InLab) == 0 {
		return f
	}
	in := func(transport string) string { return cmp.Or(f.InLab[transport], transport) }
	var transports []string
	for _, name := range f.Cells.Transports {
		transports = append(transports, in(name))
	}
	slices.Sort(transports)
	f.Cells.Transports = slices.Compact(transports)
	var claims []scenario.Expectation
	for _, x := range f.Claims {
		x.Transport = in(x.Transport)
		if name, ok := strings.CutPrefix(x.Relative, transportPrefix); ok {
			x.Relative = transportPrefix + in(name)
		}
		claims = append(claims, x)
	}
	f.Claims = claims
	return f
}

// transportPrefix is before the name of a transport in scenario.Expectation.Relative.
const transportPrefix = "transport:"

// CommandLine is what reproduces the figure, without a comparison.
func (f Figure) CommandLine() string {
	switch {
	case f.Scenario == "":
		return f.Command
	case f.Routers != "":
		return "tabane " + f.Backend + " run " + f.Scenario + " --routers " + f.Routers
	}
	return "tabane " + f.Backend + " run " + f.Scenario
}

// Captures reports whether a lab has to capture packets for the figure.
func (f Figure) Captures() bool {
	return slices.ContainsFunc(f.Metrics(), func(name string) bool {
		m, _ := result.MetricNamed(name)
		return m.Packets
	})
}

// Metrics returns what values and claims of the figure are about, sorted.
func (f Figure) Metrics() []string {
	var names []string
	add := func(metric, relative string) {
		names = append(names, metric)
		if _, ok := result.MetricNamed(relative); ok {
			names = append(names, relative)
		}
	}
	for _, v := range f.Values {
		add(v.Metric, v.Relative)
	}
	for _, x := range f.Claims {
		add(x.Metric, x.Relative)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Record has the summaries of each figure, by its ID and backend.
type Record map[string]map[string][]result.Cell

//go:embed recorded.json
var recorded []byte

// Recorded returns what came out when the figures were last published.
func Recorded() Record {
	var r Record
	if err := json.Unmarshal(recorded, &r); err != nil {
		panic(fmt.Sprintf("BUG: decode recorded figures: %v", err))
	}
	return r
}

// Encode returns the record with a line for each cell.
func (r Record) Encode() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("{")
	for i, id := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "%s\n%q: {", comma(i), id)
		for j, backend := range slices.Sorted(maps.Keys(r[id])) {
			fmt.Fprintf(&b, "%s\n%q: [", comma(j), backend)
			for k, c := range r[id][backend] {
				line, err := json.Marshal(c)
				if err != nil {
					return nil, fmt.Errorf("encode figure %q: %w", id, err)
				}
				fmt.Fprintf(&b, "%s\n%s", comma(k), line)
			}
			b.WriteString("]")
		}
		b.WriteString("}")
	}
	b.WriteString("}\n")
	return b.Bytes(), nil
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// Select returns the cells of a summary that the figure needs, those of its scenario in the order
// of the summary, with the delays that show a busy host.
func (f Figure) Select(spec *scenario.Spec, summary []result.Cell) []result.Cell {
	keys, metrics := spec.Experiment.Cells(), f.Metrics()
	return slices.DeleteFunc(slices.Clone(summary), func(c result.Cell) bool {
		return !slices.Contains(keys, c.CellKey) || !slices.Contains(metrics, c.Metric) && c.Metric != result.WakeDelay
	})
}

// Entry is a figure with what came out.
type Entry struct {
	Figure
	// Got are its values and Ours, as one text.
	Got string
	// Claimed has a verdict for each of its claims; Outcome is that of all.
	Claimed []result.Verdict
	Outcome Verdict
}

// Enter joins a figure with the cells of its backends. spec is its scenario with the figure's
// cells, nil if it has none.
func (f Figure) Enter(spec *scenario.Spec, cells map[string][]result.Cell) (Entry, error) {
	e := Entry{Figure: f, Outcome: f.Verdict}
	var parts []string
	for _, v := range f.Values {
		backend := f.Backend
		if v.Kernel {
			backend = result.BackendLab
		}
		text, err := v.format(cells[backend])
		if err != nil {
			return e, fmt.Errorf("read figure %q: %w", f.ID, err)
		}
		parts = append(parts, text)
	}
	if f.Ours != "" {
		parts = append(parts, f.Ours)
	}
	if len(f.Values) > 0 && len(cells[result.BackendLab]) > 0 {
		parts = append(parts, f.kernel(spec, cells[result.BackendLab]))
	}
	e.Got = strings.Join(parts, "; ")
	if len(f.Claims)+len(f.Counts) == 0 {
		return e, nil
	}
	e.Claimed = f.judge(spec, cells[f.Backend])
	switch holding(e.Claimed) {
	case len(e.Claimed):
		e.Outcome = Reproduced
	case 0:
		e.Outcome = NotReproduced
	default:
		e.Outcome = Differs
	}
	return e, nil
}

// judge returns a verdict for each claim of the figure.
func (f Figure) judge(spec *scenario.Spec, cells []result.Cell) []result.Verdict {
	claimed := experimentOf(cells)
	if spec != nil {
		claimed = *spec.Experiment
	}
	claimed.Expect = f.Claims
	all := scenario.Evaluate(&claimed, cells, nil)
	for _, c := range f.Counts {
		all = append(all, c.judge(cells))
	}
	return all
}

func holding(all []result.Verdict) (n int) {
	for _, v := range all {
		if v.Holds {
			n++
		}
	}
	return n
}

// kernel says how many trials a lab made, and how many claims hold there if others decide the
// verdict.
func (f Figure) kernel(spec *scenario.Spec, cells []result.Cell) string {
	if f.Backend == result.BackendLab || len(f.Claims) == 0 {
		return trials(cells)
	}
	all := f.On(result.BackendLab).judge(spec, cells)
	return fmt.Sprintf("there %d of %d findings hold (%s)", holding(all), len(all), trials(cells))
}

// trials says how many trials of a cell a lab made, and whether its host was busy if that is known.
func trials(cells []result.Cell) string {
	least, most, busy := cells[0].N, cells[0].N, false
	for _, c := range cells {
		least, most = min(least, c.N), max(most, c.N)
		busy = busy || c.Metric == result.WakeDelay && c.Median > result.BusyHost
	}
	text := strconv.Itoa(least)
	if most > least {
		text += " to " + strconv.Itoa(most)
	}
	if text += " trials of a cell in a lab"; most == 1 {
		text = "one trial of a cell in a lab"
	}
	if busy {
		text += ", the host was busy"
	}
	return text
}

// experimentOf returns an experiment that has the cells.
func experimentOf(cells []result.Cell) scenario.Experiment {
	e := scenario.Experiment{Traffic: map[string]*scenario.Traffic{}, Transports: map[string]*scenario.Transport{}}
	for _, c := range cells {
		if !slices.ContainsFunc(e.Cases, func(have scenario.Case) bool { return have.Name == c.Case }) {
			e.Cases = append(e.Cases, scenario.Case{Name: c.Case})
		}
		e.Traffic[c.Traffic], e.Transports[c.Transport] = &scenario.Traffic{}, &scenario.Transport{}
	}
	return e
}

// judge counts the networks.
func (c Count) judge(cells []result.Cell) result.Verdict {
	v := result.Verdict{Name: c.Name, Want: fmt.Sprintf("%d with %v times TCP or more", c.Want, c.AtLeast)}
	if c.Below > 0 {
		v.Want += fmt.Sprintf(", below %v", c.Below)
	}
	all, count := 0, 0
	for _, cell := range cells {
		if cell.Transport != c.Mode || cell.Metric != result.Goodput {
			continue
		}
		ratio, err := scenario.Expectation{Metric: result.Goodput, Relative: ofTCP}.Of(cell.CellKey, cells)
		if err != nil {
			v.Got = err.Error()
			return v
		}
		all++
		if ratio >= c.AtLeast && (c.Below == 0 || ratio < c.Below) {
			count++
		}
	}
	v.Got = fmt.Sprintf("%d of %d", count, all)
	v.Holds = count == c.Want
	return v
}

func (v Value) format(cells []result.Cell) (string, error) {
	var numbers []string
	for _, name := range v.Cases {
		i := slices.IndexFunc(cells, func(c result.Cell) bool {
			return c.Case == name && c.Transport == v.Transport && c.Metric == v.Metric && (v.Traffic == "" || v.Traffic == c.Traffic)
		})
		if i < 0 {
			return "", fmt.Errorf("no %s of case %s, transport %s is recorded", v.Metric, name, v.Transport)
		}
		x, err := scenario.Expectation{Metric: v.Metric, Stat: v.Stat, Relative: v.Relative}.Of(cells[i].CellKey, cells)
		if err != nil {
			return "", err
		}
		numbers = append(numbers, strconv.FormatFloat(x/cmp.Or(v.Divide, 1), 'f', v.Digits, 64))
	}
	if strings.Count(v.Text, "%s") != len(numbers) {
		numbers = []string{strings.Join(numbers, ", ")}
	}
	args := make([]any, len(numbers))
	for i, n := range numbers {
		args[i] = n
	}
	return fmt.Sprintf(v.Text, args...), nil
}

var figureID = regexp.MustCompile(`^[A-E][st]?[0-9]+$`)

// Check returns what is wrong with the figure. spec is its scenario with the figure's cells, nil if
// it has none.
func (f Figure) Check(spec *scenario.Spec) fault.List {
	var faults fault.List
	claims := len(f.Claims) + len(f.Counts)
	if !figureID.MatchString(f.ID) {
		faults.Add("id", "must be a letter from A to E and a number like D8, t or s between for a table or a section, got %q", f.ID)
	}
	for _, text := range []struct{ name, value string }{{"title", f.Title}, {"published", f.Published}} {
		if text.value == "" {
			faults.Add(text.name, "must not be empty")
		}
	}
	switch {
	case (f.Scenario == "") == (f.Command == ""):
		faults.Add("scenario", "must be given, or command, and not both")
	case f.Scenario == "" && f.Trials == "" && (len(f.Values) > 0 || claims > 0 || f.Kernel != ""):
		faults.Add("scenario", "must be given with values, claims or a result of a lab")
	case f.Trials != "" && f.Backend != BackendMeasure:
		faults.Add("backend", "must be %s of trials, got %q", BackendMeasure, f.Backend)
	case f.Scenario != "" && f.Backend != result.BackendLab && f.Backend != result.BackendSim:
		faults.Add("backend", "must be %s or %s, got %q", result.BackendLab, result.BackendSim, f.Backend)
	}
	if (f.Verdict == "") == (claims == 0) {
		faults.Add("verdict", "must be given without claims, which decide it otherwise")
	}
	if f.Verdict != "" && f.Verdict != Reproduced && f.Because == "" {
		faults.Add("because", "must say why the verdict is %q", f.Verdict)
	}
	if strings.ContainsAny(f.Ours, "0123456789") {
		faults.Add("ours", "must have no numbers, which come from a result, got %q", f.Ours)
	}
	if len(f.Values) == 0 && f.Ours == "" && f.Verdict != NotTested {
		faults.Add("ours", "must be given without values")
	}
	if spec != nil && len(f.Claims) > 0 {
		claimed := *spec
		e := *spec.Experiment
		e.Expect, e.Figures = f.Claims, nil
		claimed.Experiment = &e
		for _, x := range claimed.Check() {
			faults.Add("claims", "%s: %s", x.Path, x.Message)
		}
	}
	return faults
}
