package doctor

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestNetworkd(t *testing.T) {
	dropIn, err := os.ReadFile("../../deploy/systemd-networkd/tabane.conf")
	if err != nil {
		t.Fatal(err)
	}
	const on = "[Network]\nManageForeignRoutes=yes\nManageForeignRoutingPolicyRules=yes\n"
	for _, tt := range []struct {
		name   string
		files  map[string]string
		state  State
		remedy string
	}{
		{"does not run", nil, OK, ""},
		{"defaults", map[string]string{"run/systemd/netif/state": ""}, Limited, "ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no"},
		{"the drop-in", map[string]string{"run/systemd/netif/state": "", "etc/systemd/networkd.conf.d/tabane.conf": string(dropIn)}, OK, ""},
		{"the drop-in over networkd.conf", map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/networkd.conf": on, "usr/lib/systemd/networkd.conf.d/50.conf": string(dropIn),
		}, OK, ""},
		{"a later drop-in", map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/networkd.conf.d/tabane.conf": string(dropIn), "run/systemd/networkd.conf.d/z.conf": on,
		}, Limited, "ManageForeignRoutes=no"},
		{"a drop-in that is overridden", map[string]string{
			"run/systemd/netif/state": "", "usr/lib/systemd/networkd.conf.d/a.conf": string(dropIn), "etc/systemd/networkd.conf.d/a.conf": "# empty\n",
		}, Limited, "ManageForeignRoutes=no"},
		{"routes only, in another section too", map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/networkd.conf": "[DHCPv6]\nManageForeignRoutingPolicyRules=no\n[Network]\n ManageForeignRoutes = off\n",
		}, Limited, "set ManageForeignRoutingPolicyRules=no in"},
	} {
		host := fstest.MapFS{}
		for name, text := range tt.files {
			host[name] = &fstest.MapFile{Data: []byte(text)}
		}
		f := networkd(host)
		if f.State != tt.state || !strings.Contains(f.Remedy, tt.remedy) || (f.Remedy == "") != (tt.state == OK) || f.Meaning == "" {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}
