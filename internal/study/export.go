package study

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/study/qoe"
)

// ErrExport means that a file is not an export of a study's answers.
var ErrExport = errors.New("it is not an export of a study")

const (
	// maxExport bounds an export, in bytes: twice what the most participants need.
	maxExport = 64 << 20
	// maxMet is the number of conditions of a task, and maxTook bounds its time.
	maxMet  = 3
	maxTook = 30 * 24 * time.Hour
)

// exported is an exported answer. Absent values are null, and empty in CSV.
type exported struct {
	Participant string   `json:"participant"`
	Language    string   `json:"language"`
	Position    int      `json:"position"`
	Environment string   `json:"environment"`
	Transport   string   `json:"transport"`
	Service     string   `json:"service"`
	TimeS       *float64 `json:"time_s"`
	Met         int      `json:"conditions_met"`
	PerMinute   *float64 `json:"conditions_met_per_min"`
	GaveUp      bool     `json:"gave_up"`
	Interrupted bool     `json:"interrupted"`
	Views       int      `json:"views"`
	Rating      *int     `json:"rating"`
}

// columns are those of the CSV export.
var columns = []string{"participant", "language", "position", "environment", "transport", "service", "time_s", "conditions_met", "conditions_met_per_min", "gave_up", "interrupted", "views", "rating"}

// document is the JSON export.
type document struct {
	Participants int        `json:"participants"`
	Withdrawn    int        `json:"withdrawn"`
	Answers      []exported `json:"answers"`
}

func (o Outcome) export() []exported {
	list := make([]exported, len(o.Answers))
	for i, one := range o.Answers {
		list[i] = exported{Participant: one.Participant, Language: one.Language, Position: one.Position, Environment: one.Environment, Transport: one.Transport,
			Service: one.Service, Met: one.Met, GaveUp: one.GaveUp, Interrupted: one.Interrupted, Views: one.Views}
		if u, ok := one.Usability(); ok {
			seconds := one.Took.Seconds()
			list[i].TimeS, list[i].PerMinute = &seconds, &u.Efficiency
		}
		if score := int(one.Score); one.Score >= qoe.MinScore {
			list[i].Rating = &score
		}
	}
	return list
}

// WriteJSON exports the outcome as JSON.
func (o Outcome) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(document{o.Participants, o.Withdrawn, o.export()})
}

// WriteCSV exports the answers as CSV.
func (o Outcome) WriteCSV(w io.Writer) error {
	rows := [][]string{columns}
	number := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', 3, 64)
	}
	for _, one := range o.export() {
		rating := ""
		if one.Rating != nil {
			rating = strconv.Itoa(*one.Rating)
		}
		rows = append(rows, []string{one.Participant, one.Language, strconv.Itoa(one.Position), one.Environment, one.Transport, one.Service, number(one.TimeS), strconv.Itoa(one.Met),
			number(one.PerMinute), strconv.FormatBool(one.GaveUp), strconv.FormatBool(one.Interrupted), strconv.Itoa(one.Views), rating})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// ReadExport reads an export, JSON or CSV. That of CSV has answers alone, and is not Counted.
// Errors wrap ErrExport, or are of r.
func ReadExport(r io.Reader) (Outcome, error) {
	limited := &io.LimitedReader{R: r, N: maxExport + 1}
	data, err := io.ReadAll(bufio.NewReader(limited))
	switch {
	case err != nil:
		return Outcome{}, err
	case limited.N == 0:
		return Outcome{}, fmt.Errorf("%w: it has more than %d bytes", ErrExport, maxExport)
	}
	var o Outcome
	var list []exported
	if data = bytes.TrimLeft(data, " \t\r\n"); bytes.HasPrefix(data, []byte("{")) {
		var d document
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&d); err != nil {
			return Outcome{}, fmt.Errorf("%w: %w", ErrExport, err)
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return Outcome{}, fmt.Errorf("%w: something follows the answers", ErrExport)
		}
		if d.Participants < 0 || d.Withdrawn < 0 {
			return Outcome{}, fmt.Errorf("%w: participants and withdrawn must be >= 0, got %d and %d", ErrExport, d.Participants, d.Withdrawn)
		}
		o, list = Outcome{Participants: d.Participants, Withdrawn: d.Withdrawn, Counted: true}, d.Answers
	} else if list, err = readRows(data); err != nil {
		return Outcome{}, err
	}
	participants := map[string]bool{}
	for i, one := range list {
		a, err := one.read()
		if err != nil {
			return Outcome{}, fmt.Errorf("%w: answer %d: %w", ErrExport, i+1, err)
		}
		participants[a.Participant] = true
		o.Answers = append(o.Answers, a)
	}
	if !o.Counted {
		o.Participants = len(participants)
	} else if len(participants) > o.Participants {
		return Outcome{}, fmt.Errorf("%w: it has answers of %d participants, and says %d", ErrExport, len(participants), o.Participants)
	}
	return o, nil
}

