package acceptance

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestProcessors builds the program for other processors, and starts it in an emulator; for armv7,
// which has no 64-bit int, also tests of packages without a kernel: what an int must hold fits into
// 31 bits.
func TestProcessors(t *testing.T) {
	for name, p := range map[string]struct {
		qemu        string
		environment []string
	}{
		"armv7":   {programs.Need(t, "qemu-arm-static"), []string{"GOARCH=arm", "GOARM=7"}},
		"arm64":   {programs.Need(t, "qemu-aarch64-static"), []string{"GOARCH=arm64"}},
		"riscv64": {programs.Need(t, "qemu-riscv64-static"), []string{"GOARCH=riscv64"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tabane, key := filepath.Join(dir, "tabane"), filepath.Join(dir, "gw.key")
			command := func(argv ...string) *exec.Cmd {
				cmd := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, argv...)...)
				cmd.Dir = "../.."
				cmd.Env = slices.Concat(os.Environ(), p.environment, []string{"CGO_ENABLED=0"})
				return cmd
			}
			run := func(argv ...string) string { t.Helper(); return output(t, command(argv...)) }
			run("go", "build", "-buildvcs=false", "-o", tabane, "./cmd/tabane")
			run(p.qemu, tabane, "gateway", "key", "--out", key)
			gateway, err := os.ReadFile("../../examples/gateway-vps.yaml")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "gateway.yaml"), bytes.ReplaceAll(gateway, []byte("/etc/tabane/gw.key"), []byte(key)), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{"examples/asbr.yaml", "examples/edge.yaml", "examples/reflector.yaml", filepath.Join(dir, "gateway.yaml")} {
				if out := run(p.qemu, tabane, "check", "-c", file); !strings.Contains(out, "ok") {
					t.Errorf("check of %s says %q", file, out)
				}
			}
			// The emulator lacks much of what daemons need; doctor finds that, and ends.
			doctor := command(p.qemu, tabane, "doctor")
			if out, err := doctor.CombinedOutput(); doctor.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "required, but missing") {
				t.Errorf("doctor ends with %v and %q", err, out)
			}
			if name == "armv7" {
				run("go", "test", "-short", "-count=1", "-exec", p.qemu,
					"./internal/base/...", "./internal/bgp/message", "./internal/gateway/sched", "./internal/gateway/tunnel", "./internal/gateway/reseq", "./internal/epe/selection")
			}
		})
	}
}

// placeholders returns a directory with small files in place of the two programs: what compresses
// these takes many seconds to do it.
func placeholders(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tabane", "tabane-lab"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unpack returns the files of a tar by name, those of a compressed one where it is.
func unpack(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(b)
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = z
	}
	files := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[strings.TrimPrefix(h.Name, "./")], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// built runs a builder twice and returns what it wrote to the file, the same both times.
func built(t *testing.T, file string, argv ...string) []byte {
	t.Helper()
	var last []byte
	for i := range 2 {
		cmd := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, argv...)...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
		output(t, cmd)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && !bytes.Equal(b, last) {
			t.Error("two builds differ")
		}
		last = b
	}
	return last
}

// TestImage: an image has the two programs, and its parts have the digests by which they are named.
func TestImage(t *testing.T) {
	t.Parallel()
	bin := placeholders(t)
	file := filepath.Join(t.TempDir(), "image.tar")
	files := unpack(t, built(t, file, "go", "run", "./deploy/image", "v1.2.3", "amd64", bin, file))
	blob := func(digest string) []byte {
		b, ok := files["blobs/"+strings.Replace(digest, ":", "/", 1)]
		if !ok {
			t.Fatalf("the image lacks %s", digest)
		}
		return b
	}
	type reference struct{ Digest string }
	var index struct{ Manifests []reference }
	var manifest struct {
		Config reference
		Layers []reference
	}
	var config struct {
		Architecture string
		Config       struct{ Entrypoint []string }
	}
	for _, part := range []struct {
		content func() []byte
		to      any
	}{
		{func() []byte { return files["index.json"] }, &index},
		{func() []byte { return blob(index.Manifests[0].Digest) }, &manifest},
		{func() []byte { return blob(manifest.Config.Digest) }, &config},
	} {
		if err := json.Unmarshal(part.content(), part.to); err != nil {
			t.Fatal(err)
		}
	}
	if config.Architecture != "amd64" || len(config.Config.Entrypoint) != 1 || len(manifest.Layers) != 1 {
		t.Errorf("the image is %+v, %+v", manifest, config)
	}
	content := unpack(t, blob(manifest.Layers[0].Digest))
	for _, name := range []string{"tabane", "tabane-lab"} {
		want, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content["usr/bin/"+name], want) {
			t.Errorf("the image has another %s", name)
		}
	}
}

