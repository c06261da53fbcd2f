package acceptance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestPackage builds the Debian packages twice: the files are the same, and have what a host needs.
func TestPackage(t *testing.T) {
	t.Parallel()
	dpkg := programs.Need(t, "dpkg-deb")
	var built [2][]byte
	var file string
	var laboratory []string
	for i := range built {
		out := t.TempDir()
		buildPackages(t, "v1.2.3-4-gabc", placeholders(t), out, "SOURCE_DATE_EPOCH=1700000000")
		found, err := filepath.Glob(filepath.Join(out, "tabane_1.2.3+4+gabc_*.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("built %q, %v", found, err)
		}
		file = found[0]
		laboratory, err = filepath.Glob(filepath.Join(out, "tabane-lab_1.2.3+4+gabc_*.deb"))
		if err != nil || len(laboratory) != 1 {
			t.Fatalf("built %q, %v", laboratory, err)
		}
		for _, name := range []string{file, laboratory[0]} {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			built[i] = append(built[i], b...)
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
		"-rw-r--r-- root/root .* ./usr/share/man/man5/tabane.yaml.5.gz",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/docs/operations.md",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/deploy/systemd/before-253.conf",
		"-rw-r--r-- root/root .* ./usr/share/tabane/before-253.conf",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane/copyright",
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(list) {
			t.Errorf("the package lacks %s:\n%s", want, list)
		}
	}
	for name := range namedFiles(t) {
		if !strings.Contains(list, " ./usr/share/doc/tabane/"+name+"\n") {
			t.Errorf("the package lacks %s, which the program or a document names", name)
		}
	}
	if strings.Contains(list, "2026-") || !strings.Contains(list, "2023-11-14") {
		t.Errorf("times are not those of the source:\n%s", list)
	}
	if strings.Contains(list, "man8/tabane-lab") {
		t.Errorf("the package has pages of the laboratory:\n%s", list)
	}
	of := output(t, exec.Command(dpkg, "-c", laboratory[0]))
	for _, want := range []string{
		"-rwxr-xr-x root/root .* ./usr/bin/tabane-lab",
		"-rw-r--r-- root/root .* ./usr/share/man/man8/tabane-lab-run.8.gz",
		"-rw-r--r-- root/root .* ./usr/share/man/man8/tabane-sim.8.gz",
		"-rw-r--r-- root/root .* ./usr/share/doc/tabane-lab/copyright",
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(of) {
			t.Errorf("the package of the laboratory lacks %s:\n%s", want, of)
		}
	}
	for _, link := range packagedLinks(t, list) {
		if !regexp.MustCompile(`(?m) \./usr/share/doc/tabane/` + regexp.QuoteMeta(link) + `/?$`).MatchString(list + of) {
			t.Errorf("the packages lack %s, which a document of tabane links to", link)
		}
	}
	for line := range strings.Lines(list) {
		name := line[strings.LastIndex(line, " ")+1:]
		if !strings.HasSuffix(name, "/\n") && strings.Contains(of, " "+name) {
			t.Errorf("both packages have %s", name)
		}
	}
	if got := strings.TrimSpace(output(t, exec.Command(dpkg, "-f", laboratory[0], "Depends"))); got != "tabane (= 1.2.3+4+gabc)" {
		t.Errorf("the package of the laboratory depends on %q", got)
	}
	root := t.TempDir()
	output(t, exec.Command(dpkg, "-x", file, root))
	// The example of a gateway names a key, which nobody else has.
	key := filepath.Join(root, "etc/tabane/gw.key")
	output(t, exec.Command("sh", "-c", program+" gateway key >"+key))
	output(t, exec.Command("sed", "-i", "s|/etc/tabane/gw.key|"+key+"|", filepath.Join(root, "etc/tabane/gateway.yaml.example")))
	for _, role := range []string{"asbr", "edge", "gateway", "proxy", "reflector"} {
		output(t, exec.Command(program, "check", "-c", filepath.Join(root, "etc/tabane", role+".yaml.example")))
	}
}

// packagedLinks are what the documents in a package's list link to, relative to the checkout.
func packagedLinks(t *testing.T, list string) (all []string) {
	t.Helper()
	link := regexp.MustCompile(`\]\(([^)#\s:]+)(?:#[^)]*)?\)`)
	for _, page := range regexp.MustCompile(`(?m) \./usr/share/doc/tabane/(.*\.md)$`).FindAllStringSubmatch(list, -1) {
		b, err := os.ReadFile("../../" + page[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range link.FindAllSubmatch(b, -1) {
			all = append(all, filepath.Join(filepath.Dir(page[1]), string(to[1])))
		}
	}
	if len(all) < 100 {
		t.Errorf("only %q are linked to", all)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestPackageVersions: of two commits, the later one's package is the newer version, and one make
// leaves one package to install.
func TestPackageVersions(t *testing.T) {
	t.Parallel()
	dpkg := programs.Need(t, "dpkg")
	deb := programs.Need(t, "dpkg-deb")
	out := t.TempDir()
	var versions []string
	for _, of := range []struct{ commit, seconds string }{{"fedcba9", "1700000000"}, {"0123456", "1700000060"}} {
		buildPackages(t, of.commit, placeholders(t), out, "SOURCE_DATE_EPOCH="+of.seconds)
		found, err := filepath.Glob(filepath.Join(out, "*_*.deb"))
		if err != nil || len(found) != 2 {
			t.Fatalf("built %q, %v", found, err)
		}
		versions = append(versions, strings.TrimSpace(output(t, exec.Command(deb, "-f", found[1], "Version"))))
	}
	if err := exec.Command(dpkg, "--compare-versions", versions[0], "lt", versions[1]).Run(); err != nil {
		t.Errorf("%q is not older than %q", versions[0], versions[1])
	}
}

// namedFiles are the documents, examples and files to deploy that the program or its documents
// name. Which ones need more than a package has is not for users of a package.
func namedFiles(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{"docs/gateway.md": true}
	named := regexp.MustCompile(`\b(?:docs|examples|deploy/(?:systemd|systemd-networkd|networkmanager|prometheus|grafana))/[a-z0-9.-]+\.(?:md|yaml|yml|json|conf|sbatch)\b`)
	for _, pattern := range []string{"../../internal/cli/*.go", "../../internal/cli/config/reference.json", "../../internal/cli/doctor/*.go", "../../internal/role/*.go", "../../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range named.FindAllString(string(b), -1) {
				if _, err := os.Stat("../../" + name); err == nil { // others are those of a user
					all[name] = true
				}
			}
		}
	}
	if len(all) < 10 {
		t.Errorf("only %v are named", all)
	}
	return all
}

// TestSizes: the sizes of the programs that CONTRIBUTING.md gives are those of programs built as by
// make build.
func TestSizes(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the sizes are those of amd64")
	}
	const tolerated = 0.03 // other releases of Go make other code
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("`(tabane|tabane-lab)`( has)?\\s([0-9.]+) MB").FindAllSubmatch(page, -1)
	if len(found) != 2 {
		t.Fatalf("CONTRIBUTING.md gives %d sizes, want 2", len(found))
	}
	for _, f := range found {
		info, err := os.Stat(filepath.Join(filepath.Dir(program), string(f[1])))
		if err != nil {
			t.Fatal(err)
		}
		given, err := strconv.ParseFloat(string(f[3]), 64)
		if err != nil {
			t.Fatal(err)
		}
		if size := float64(info.Size()) / 1e6; math.Abs(size-given) > tolerated*given {
			t.Errorf("%s has %.1f MB, and CONTRIBUTING.md gives %.1f", f[1], size, given)
		}
	}
}

// TestPackageOnABareSystem installs the package on a Debian system that has the essential packages
// and what tabane depends on, upgrades it, removes it and purges it: what it declares is enough,
// the operator's files stay, and nothing else is left.
func TestPackageOnABareSystem(t *testing.T) {
	t.Parallel()
	programs.Need(t, "dpkg-deb")
	needLab(t)
	root := bareSystem(t, "adduser")
	built := t.TempDir()
	buildPackages(t, "v1.2.3", filepath.Dir(program), built)
	found, err := filepath.Glob(filepath.Join(built, "tabane_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("built %q, %v", found, err)
	}
	if err := os.Rename(found[0], filepath.Join(root, "tabane.deb")); err != nil {
		t.Fatal(err)
	}
	in := func(argv ...string) string {
		t.Helper()
		cmd := exec.Command("sh", append([]string{"-c", `exec chroot "$@"`, "sh", root}, argv...)...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
		return output(t, cmd)
	}
	// An old systemd that answers everything, and no documentation, which hosts may leave out.
	for _, dir := range []string{"run/systemd/system", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/systemctl"), []byte("#!/bin/sh\necho 'systemd 252 (252.39-1)'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := files(t, root)

	in("dpkg", "--force-unsafe-io", "--path-exclude=/usr/share/doc/*", "-i", "/tabane.deb")
	if now := files(t, root); !now["/etc/systemd/system/tabane-edge.service.d/before-253.conf"] || now["/usr/share/doc/tabane/README.md"] {
		t.Errorf("without documentation, what systemd 252 needs is there: %t, documentation: %t", now["/etc/systemd/system/tabane-edge.service.d/before-253.conf"], now["/usr/share/doc/tabane/README.md"])
	}
	if got := strings.TrimSpace(in("stat", "-c", "%U:%G %a", "/etc/tabane")); got != "root:tabane 750" {
		t.Errorf("the directory of files with passwords is %s", got)
	}
	for _, role := range []string{"asbr", "edge", "reflector"} {
		in("tabane", "check", "-c", "/etc/tabane/"+role+".yaml.example")
	}
	in("install", "-m", "640", "-g", "tabane", "/etc/tabane/asbr.yaml.example", "/etc/tabane/asbr.yaml")

	in("dpkg", "--force-unsafe-io", "-i", "/tabane.deb") // an upgrade to the same version
	in("tabane", "check", "-c", "/etc/tabane/asbr.yaml")

	for _, written := range []string{"var/lib/tabane/gateway.quota", "run/tabane/edge.paths"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(written)), 0o755), os.WriteFile(filepath.Join(root, written), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	in("dpkg", "--force-unsafe-io", "-r", "tabane")
	if now := files(t, root); now["/usr/bin/tabane"] || !now["/etc/tabane/asbr.yaml"] || !now["/var/lib/tabane/gateway.quota"] {
		t.Errorf("after the removal there is the program: %t, the operator's file: %t, the daemon's: %t", now["/usr/bin/tabane"], now["/etc/tabane/asbr.yaml"], now["/var/lib/tabane/gateway.quota"])
	}
	in("dpkg", "--force-unsafe-io", "-P", "tabane")
	// The records of dpkg and adduser, and the backups of what these change.
	kept := regexp.MustCompile(`^(/etc/tabane(/asbr.yaml)?|/var/(lib/dpkg|log|cache)/.*|/etc/(passwd|group|shadow|gshadow|subuid|subgid)(-|\.lock)?|/etc/\.pwd\.lock|/run/adduser)$`)
	for name := range files(t, root) {
		if !before[name] && !kept.MatchString(name) {
			t.Errorf("left: %s", name)
		}
	}
}

// TestUnitsMountForAll: a command of a unit has mounts of its own, also with +, so one that mounts
// for the daemon or for others enters those of systemd.
func TestUnitsMountForAll(t *testing.T) {
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("%q, %v", units, err)
	}
	found := false
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "Exec") || !strings.Contains(line, "mount ") {
				continue
			}
			found = true
			if !strings.Contains(line, "=-+nsenter --target 1 --mount ") {
				t.Errorf("%s: what this mounts nobody sees: %s", unit, line)
			}
		}
	}
	if !found {
		t.Error("no unit mounts anything")
	}
}

// TestUnitPrintsNothing: without pins of a gateway, as at most starts, its unit has nothing to give
// to the daemon's user, and no error of that is in the journal.
func TestUnitPrintsNothing(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/tabane-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`chown \S*R tabane: /run/tabane-bpf(/gateway-\S+ \S+ \S+ \S+\))'`).FindSubmatchIndex(text)
	if command == nil {
		t.Fatal("the unit gives no pins to the daemon's user")
	}
	given := strings.NewReplacer("$$", "$", "%%", "%", "tabane: /run/tabane-bpf", fmt.Sprintf("%d %s", os.Getuid(), t.TempDir())).Replace(string(text[command[0]:command[3]]))
	if out, _ := exec.Command("sh", "-c", given).CombinedOutput(); len(out) > 0 {
		t.Errorf("%s: %s", given, out)
	}
}

// buildPackages builds the packages of the programs in a directory, uncompressed.
func buildPackages(t *testing.T, version, bin, out string, environment ...string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `exec ../../deploy/debian/build "$@"`, "sh", version, bin, out)
	cmd.Env = append(append(os.Environ(), "DEB_COMPRESSION=none"), environment...)
	output(t, cmd)
}

