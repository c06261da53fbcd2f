package capture

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/contain"
)

// TestPanicNamesThePacket: a packet that panics is an error with the file and the number of the
// packet.
func TestPanicNamesThePacket(t *testing.T) {
	names, err := filepath.Glob("testdata/*.pcap.gz")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	packets := 0
	stop := contain.Inject(func(b contain.Boundary, _ []byte) {
		if packets++; b == contain.Capture && packets == 3 {
			panic("BUG: injected")
		}
	})
	_, err = Read(t.Context(), names[:1], Options{})
	stop()
	var file *FileError
	var fault *contain.Error
	if !errors.As(err, &file) || file.Name != names[0] || !errors.As(err, &fault) || !strings.Contains(err.Error(), ": packet ") {
		t.Errorf("got %v", err)
	}
	if _, err := Read(t.Context(), names[:1], Options{}); err != nil {
		t.Errorf("the next run: %v", err)
	}
}
