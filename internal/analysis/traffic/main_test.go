package traffic

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	files, goroutines := openFiles(), runtime.NumGoroutine()
	code := m.Run()
	// Goroutines may end a moment after a test.
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > goroutines && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	// Fuzzing starts a goroutine for signals.
	fuzzing := flag.Lookup("test.fuzz").Value.String() != ""
	if n := runtime.NumGoroutine(); n > goroutines && !fuzzing {
		fmt.Fprintf(os.Stderr, "%d goroutines are left behind\n", n-goroutines)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		code = 1
	}
	// The runtime's poller opens two descriptors on first use.
	if n := openFiles(); n > files+2 {
		fmt.Fprintf(os.Stderr, "%d files are left open\n", n-files)
		code = 1
	}
	os.Exit(code)
}

func openFiles() int {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(files)
}
