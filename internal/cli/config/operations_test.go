package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestOperationsListKeys: the table of docs/operations.md says of each key of a daemon whether a
// reload changes it.
func TestOperationsListKeys(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, daemon := range []string{"asbr", "edge", "gateway", "proxy", "reflector", "router"} {
		row := regexp.MustCompile("(?m)^\\| `" + daemon + "` \\| .*`status` \\|$").FindString(string(page))
		if row == "" {
			t.Errorf("no row of %s", daemon)
			continue
		}
		keys := keysOf(daemon)
		if len(keys) < 4 {
			t.Errorf("%s has only the keys %q", daemon, keys)
		}
		for _, key := range keys {
			if !strings.Contains(row, "`"+key+"`") && !strings.Contains(row, "| all others") {
				t.Errorf("the row of %s lacks the key %s", daemon, key)
			}
		}
	}
}
