package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tabane/tabane/internal/base/fault"
)

// Key documents one key of a configuration or scenario file.
type Key struct {
	Name string `json:"name"`
	// Type is the type of the value: "address", "duration", "list of prefixes".
	Type string `json:"type"`
	// Default is the value of an absent key; "required" when the key must be set.
	Default string `json:"default"`
	// Meaning is what the key does.
	Meaning string `json:"meaning"`
	// Example is a value in YAML; empty for most keys that hold other keys.
	Example string `json:"example,omitempty"`
	// Group is the name of the group of keys below this one; empty for a plain value.
	Group string `json:"group,omitempty"`
	// Named is set if the value is a mapping from user-defined names to Group.
	Named bool `json:"named,omitempty"`
}

// Group is a mapping with fixed keys. Several keys of a file may have the same group.
type Group struct {
	// Name is the first path of the group, such as "edge.mptcp"; the groups of whole files are
	// DaemonFile, ScenarioFile and StudyFile.
	Name string `json:"name"`
	Keys []Key  `json:"keys"`
}

// The groups of the top-level keys of files.
const (
	DaemonFile   = "daemon file"
	ScenarioFile = "scenario file"
	StudyFile    = "study file"
)

// go generate writes reference.json from the structs that files are decoded into, their comments,
// and the embedded files.
//
//go:generate go test ../files -run TestReference -update
//go:embed reference.json
var referenceJSON []byte

// Reference returns all groups of keys, DaemonFile, ScenarioFile and StudyFile among them.
var Reference = sync.OnceValue(func() []Group {
	var groups []Group
	if err := json.Unmarshal(referenceJSON, &groups); err != nil {
		panic("BUG: embedded reference: " + err.Error())
	}
	return groups
})

func groupNamed(name string) Group {
	groups := Reference()
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		panic(fmt.Sprintf("BUG: the reference lacks the group %q", name))
	}
	return groups[i]
}

// Find returns the key at a path such as "edge.mptcp.best_path" and the keys below it. List indexes
// are ignored, and the names of nodes, links, traffic and transports may be omitted. An empty path
// returns the keys of a daemon's file, of a scenario and of a study. The error for an unknown key
// suggests the closest known key.
func Find(path string) (Key, []Key, error) {
	below := slices.Concat(groupNamed(DaemonFile).Keys, groupNamed(ScenarioFile).Keys, groupNamed(StudyFile).Keys)
	if path == "" {
		return Key{}, below, nil
	}
	var found Key
	at := ""
	steps := strings.Split(path, ".")
	for n, step := range steps {
		name, _, _ := strings.Cut(step, "[")
		i := slices.IndexFunc(below, func(k Key) bool { return k.Name == name })
		// A plain value has no keys: with more steps, the name is that of a transport called "tcp".
		plain := i >= 0 && below[i].Group == "" && n+1 < len(steps)
		if found.Named && (i < 0 || plain) {
			found.Named = false // a user-defined name
			at = fault.Join(at, name)
			continue
		}
		if i < 0 {
			return Key{}, nil, unknownKey(at, name, below)
		}
		found, at = below[i], fault.Join(at, name)
		below = nil
		if found.Group != "" {
			below = groupNamed(found.Group).Keys
		}
	}
	return found, below, nil
}

func unknownKey(at, name string, known []Key) error {
	var names []string
	for _, k := range known {
		names = append(names, k.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("%q has no keys", at)
	}
	if at == "" {
		at = "a file"
	}
	return fmt.Errorf("%s has no key %q%s; known here: %s", at, name, fault.Suggest(name, names), strings.Join(names, ", "))
}
