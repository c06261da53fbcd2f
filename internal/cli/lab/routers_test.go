package lab

import (
	"slices"
	"testing"
)

func TestParseRouters(t *testing.T) {
	for _, tt := range []struct {
		given   string
		several bool
		want    []string
	}{
		{"embedded", false, []string{"embedded"}},
		{"frr", true, []string{"frr"}},
		{"embedded,frr", true, []string{"embedded", "frr"}},
		{"frr,embedded", true, []string{"frr", "embedded"}},
		{"embedded,frr", false, nil},
		{"frr,frr", true, nil},
		{"", true, nil},
		{"frr,", true, nil},
		{"cisco", true, nil},
	} {
		if got, err := parseRouters(tt.given, tt.several); !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("%q: got %v, %v", tt.given, got, err)
		}
	}
}
