package lab

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/cli"
)

// terminalOutput runs a command with a terminal of that many columns as its standard output, and
// returns what it shows.
func terminalOutput(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(master) // EIO once the other side is closed
		read <- string(text)
	}()
	var errors bytes.Buffer
	if code := Run(t.Context(), cli.Options{Args: args, Out: slave, Err: &errors}); code > 1 {
		t.Errorf("%q: exit code %d, %s", args, code, errors.String())
	}
	slave.Close()
	return <-read
}

// TestTablesFitTerminal: no line of a table is wider than the terminal.
func TestTablesFitTerminal(t *testing.T) {
	t.Chdir(t.TempDir())
	for i, goodput := range []int{20, 10} {
		text := fmt.Sprintf(`{"schema":1,"scenario":"epe-steady","backend":"sim","seconds":1,"host":{"kernel":"6.1","cpus":1,"commit":"x"},"runs":[
{"case":"1.1","traffic":"bi","transport":"mptcp-epe","trial":0,"goodput_bps":%d,"burst_median_late":2}],"summary":[
{"case":"1.1","traffic":"bi","transport":"mptcp-epe","metric":"goodput_bps","n":3,"min":%[1]d,"q1":%[1]d,"median":%[1]d,"q3":%[1]d,"max":%[1]d,"mean":%[1]d,"ci95":1},
{"case":"1.1","traffic":"bi","transport":"mptcp-epe","metric":"throughput_before","n":3,"min":1,"q1":1,"median":1,"q3":1,"max":1,"mean":1,"ci95":1}],"expect":[]}`, goodput*1e6)
		dir := string(rune('a' + i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, resultFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"diff", "a", "b"},
		{"sim", "networks", "--many", "2", "--runs", "1", "--connections", "101"},
		{"sim", "networks", "--links", "2", "--runs", "1", "--many", "10"},
		{"sim", "networks", "--spray", "1"},
		{"sim", "networks", "--objects", "100", "--many", "1"},
		{"sim", "worlds", "--count", "1", "--packets", "1000", "--worst", "0"},
	} {
		for _, columns := range []uint16{80, 60} {
			for line := range strings.Lines(terminalOutput(t, columns, args...)) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, " \r\n")); n > int(columns) {
					t.Errorf("%q in %d columns: %d of them: %s", args, columns, n, line)
				}
			}
		}
	}
}
