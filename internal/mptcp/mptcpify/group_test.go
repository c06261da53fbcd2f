package mptcpify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestOwnGroup(t *testing.T) {
	for name, tt := range map[string]struct{ groups, mounts, want string }{
		"unified":  {"0::/user.slice/a\n", "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/user.slice/a"},
		"hybrid":   {"5:cpu:/x\n0::/\n", "29 1 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n30 1 0:26 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 none rw\n", "/sys/fs/cgroup/unified"},
		"below":    {"0::/docker/1/a\n", "30 1 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/a"},
		"outside":  {"0::/a\n", "30 1 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", ""},
		"version1": {"5:cpu:/x\n", "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", ""},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"cgroup": tt.groups, "mountinfo": tt.mounts} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ownGroup(dir)
		if got != tt.want || (tt.want == "") != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// playGroup enters a control group of its own with a program that has no effect, prints its group,
// and waits for the end of its input. With an argument the missing effect is noticed.
func playGroup(args []string) error {
	attach := func(*os.File) (*os.File, error) { return os.Open(os.DevNull) }
	noticed := errors.New("no effect")
	err := useGroup(attach, func() error {
		if len(args) > 0 {
			return noticed
		}
		return nil
	})
	if len(args) > 0 && !(errors.Is(err, noticed) && errors.Is(err, errors.ErrUnsupported)) || len(args) == 0 && err != nil {
		return fmt.Errorf("group: %w", err)
	}
	own, err := ownGroup("/proc/self")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(own); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// TestGroup: a program has a control group of its own, which is removed after its end, or at once
// where the eBPF program has no effect.
func TestGroup(t *testing.T) {
	netnstest.NeedIsolation(t)
	parent, err := ownGroup("/proc/self")
	if err != nil {
		t.Skip(err)
	}
	if err := unix.Access(parent, unix.W_OK); err != nil {
		t.Skip(err)
	}
	groups := func() []string {
		found, err := filepath.Glob(filepath.Join(parent, groupName+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for _, noticed := range []bool{false, true} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), played+"=group")
		cmd.Stderr = os.Stderr
		if noticed {
			cmd.Args = append(cmd.Args, "noticed")
		}
		input, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(parent, groupName+strconv.Itoa(cmd.Process.Pid))
		want := own
		if noticed {
			want = parent
		}
		var got string
		if err := json.NewDecoder(output).Decode(&got); err != nil || got != want {
			t.Errorf("noticed %v: group %q, %v, want %q", noticed, got, err, want)
		}
		if noticed && slices.Contains(groups(), own) {
			t.Errorf("the group is left")
		}
		if err := errors.Join(input.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
		eventually(t, "the group is removed", func() bool { return !slices.Contains(groups(), own) })
		eventually(t, "the keeper ends", func() bool { return len(keepers(own)) == 0 })
	}
}

// keepers returns the processes that keep a control group.
func keepers(group string) (found []string) {
	lists, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lists {
		if b, _ := os.ReadFile(l); strings.HasPrefix(string(b), processName) && strings.Contains(string(b), group+"\x00") {
			found = append(found, l)
		}
	}
	return found
}
