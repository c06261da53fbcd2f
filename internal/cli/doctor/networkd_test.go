package doctor

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestNetworkd(t *testing.T) {
	dropIn, err := os.ReadFile("../../../deploy/systemd-networkd/tabane.conf")
	if err != nil {
		t.Fatal(err)
	}
	keep, err := os.ReadFile("../../../deploy/systemd-networkd/tabane.network.conf")
	if err != nil {
		t.Fatal(err)
	}
	const on = "[Network]\nManageForeignRoutes=yes\nManageForeignRoutingPolicyRules=yes\nManageForeignNextHops=yes\n"
	const lan = "# private\nADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/10-lan.network\n"
	managed := func(more ...string) map[string]string {
		files := map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/networkd.conf.d/tabane.conf": string(dropIn),
			"run/systemd/netif/links/3": lan, "etc/systemd/network/10-lan.network": "[Match]\nName=lan\n[Network]\nDHCP=yes\n",
		}
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for _, tt := range []struct {
		name   string
		files  map[string]string
		state  State
		remedy string
	}{
		{"does not run", nil, OK, ""},
		{"defaults", map[string]string{"run/systemd/netif/state": ""}, Limited, "ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no and ManageForeignNextHops=no in"},
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
		}, Limited, "set ManageForeignRoutingPolicyRules=no and ManageForeignNextHops=no in"},
		{"the drop-in of before systemd 256", map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/networkd.conf": "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n",
		}, Limited, "set ManageForeignNextHops=no in"},
		{"addresses", managed(), Limited, "set KeepConfiguration=static in /etc/systemd/network/10-lan.network.d/tabane.conf"},
		{"addresses are kept", managed("run/systemd/network/10-lan.network.d/x.conf", string(keep)), OK, ""},
		{"all is kept", managed("etc/systemd/network/10-lan.network", "[Network]\nKeepConfiguration=yes\n"), OK, ""},
		{"DHCP is kept", managed("etc/systemd/network/10-lan.network", "[Network]\nKeepConfiguration=dhcp\n"), Limited, "KeepConfiguration=static"},
		{"an interface that is not managed", managed("run/systemd/netif/links/3", "ADMIN_STATE=unmanaged\n"), OK, ""},
	} {
		host := fstest.MapFS{}
		for name, text := range tt.files {
			host[name] = &fstest.MapFile{Data: []byte(text)}
		}
		f := networkd(host, func() (map[int]string, error) { return map[int]string{3: "lan", 7: "eth9"}, nil })
		if f.State != tt.state || !strings.Contains(f.Remedy, tt.remedy) || (f.Remedy == "") != (tt.state == OK) || f.Meaning == "" {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}