// readRows reads the answers of a CSV export.
func readRows(data []byte) ([]exported, error) {
	rows := csv.NewReader(bytes.NewReader(data))
	rows.FieldsPerRecord, rows.ReuseRecord = len(columns), true
	header, err := rows.Read()
	if err != nil || !slices.Equal(header, columns) {
		return nil, fmt.Errorf("%w: its first line must name the columns %v", ErrExport, columns)
	}
	var list []exported
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrExport, err)
		}
		a := exported{Participant: row[0], Language: row[1], Environment: row[3], Transport: row[4], Service: row[5]}
		for i, field := range map[int]any{2: &a.Position, 6: &a.TimeS, 7: &a.Met, 8: &a.PerMinute, 9: &a.GaveUp, 10: &a.Interrupted, 11: &a.Views, 12: &a.Rating} {
			if err := parseField(row[i], field); err != nil {
				line, _ := rows.FieldPos(i)
				return nil, fmt.Errorf("%w: line %d, %s: %w", ErrExport, line, columns[i], err)
			}
		}
		list = append(list, a)
	}
}

// parseField parses a field of CSV into what a pointer leads to. Pointers to pointers are absent if
// it is empty.
func parseField(text string, to any) (err error) {
	switch to := to.(type) {
	case *int:
		*to, err = strconv.Atoi(text)
	case *bool:
		*to, err = strconv.ParseBool(text)
	case **int:
		if text != "" {
			*to = new(int)
			err = parseField(text, *to)
		}
	case **float64:
		if text != "" {
			*to = new(float64)
			**to, err = strconv.ParseFloat(text, 64)
		}
	default:
		panic(fmt.Sprintf("BUG: no field is %T", to))
	}
	return err
}

// read checks an exported answer. What follows from other values is computed again.
func (a exported) read() (qoe.Answer, error) {
	read := qoe.Answer{Participant: a.Participant, Language: a.Language, Position: a.Position, Environment: a.Environment, Transport: a.Transport,
		Service: a.Service, Met: a.Met, GaveUp: a.GaveUp, Interrupted: a.Interrupted, Views: a.Views}
	for key, text := range map[string]string{"participant": a.Participant, "environment": a.Environment, "transport": a.Transport, "service": a.Service} {
		if !name.MatchString(text) {
			return read, fmt.Errorf("%s must be 1 to 64 letters, digits, dots, underscores and hyphens, got %q", key, text)
		}
	}
	switch {
	case a.Language != languageEN && a.Language != languageJA:
		return read, fmt.Errorf("language must be %s or %s, got %q", languageEN, languageJA, a.Language)
	case a.Position < 0 || a.Position >= maxConditions*maxServices:
		return read, fmt.Errorf("position must be 0 to %d, got %d", maxConditions*maxServices-1, a.Position)
	case a.Met < 0 || a.Met > maxMet:
		return read, fmt.Errorf("conditions_met must be 0 to %d, got %d", maxMet, a.Met)
	case a.Views < 0:
		return read, fmt.Errorf("views must be >= 0, got %d", a.Views)
	}
	if t := a.TimeS; t != nil {
		if !(*t > 0 && *t <= maxTook.Seconds()) {
			return read, fmt.Errorf("time_s must be > 0 and at most %g, got %g", maxTook.Seconds(), *t)
		}
		read.Took = time.Duration(math.Round(*t * float64(time.Second)))
	}
	if r := a.Rating; r != nil {
		if read.Score = qoe.Score(*r); read.Score < qoe.MinScore || read.Score > qoe.MaxScore {
			return read, fmt.Errorf("rating must be %d to %d, got %d", qoe.MinScore, qoe.MaxScore, *r)
		}
	}
	return read, nil
}