// TestImageRuns: what a container engine would run from the image works with nothing but its files,
// as a user without privileges; so does what the example for Kubernetes runs there.
func TestImageRuns(t *testing.T) {
	t.Parallel()
	needLab(t) // for chroot
	file := filepath.Join(t.TempDir(), "image.tar")
	cmd := exec.Command("sh", "-c", `exec go run ./deploy/image "$@"`, "sh", "v1.2.3", "amd64", filepath.Dir(program), file)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	output(t, cmd)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	root, largest := t.TempDir(), []byte(nil)
	for name, blob := range unpack(t, b) {
		if strings.HasPrefix(name, "blobs/") && len(blob) > len(largest) {
			largest = blob // the layer
		}
		if name == "index.json" && !strings.Contains(string(blob), `"docker.io/library/tabane:v1.2.3"`) {
			t.Errorf("the image has another name: %s", blob)
		}
	}
	extract := exec.Command("sh", "-c", `exec tar -xpzf - -C "$1"`, "sh", root)
	extract.Stdin = bytes.NewReader(largest)
	output(t, extract)
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "proc"), 0o755)); err != nil {
		t.Fatal(err)
	}
	in := func(argv ...string) string {
		t.Helper()
		// As an engine does, with /proc.
		const enter = `exec unshare -m sh -c 'mount -t proc proc "$1/proc" && exec chroot --userspec=65534:65534 "$@"' sh "$@"`
		cmd := exec.Command("sh", append([]string{"-c", enter, "sh", root, "/usr/bin/tabane"}, argv...)...)
		cmd.Env = []string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin"} // chroot itself is searched for, too
		return output(t, cmd)
	}
	in("version")
	b, err = os.ReadFile("../../examples/asbr.yaml")
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "tmp/asbr.yaml"), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	in("check", "-c", "/tmp/asbr.yaml")
	b, err = os.ReadFile("../../examples/sweep-job.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "image: docker.io/library/tabane:VERSION ") {
		t.Error("the example has another image")
	}
	var arguments []string
	for _, found := range regexp.MustCompile(`(?m)^            - (.*)$`).FindAllStringSubmatch(string(b), -1) {
		argument := strings.NewReplacer("$(JOB_COMPLETION_INDEX)/8", "0/1", "$(JOB_COMPLETION_INDEX)", "0", "/sweep/", "/tmp/", "=20ms,50ms,100ms", "=20ms", "=2Mbit/s,5Mbit/s,10Mbit/s", "=2Mbit/s", "=65kB,260kB,unlimited", "=65kB", "seeds=12", "seeds=1").Replace(found[1])
		if !strings.HasPrefix(argument, "{") {
			arguments = append(arguments, argument)
		}
	}
	in(arguments...)
	if b, err := os.ReadFile(filepath.Join(root, "tmp/shard-0.csv")); err != nil || bytes.Count(b, []byte("\n")) < 2 {
		t.Errorf("the example for Kubernetes, %q, has written %q, %v", arguments, b, err)
	}
}

