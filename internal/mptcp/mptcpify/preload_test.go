package mptcpify

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestAddPreload(t *testing.T) {
	for _, tt := range []struct{ env, want []string }{
		{nil, []string{"LD_PRELOAD=/lib"}},
		{[]string{"A=1", "LD_PRELOAD=", "B=2"}, []string{"A=1", "LD_PRELOAD=/lib", "B=2"}},
		{[]string{"LD_PRELOAD=/other:/third"}, []string{"LD_PRELOAD=/lib:/other:/third"}},
		{[]string{"LD_PRELOADS=/other"}, []string{"LD_PRELOADS=/other", "LD_PRELOAD=/lib"}},
	} {
		before := slices.Clone(tt.env)
		if got := addPreload(tt.env, "/lib"); !slices.Equal(got, tt.want) || !slices.Equal(tt.env, before) {
			t.Errorf("addPreload(%q) = %q, want %q", before, got, tt.want)
		}
	}
}

func TestParseShebang(t *testing.T) {
	for line, want := range map[string]string{
		"#!/bin/sh\n": "/bin/sh", "#! /usr/bin/env python3 -u\n": "/usr/bin/env", "#!\n": "", "": "", "/bin/sh\n": "", "\x7fELF": "",
	} {
		if got := parseShebang(line); got != want {
			t.Errorf("parseShebang(%q) = %q, want %q", line, got, want)
		}
	}
}

func FuzzParseShebang(f *testing.F) {
	f.Add("#!/bin/sh -e\n")
	f.Fuzz(func(t *testing.T, line string) {
		if got := parseShebang(line); strings.ContainsAny(got, " \t\n") || !strings.Contains(line, got) {
			t.Errorf("parseShebang(%q) = %q", line, got)
		}
	})
}

func TestPreloadable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const shell = "/bin/sh"
	var header bytes.Buffer
	if err := binary.Write(&header, binary.LittleEndian, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}); err != nil {
		t.Fatal(err)
	}
	static := write("static", header.String())
	script, other, text := write("script", "#!"+shell+" -e\n"), write("other", "#!"+static+"\n"), write("text", "hello")
	for _, path := range []string{shell, script} {
		if err := preloadable(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{static, other, "/proc/self/exe", text, filepath.Join(dir, "none")} {
		var missing *feature.Error
		if err := preloadable(path); !errors.As(err, &missing) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFindLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libmptcpwrap.so"), []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	var missing *feature.Error
	if path, err := findLibrary([]string{dir + "/*.so*"}); !errors.As(err, &missing) {
		t.Errorf("found %q, %v", path, err)
	}
}

// TestCurl runs a dynamically linked program of others in all ways that can be tested.
func TestCurl(t *testing.T) {
	need(t)
	curl := programs.Need(t, "curl", "mptcpize")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // Go's listeners use MPTCP
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	server := http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			multipath, err := r.Context().Value(key{}).(*net.TCPConn).MultipathTCP()
			fmt.Fprint(w, multipath, err)
		}),
	}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	url := "http://" + l.Addr().String() + "/"
	if out, err := exec.Command(curl, "-s", url).Output(); err != nil || string(out) != "false <nil>" {
		t.Fatalf("curl without mptcpify: %q, %v", out, err)
	}
	for _, how := range []How{Auto, Seccomp, Preload} {
		cmd := command(curl, "-s", url)
		cmd.Env = append(cmd.Env, howKey+"="+string(how))
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "true <nil>" {
			t.Errorf("%s: %q, %v", how, out, err)
		}
	}
}
