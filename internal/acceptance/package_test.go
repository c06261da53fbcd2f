package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/programs"
)

// TestPackage builds the Debian package twice: the files are the same, and have what a host needs.
func TestPackage(t *testing.T) {
	dpkg := programs.Need(t, "dpkg-deb")
	var built [2][]byte
	var file string
	for i := range built {
		out := t.TempDir()
		t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
		t.Setenv("DEB_COMPRESSION", "gzip") // faster
		output(t, exec.Command("sh", "-c", `exec ../../deploy/debian/build "$@"`, "sh", "v1.2.3-4-gabc", program, out))
		found, err := filepath.Glob(filepath.Join(out, "tabane_1.2.3+4+gabc_*.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("built %q, %v", found, err)
		}
		file = found[0]
		if built[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Error("two builds differ")
	}
	list := output(t, exec.Command(dpkg, "-c", file))
	for _, want := range []string{
		"-rwxr-xr-x root/root .* ./usr/bin/tabane",
		"-rw-r--r-- root/root .* ./etc/tabane/asbr.yaml.example",
		"-rw-r--r-- root/root .* ./usr/lib/systemd/system/tabane-edge.service",
		"-rw-r--r-- root/root .* ./usr/share/man/man8/tabane-reload.8.gz",
		"-rw-r--r-- root/root .* ./usr/share/bash-completion/completions/tabane",
		"-rw-r--r-- root/root .* ./usr/share/zsh/vendor-completions/_tabane",
		"-rw-r--r-- root/root .* ./usr/share/fish/vendor_completions.d/tabane.fish",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/operations.md",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/deploy/systemd/before-253.conf",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/copyright",
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(list) {
			t.Errorf("the package lacks %s:\n%s", want, list)
		}
	}
	if strings.Contains(list, "2026-") || !strings.Contains(list, "2023-11-14") {
		t.Errorf("times are not those of the source:\n%s", list)
	}
	root := t.TempDir()
	output(t, exec.Command(dpkg, "-x", file, root))
	// The example of a gateway names a key, which nobody else has.
	key := filepath.Join(root, "etc/tabane/gw.key")
	output(t, exec.Command("sh", "-c", program+" gateway key >"+key))
	output(t, exec.Command("sed", "-i", "s|/etc/tabane/gw.key|"+key+"|", filepath.Join(root, "etc/tabane/gateway.yaml.example")))
	for _, role := range []string{"asbr", "edge", "gateway", "reflector"} {
		output(t, exec.Command(program, "check", "-c", filepath.Join(root, "etc/tabane", role+".yaml.example")))
	}
}

func TestUnits(t *testing.T) {
	for role, capabilities := range map[string]string{
		"asbr": "CAP_BPF CAP_NET_ADMIN CAP_NET_BIND_SERVICE", "edge": "CAP_NET_ADMIN CAP_BPF CAP_PERFMON", "gateway": "CAP_NET_ADMIN", "reflector": "CAP_NET_BIND_SERVICE",
	} {
		b, err := os.ReadFile("../../deploy/systemd/tabane-" + role + ".service")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(b), "\n")
		for _, want := range []string{
			"Type=notify-reload", "ExecStart=/usr/bin/tabane " + role + " -c /etc/tabane/" + role + ".yaml", "User=tabane",
			"CapabilityBoundingSet=" + capabilities, "AmbientCapabilities=" + capabilities, "NoNewPrivileges=yes",
			"ProtectSystem=strict", "RuntimeDirectory=tabane",
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the unit of %s lacks %s", role, want)
			}
		}
	}
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}
