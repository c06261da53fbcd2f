package sealed

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// TestRecordHandlers: each type of record that the tunnel knows has a handler, others have none.
func TestRecordHandlers(t *testing.T) {
	for i := range recordHandlers {
		kind := tunnel.RecordType(i)
		known := i > 0 && !strings.HasPrefix(kind.String(), "record type ") // 0 is padding
		if handled := recordHandlers[i] != nil; handled != known {
			t.Errorf("%v: handler %t, known %t", kind, handled, known)
		}
	}
}
