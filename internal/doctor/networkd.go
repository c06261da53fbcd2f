package doctor

import (
	"bufio"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// networkdDirs are the configuration directories of systemd-networkd in ascending precedence
// (networkd.conf(5)).
var networkdDirs = []string{"usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd"}

// networkd checks that systemd-networkd, if it runs, does not manage foreign routes and rules.
func networkd(host fs.FS) Finding {
	f := Finding{Check: "systemd-networkd", State: OK, Meaning: "does not run"}
	if _, err := fs.Stat(host, "run/systemd/netif/state"); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.check(err)
		}
		return f
	}
	settings := map[string]bool{"ManageForeignRoutes": true, "ManageForeignRoutingPolicyRules": true}
	files, err := networkdFiles(host)
	for _, name := range files {
		if err == nil {
			err = readNetworkd(host, name, settings)
		}
	}
	if err != nil {
		f.check(err)
		return f
	}
	f.Meaning = "leaves the routes and rules of other programs alone"
	var on []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if settings[key] {
			on = append(on, key+"=no")
		}
	}
	if len(on) > 0 {
		f.State = Limited
		f.Meaning = "removes the routes or policy rules of daemons whenever it configures a link"
		f.Remedy = "set " + strings.Join(on, " and ") + " in /etc/systemd/networkd.conf.d/tabane.conf (deploy/systemd-networkd), restart systemd-networkd"
	}
	return f
}

// networkdFiles returns networkd.conf and the drop-ins in the order in which they apply: drop-ins
// by name, one of a later directory replacing that of the same name in an earlier one.
func networkdFiles(host fs.FS) ([]string, error) {
	main, dropIns := "", map[string]string{}
	for _, dir := range networkdDirs {
		if _, err := fs.Stat(host, path.Join(dir, "networkd.conf")); err == nil {
			main = path.Join(dir, "networkd.conf")
		}
		entries, err := fs.ReadDir(host, path.Join(dir, "networkd.conf.d"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".conf") {
				dropIns[e.Name()] = path.Join(dir, "networkd.conf.d", e.Name())
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
	return files, nil
}

// readNetworkd applies a file's boolean settings of the section Network.
func readNetworkd(host fs.FS, name string, settings map[string]bool) error {
	r, err := host.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	section := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		l := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(l, "[") {
			section = l
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		if _, known := settings[strings.TrimSpace(key)]; !ok || !known || section != "[Network]" {
			continue
		}
		// As systemd's parse_boolean; unknown values are ignored.
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "1", "yes", "y", "true", "t", "on":
			settings[strings.TrimSpace(key)] = true
		case "0", "no", "n", "false", "f", "off":
			settings[strings.TrimSpace(key)] = false
		}
	}
	return lines.Err()
}

// root is the host's file system.
func root() fs.FS { return os.DirFS("/") }
