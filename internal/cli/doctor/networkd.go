package doctor

import (
	"bufio"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/role"
)

// networkdDirs are the configuration directories of systemd-networkd in ascending precedence
// (networkd.conf(5)), and networkDirs those of its .network files (systemd.network(5)).
var (
	networkdDirs = []string{"usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd"}
	networkDirs  = []string{"usr/lib/systemd/network", "usr/local/lib/systemd/network", "run/systemd/network", "etc/systemd/network"}
)

// networkd checks that systemd-networkd, if it runs, does not remove what daemons have in the
// kernel: routes, policy rules, nexthop objects, and addresses. addressed returns the numbers of
// the interfaces with addresses of daemons.
func networkd(host fs.FS, addressed func() (map[int]string, error)) Finding {
	f := Finding{Check: "systemd-networkd", State: OK, Meaning: "does not run"}
	if _, err := fs.Stat(host, "run/systemd/netif/state"); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.check(err)
		}
		return f
	}
	f.Meaning = "leaves the routes, rules, nexthop objects and addresses of daemons alone"
	settings, err := readNetworkd(host, networkdDirs, "networkd.conf")
	if err != nil {
		f.check(err)
		return f
	}
	var on, removed, remedies []string
	for _, s := range []struct{ key, of string }{
		{"ManageForeignRoutes", "routes"}, {"ManageForeignRoutingPolicyRules", "policy rules"}, {"ManageForeignNextHops", "nexthop objects (systemd 256 and newer)"},
	} {
		if boolean(settings[s.key], true) {
			on, removed = append(on, s.key+"=no"), append(removed, s.of)
		}
	}
	if len(on) > 0 {
		remedies = append(remedies, "set "+strings.Join(on, " and ")+" in /etc/systemd/networkd.conf.d/tabane.conf (deploy/systemd-networkd), restart systemd-networkd")
	}
	dropped, files, err := droppedAddresses(host, addressed)
	if err != nil {
		f.check(err)
		return f
	}
	if len(dropped) > 0 {
		removed = append(removed, "addresses on "+strings.Join(dropped, ", "))
		remedies = append(remedies, "set KeepConfiguration=static in "+strings.Join(files, " and ")+" (deploy/systemd-networkd), networkctl reload")
	}
	if len(removed) > 0 {
		f.State, f.Remedy = Limited, strings.Join(remedies, "; ")
		f.Meaning = "removes what daemons have in the kernel whenever it configures a link: " + strings.Join(removed, ", ")
	}
	return f
}

// droppedAddresses returns the interfaces from which systemd-networkd removes addresses of daemons,
// and the files in which that is changed.
func droppedAddresses(host fs.FS, addressed func() (map[int]string, error)) (links, files []string, err error) {
	all, err := addressed()
	if err != nil {
		return nil, nil, err
	}
	for _, index := range slices.Sorted(maps.Keys(all)) {
		state, err := readSettings(host, path.Join("run/systemd/netif/links", strconv.Itoa(index)), "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		name := path.Base(state["NETWORK_FILE"])
		if state["NETWORK_FILE"] == "" {
			continue // it does not manage the interface
		}
		settings, err := readNetworkd(host, networkDirs, name)
		if err != nil {
			return nil, nil, err
		}
		if keep := settings["KeepConfiguration"]; keep != "static" && !boolean(keep, false) {
			links, files = append(links, all[index]), append(files, "/etc/systemd/network/"+name+".d/tabane.conf")
		}
	}
	return links, files, nil
}

// ownAddresses returns the interfaces with addresses of daemons, by their numbers.
func ownAddresses() (map[int]string, error) {
	conn, err := route.Dial()
	if err != nil {
		return nil, err
	}
	list, err := conn.Links()
	links := map[string]bool{}
	for _, r := range role.All() {
		if r.Protocol == 0 {
			continue
		}
		objects, failed := conn.Dump(r.Protocol)
		err = errors.Join(err, failed)
		for _, o := range objects {
			if a, ok := o.(route.Address); ok {
				links[a.Link] = true
			}
		}
	}
	all := map[int]string{}
	for _, l := range list {
		if links[l.Name] {
			all[l.Index] = l.Name
		}
	}
	return all, errors.Join(err, conn.Close())
}

// readNetworkd returns the settings of the section Network in a file and its drop-ins: drop-ins by
// name, one of a later directory replacing that of the same name in an earlier one.
func readNetworkd(host fs.FS, dirs []string, name string) (map[string]string, error) {
	main, dropIns := "", map[string]string{}
	for _, dir := range dirs {
		if _, err := fs.Stat(host, path.Join(dir, name)); err == nil {
			main = path.Join(dir, name)
		}
		entries, err := fs.ReadDir(host, path.Join(dir, name+".d"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".conf") {
				dropIns[e.Name()] = path.Join(dir, name+".d", e.Name())
			}
		}
	}
	var files []string
	if main != "" {
		files = append(files, main)
	}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		files = append(files, dropIns[name])
	}
	settings := map[string]string{}
	for _, file := range files {
		found, err := readSettings(host, file, "[Network]")
		if err != nil {
			return nil, err
		}
		maps.Copy(settings, found)
	}
	return settings, nil
}

// readSettings returns the settings in a section of a file; without a name, those before any
// section.
func readSettings(host fs.FS, name, wanted string) (map[string]string, error) {
	r, err := host.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	settings := map[string]string{}
	section := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		l := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(l, "[") {
			section = l
			continue
		}
		if key, value, ok := strings.Cut(l, "="); ok && section == wanted {
			settings[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return settings, lines.Err()
}

// boolean returns the value of a setting as systemd's parse_boolean, which ignores unknown values.
func boolean(text string, otherwise bool) bool {
	switch strings.ToLower(text) {
	case "1", "yes", "y", "true", "t", "on":
		return true
	case "0", "no", "n", "false", "f", "off":
		return false
	}
	return otherwise
}

// root is the host's file system.
func root() fs.FS { return os.DirFS("/") }
