package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
)

// MarshalJSON writes the keys in the order of the contract.
func (r Result) MarshalJSON() ([]byte, error) {
	fields := []field{
		{"schema", r.Schema}, {"scenario", r.Scenario}, {"backend", r.Backend}, {"seconds", r.Seconds},
		{"host", r.Host}, {"runs", list(r.Runs)}, {"summary", list(r.Summary)}, {"expect", list(r.Expect)},
	}
	if len(r.NotJudged) > 0 {
		fields = append(fields, field{keyNotJudged, r.NotJudged})
	}
	if len(r.Findings) > 0 {
		fields = append(fields, field{keyFindings, r.Findings})
	}
	if r.Planned > 0 {
		fields = append(fields, field{keyPlanned, r.Planned})
	}
	return marshalObject(fields...)
}

// The optional keys of a result.
const keyNotJudged, keyFindings, keyPlanned = "not_judged", "findings", "planned"

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (r *Result) UnmarshalJSON(data []byte) error {
	var got Result
	err := unmarshalObject(data,
		field{"schema", &got.Schema}, field{"scenario", &got.Scenario}, field{"backend", &got.Backend}, field{"seconds", &got.Seconds},
		field{"host", &got.Host}, field{"runs", &got.Runs}, field{"summary", &got.Summary}, field{"expect", &got.Expect}, field{keyNotJudged, &got.NotJudged}, field{keyFindings, &got.Findings},
		field{keyPlanned, &got.Planned})
	if err != nil {
		return err
	}
	if got.Planned != 0 && got.Planned <= len(got.Runs) {
		return fmt.Errorf("%q must be more than the %d runs, got %d", keyPlanned, len(got.Runs), got.Planned)
	}
	if got.Schema != Schema {
		return fmt.Errorf("schema %d is not supported, only %d", got.Schema, Schema)
	}
	*r = got
	return nil
}

// MarshalJSON writes the keys in the order of the contract.
func (h Host) MarshalJSON() ([]byte, error) {
	return marshalObject(field{"kernel", h.Kernel}, field{"cpus", h.CPUs}, field{"commit", h.Commit})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (h *Host) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data, field{"kernel", &h.Kernel}, field{"cpus", &h.CPUs}, field{"commit", &h.Commit})
}

// metricName is the syntax of the name of a metric or note. The keys of runs are reserved.
var metricName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

var runKeys = []string{"case", "traffic", "transport", "trial"}

func checkMetricName(name string) error {
	if !metricName.MatchString(name) || slices.Contains(runKeys, name) {
		return fmt.Errorf("%q is not a name for a metric or note", name)
	}
	return nil
}

// MarshalJSON writes the key, then the metrics and the notes, each by name.
func (r Run) MarshalJSON() ([]byte, error) {
	if r.Trial < 0 {
		return nil, fmt.Errorf("run %s: trial must be >= 0, got %d", r.CellKey, r.Trial)
	}
	fields := []field{{"case", r.Case}, {"traffic", r.Traffic}, {"transport", r.Transport}, {"trial", r.Trial}}
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		fields = append(fields, field{name, r.Metrics[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Notes)) {
		if _, both := r.Metrics[name]; both {
			return nil, fmt.Errorf("run %s: %q is both a metric and a note", r.CellKey, name)
		}
		fields = append(fields, field{name, r.Notes[name]})
	}
	for _, f := range fields[len(runKeys):] {
		if err := checkMetricName(f.name); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.CellKey, err)
		}
	}
	data, err := marshalObject(fields...)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", r.CellKey, err)
	}
	return data, nil
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (r *Run) UnmarshalJSON(data []byte) error {
	var got Run
	into := map[string]any{"case": &got.Case, "traffic": &got.Traffic, "transport": &got.Transport, "trial": &got.Trial}
	err := walkObject(data, func(name string, value json.RawMessage) error {
		if target, ok := into[name]; ok {
			delete(into, name)
			return unmarshalValue(value, target)
		}
		if err := checkMetricName(name); err != nil {
			return err
		}
		if value[0] == '"' {
			var text string
			if err := unmarshalValue(value, &text); err != nil {
				return err
			}
			if got.Notes == nil {
				got.Notes = map[string]string{}
			}
			got.Notes[name] = text
			return nil
		}
		var number float64
		if err := unmarshalValue(value, &number); err != nil {
			return err
		}
		if got.Metrics == nil {
			got.Metrics = map[string]float64{}
		}
		got.Metrics[name] = number
		return nil
	})
	if err != nil {
		return err
	}
	if missing := slices.Sorted(maps.Keys(into)); len(missing) > 0 {
		return fmt.Errorf("key %q is missing", missing[0])
	}
	if got.Trial < 0 {
		return fmt.Errorf("trial must be >= 0, got %d", got.Trial)
	}
	*r = got
	return nil
}

