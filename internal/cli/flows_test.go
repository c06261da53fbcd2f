package cli

import (
	"net"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/epe/flows"
)

func TestMatching(t *testing.T) {
	ethernet := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	interfaces := func() ([]net.Interface, error) {
		return []net.Interface{
			{Name: "lo", Flags: net.FlagLoopback}, {Name: "eth0", HardwareAddr: ethernet}, {Name: "eth1", HardwareAddr: ethernet}, {Name: "eth10", HardwareAddr: ethernet},
			{Name: "ethsit", HardwareAddr: ethernet[:4]}, {Name: "wan?", HardwareAddr: ethernet}, {Name: "wan1", HardwareAddr: ethernet}, {Name: "tun0"},
		}, nil
	}
	for _, tt := range []struct{ names, want []string }{
		{[]string{"eth*"}, []string{"eth0", "eth1", "eth10"}},
		{[]string{"eth1", "eth?", "tun[0-9]"}, []string{"eth1", "eth0", "tun0"}},
		{[]string{"wan?"}, []string{"wan?"}},
		{[]string{"none", "none*"}, []string{"none"}},
		{[]string{"*"}, []string{"lo", "eth0", "eth1", "eth10", "wan?", "wan1", "tun0"}},
	} {
		if got, err := matching(tt.names, interfaces); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, %v, want %q", tt.names, got, err, tt.want)
		}
	}
}

func TestPatternsAreChecked(t *testing.T) {
	for name, fine := range map[string]bool{"eth*": true, "eth[0-3]": true, "eth0": true, "eth[0": false, "eth[]": false} {
		o := flowsFlags{interval: flows.DefaultInterval, max: flowcount.DefaultMaxFlows, cpu: 2, interfaces: []string{name}}
		if err := o.check(); (err == nil) != fine {
			t.Errorf("%q: %v", name, err)
		}
	}
}