// bareSystem makes a Debian system of packages of this host: the essential ones, the named ones,
// and what these depend on. It has no manual pages, documentation and translations.
func bareSystem(t *testing.T, names ...string) (root string) {
	t.Helper()
	const admin = "/var/lib/dpkg/"
	status, err := os.ReadFile(admin + "status")
	if err != nil {
		t.Skip("needs Debian: ", err)
	}
	field := func(paragraph, name string) string {
		found := regexp.MustCompile(`(?m)^` + name + `: (.*)$`).FindStringSubmatch(paragraph)
		if found == nil {
			return ""
		}
		return found[1]
	}
	installed, providers := map[string]string{}, map[string]string{}
	for paragraph := range strings.SplitSeq(string(status), "\n\n") {
		name := field(paragraph, "Package")
		if field(paragraph, "Status") != "install ok installed" {
			continue
		}
		installed[name] = paragraph
		if field(paragraph, "Essential") == "yes" {
			names = append(names, name)
		}
		for provided := range strings.FieldsFuncSeq(field(paragraph, "Provides"), func(r rune) bool { return r == ',' }) {
			providers[strings.Fields(provided)[0]] = name
		}
	}
	root = t.TempDir()
	var paths, chosen []string
	for i := 0; i < len(names); i++ { // and what is appended
		paragraph, ok := installed[names[i]]
		if !ok {
			t.Fatalf("the host has no package %s", names[i])
		}
		chosen = append(chosen, paragraph)
		lists, err := filepath.Glob(admin + "info/" + names[i] + "[.:]*list")
		if err != nil || len(lists) != 1 {
			t.Fatalf("files of %s: %q, %v", names[i], lists, err)
		}
		b, err := os.ReadFile(lists[0])
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, strings.Split(strings.TrimSpace(string(b)), "\n")...)
		records, err := filepath.Glob(strings.TrimSuffix(lists[0], "list") + "*")
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, records...)
		for _, group := range strings.Split(field(paragraph, "Pre-Depends")+","+field(paragraph, "Depends"), ",") {
			// The first of the alternatives that the host has; versions hold on the host.
			for alternative := range strings.SplitSeq(group, "|") {
				words := strings.Fields(alternative)
				if len(words) == 0 {
					continue
				}
				name, _, _ := strings.Cut(words[0], ":")
				if _, ok := installed[name]; !ok {
					name = providers[name]
				}
				if name != "" {
					if !slices.Contains(names, name) {
						names = append(names, name)
					}
					break
				}
			}
		}
	}
	paths = append(paths, "/var/lib/dpkg/info/format", "/var/lib/dpkg/arch")
	text := regexp.MustCompile(`^/usr/share/(doc|man|locale|info|i18n|zoneinfo)/`)
	var list strings.Builder
	for _, path := range paths {
		// With a merged /usr, /bin is a link, but packages list its files there.
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil || text.MatchString(path) {
			continue
		}
		path = filepath.Join(dir, filepath.Base(path))
		if _, err := os.Lstat(path); err == nil {
			fmt.Fprintf(&list, ".%s\n", path)
		}
	}
	copied := exec.Command("sh", "-c", `set -e
tar -C / --no-recursion -cf - -T - | tar -C "$1" -xpf -
cd "$1"
mkdir -p tmp dev proc var/lib/dpkg/updates var/log
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
mknod -m 666 dev/null c 1 3`, "sh", root)
	copied.Stdin = strings.NewReader(list.String())
	output(t, copied)
	if err := os.WriteFile(root+admin+"status", []byte(strings.Join(chosen, "\n\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// files are the paths in a directory.
func files(t *testing.T, root string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		all[strings.TrimPrefix(path, root)] = true
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestUnits(t *testing.T) {
	for name, capabilities := range map[string]string{
		"asbr": "CAP_BPF CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE", "edge": "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON",
		"gateway": "CAP_BPF CAP_NET_ADMIN CAP_NET_RAW CAP_PERFMON CAP_NET_BIND_SERVICE", "proxy": "CAP_NET_ADMIN CAP_NET_BIND_SERVICE", "reflector": "CAP_NET_BIND_SERVICE",
	} {
		b, err := os.ReadFile("../../deploy/systemd/tabane-" + name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		d, ok := role.Named(name)
		if !ok {
			t.Fatalf("no daemon %s", name)
		}
		for _, c := range d.Keeps {
			if !slices.Contains(strings.Fields(capabilities), c.String()) {
				t.Errorf("the unit of %s does not give it %s, which it keeps", name, c)
			}
		}
		lines := strings.Split(string(b), "\n")
		for _, line := range lines {
			// Below /run/tabane, the user of the daemons can make a link to anything.
			if strings.HasPrefix(line, "Exec") && strings.Contains(strings.SplitN(line, "/", 2)[0], "+") && strings.Contains(line, "/run/tabane/") {
				t.Errorf("the unit of %s changes a directory of the daemons' user as root: %s", name, line)
			}
		}
		for _, want := range []string{
			"Type=notify-reload", "ExecStart=/usr/bin/tabane " + name + " -c /etc/tabane/" + name + ".yaml", "User=tabane",
			"CapabilityBoundingSet=" + capabilities, "AmbientCapabilities=" + capabilities, "NoNewPrivileges=yes",
			"ProtectSystem=strict", "RuntimeDirectory=tabane", "SystemCallFilter=capset",
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the unit of %s lacks %s", name, want)
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