// MarshalJSON writes the keys in the order of the contract.
func (c Cell) MarshalJSON() ([]byte, error) {
	data, err := marshalObject(
		field{"case", c.Case}, field{"traffic", c.Traffic}, field{"transport", c.Transport}, field{"metric", c.Metric},
		field{"n", c.N}, field{"min", c.Min}, field{"q1", c.Q1}, field{"median", c.Median}, field{"q3", c.Q3}, field{"max", c.Max},
		field{"mean", c.Mean}, field{"ci95", c.CI95})
	if err != nil {
		return nil, fmt.Errorf("summary %s %s: %w", c.CellKey, c.Metric, err)
	}
	return data, nil
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (c *Cell) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data,
		field{"case", &c.Case}, field{"traffic", &c.Traffic}, field{"transport", &c.Transport}, field{"metric", &c.Metric},
		field{"n", &c.N}, field{"min", &c.Min}, field{"q1", &c.Q1}, field{"median", &c.Median}, field{"q3", &c.Q3}, field{"max", &c.Max},
		field{"mean", &c.Mean}, field{"ci95", &c.CI95})
}

// MarshalJSON writes the keys in the order of the contract.
func (v Verdict) MarshalJSON() ([]byte, error) {
	return marshalObject(field{"name", v.Name}, field{"want", v.Want}, field{"got", v.Got}, field{"holds", v.Holds})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (v *Verdict) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data, field{"name", &v.Name}, field{"want", &v.Want}, field{"got", &v.Got}, field{"holds", &v.Holds})
}

// list returns l, or an empty list if it is nil, so that JSON has [] and never null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// field is one key of a JSON object, with the value to write or a pointer to the value to read.
type field struct {
	name  string
	value any
}

func marshalObject(fields ...field) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		if v, ok := f.value.(float64); ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
			return nil, fmt.Errorf("%s is %v, which is not a finite number", f.name, v)
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// MarshalJSON writes the keys in the order of the contract.
func (n NotJudged) MarshalJSON() ([]byte, error) {
	return marshalObject(field{"name", n.Name}, field{"want", n.Want}, field{"why", n.Why})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (n *NotJudged) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data, field{"name", &n.Name}, field{"want", &n.Want}, field{"why", &n.Why})
}

// unmarshalObject reads an object with exactly these fields, of which those of a result
// without which it is complete are optional.
func unmarshalObject(data []byte, fields ...field) error {
	read := make([]bool, len(fields))
	err := walkObject(data, func(name string, value json.RawMessage) error {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return errors.New("key is not known")
		}
		read[i] = true
		return unmarshalValue(value, fields[i].value)
	})
	if err != nil {
		return err
	}
	for i, f := range fields {
		read[i] = read[i] || slices.Contains([]string{keyNotJudged, keyFindings, keyPlanned}, f.name)
	}
	if i := slices.Index(read, false); i >= 0 {
		return fmt.Errorf("key %q is missing", fields[i].name)
	}
	return nil
}

// unmarshalValue reads a value and refuses null, for which encoding/json would leave the target
// unchanged.
func unmarshalValue(value json.RawMessage, into any) error {
	if string(value) == "null" {
		return errors.New("must not be null")
	}
	return inWords(json.Unmarshal(value, into))
}

// inWords returns an error of encoding/json without the names of Go's types. The file may have been
// cut off, be of another kind, or have been edited.
func inWords(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return errors.New("it ends in the middle, or is empty")
	case errors.As(err, &syntax):
		return fmt.Errorf("it is not JSON: %w, at byte %d", err, syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("want %s, got %s", kindOf(kind.Type), kind.Value)
	}
	return err
}

// kindOf names the values of a type in JSON.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	default:
		return "another value"
	}
}

// walkObject calls visit for each key of the object, in order, and refuses duplicate keys.
func walkObject(data []byte, visit func(name string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return errors.New("is not an object")
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, ok := key.(string)
		if !ok {
			return fmt.Errorf("%v is not a key", key)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if seen[name] {
			return fmt.Errorf("%q: key is given twice", name)
		}
		seen[name] = true
		if err := visit(name, value); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}
