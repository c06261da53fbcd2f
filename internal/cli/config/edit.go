package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// PutItem returns the text of a file in which a list has an item at an index: in place of the one
// there, or after the last one. The path is as in faults, without indices. Comments stay. A form of
// the list that it does not understand is an error.
func PutItem(data []byte, path string, index int, item any) (changed []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // of the library
			err = errForm
		}
	}()
	if _, err := readDocument(data); err != nil { // its bounds
		return nil, err
	}
	file, err := parser.ParseBytes(data, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	list, err := yaml.PathString("$." + path)
	if err != nil {
		return nil, fmt.Errorf("find list: %w", err)
	}
	var have, now []any
	if err := list.Read(bytes.NewReader(data), &have); err != nil {
		return nil, fmt.Errorf("find list: %w", err)
	}
	text, err := Encode(item)
	if err != nil {
		return nil, fmt.Errorf("write item: %w", err)
	}
	var put any
	if err := yaml.Unmarshal(text, &put); err != nil {
		return nil, fmt.Errorf("write item: %w", err)
	}
	if index < len(have) {
		have[index] = put
		var at *yaml.Path
		if at, err = yaml.PathString(fmt.Sprintf("$.%s[%d]", path, index)); err == nil {
			err = at.ReplaceWithReader(file, bytes.NewReader(text))
		}
	} else {
		have = append(have, put)
		more := "- " + strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n  ") + "\n"
		err = list.MergeFromReader(file, strings.NewReader(more))
	}
	if err != nil {
		return nil, fmt.Errorf("put item into list: %w", err)
	}
	changed = []byte(strings.TrimSuffix(file.String(), "\n") + "\n")
	if err := list.Read(bytes.NewReader(changed), &now); err != nil || !reflect.DeepEqual(now, have) {
		return nil, errForm
	}
	return changed, nil
}

var errForm = errors.New("put item into list: its form is not understood")