// procd are the functions of OpenWrt that the script uses; they print what procd would be told. The
// section of UCI is enabled.
const procd = `
for f in procd_open_instance procd_set_param procd_close_instance procd_add_reload_trigger mkdir; do eval "$f() { echo $f \"\$@\"; }"; done
config_load() { file=etc/config/$1; }
config_foreach() { for section in $(sed -n "s/^config $2 '\(.*\)'/\1/p" "$file"); do "$1" "$section"; done; }
config_get() { eval "$1=\$(sed -n \"s/.*option $3 '\(.*\)'/\1/p\" $file)"; eval "[ -n \"\$$1\" ] || $1='$4'"; }
config_get_bool() { config_get "$@"; }
. etc/init.d/tabane
start_service
service_triggers
`

// TestOpenWrtService installs the files of the package into a root, and runs its script as
// rc.common does: an enabled daemon is started with the program and the file that are there, a
// disabled one is not.
func TestOpenWrtService(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), t.TempDir()
	build := exec.Command("sh", "-c", `exec deploy/openwrt/build "$@"`, "sh", "v1.2.3", "aarch64_generic", placeholders(t), dir)
	build.Dir, build.Env = "../..", append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	output(t, build)
	output(t, exec.Command("sh", "-c", `cd "$1" && tar -xzf "$2" && tar -xpzf data.tar.gz -C "$3" && tar -xpzf control.tar.gz`, "sh", dir, filepath.Join(dir, "tabane_1.2.3_aarch64_generic.ipk"), root))
	for name, mode := range map[string]os.FileMode{"usr/bin/tabane": 0o755, "etc/init.d/tabane": 0o755, "etc/config/tabane": 0o600, "etc/tabane/gateway-vps.yaml.example": 0o600, "lib/upgrade/keep.d/tabane": 0o644} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info, err, mode)
		}
	}
	// What opkg keeps at an upgrade is in the package.
	conffiles, err := os.ReadFile(filepath.Join(dir, "conffiles"))
	if err != nil || len(conffiles) == 0 {
		t.Errorf("conffiles: %q, %v", conffiles, err)
	}
	for name := range strings.FieldsSeq(string(conffiles)) {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	run := func() string {
		t.Helper()
		cmd := exec.Command("sh", "-eu", "-c", procd)
		cmd.Dir = root
		return output(t, cmd)
	}
	if got := run(); strings.Contains(got, "procd_open_instance") || !strings.Contains(got, "procd_add_reload_trigger tabane\n") {
		t.Errorf("as installed:\n%s", got)
	}
	file := filepath.Join(root, "etc/config/tabane")
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(b, []byte("enabled '0'"), []byte("enabled '1'"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := run()
	for _, want := range []string{
		"mkdir -p /run/tabane", "procd_open_instance gateway", "procd_set_param command /usr/bin/tabane gateway -c /etc/tabane/gateway.yaml",
		"procd_set_param file /etc/tabane/gateway.yaml", "procd_set_param reload_signal HUP", "procd_close_instance",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("enabled, it lacks %q:\n%s", want, got)
		}
	}
}

// TestOpenWrtPackage: the package has the three parts of an .ipk, the program and a script that a
// shell can read.
func TestOpenWrtPackage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parts := unpack(t, built(t, filepath.Join(dir, "tabane_1.2.3_aarch64_generic.ipk"), "sh", "-c", `exec deploy/openwrt/build "$@"`, "sh", "v1.2.3", "aarch64_generic", placeholders(t), dir))
	if got := string(parts["debian-binary"]); got != "2.0\n" {
		t.Errorf("the version of the format is %q", got)
	}
	control := unpack(t, parts["control.tar.gz"])
	if got := string(control["control"]); !strings.Contains(got, "\nArchitecture: aarch64_generic\n") || !strings.Contains(got, "\nVersion: 1.2.3\n") {
		t.Errorf("the package is %q", got)
	}
	data := unpack(t, parts["data.tar.gz"])
	for _, name := range []string{"usr/bin/tabane", "etc/init.d/tabane", "etc/config/tabane", "etc/tabane/gateway.yaml.example"} {
		if len(data[name]) == 0 {
			t.Errorf("the package lacks %s", name)
		}
	}
	for _, script := range [][]byte{data["etc/init.d/tabane"], control["postinst"], control["prerm"]} {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = bytes.NewReader(script)
		output(t, cmd)
	}
}
