package session

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// signatureErrors counts segments that the kernel dropped because of TCP MD5 (RFC 2385), in the
// whole network namespace: no other source shows that a password is wrong, and a listener gets no
// error.
type signatureErrors struct {
	wrong      uint64 // the signature does not match our key
	missing    uint64 // a key is set, the segment has no signature
	unexpected uint64 // no key is set, the segment has a signature
}

const netstatFile = "/proc/net/netstat"

func readSignatureErrors() (signatureErrors, error) {
	b, err := os.ReadFile(netstatFile)
	if err != nil {
		return signatureErrors{}, err
	}
	return parseSignatureErrors(b)
}

// parseSignatureErrors parses /proc/net/netstat: pairs of lines with names and values.
func parseSignatureErrors(b []byte) (s signatureErrors, err error) {
	lines := bytes.Split(b, []byte("\n"))
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(string(lines[i])), strings.Fields(string(lines[i+1]))
		if len(names) != len(values) {
			return s, fmt.Errorf("%s: line %d has %d names and %d values", netstatFile, i+1, len(names), len(values))
		}
		for k, name := range names {
			var to *uint64
			switch name {
			case "TCPMD5Failure":
				to = &s.wrong
			case "TCPMD5NotFound":
				to = &s.missing
			case "TCPMD5Unexpected":
				to = &s.unexpected
			default:
				continue
			}
			if *to, err = strconv.ParseUint(values[k], 10, 64); err != nil {
				return s, fmt.Errorf("%s: %s: %w", netstatFile, name, err)
			}
		}
	}
	return s, nil
}

// explain returns the likely reason why a session is not up, from the segments dropped between two
// readings; it is empty if they show none.
func (s signatureErrors) explain(before signatureErrors, password bool) string {
	switch {
	case password && s.wrong > before.wrong:
		return "md5 password differs from the neighbor's (TCPMD5Failure)"
	case password && s.missing > before.missing:
		return "the neighbor has no md5 password (TCPMD5NotFound)"
	case !password && s.unexpected > before.unexpected:
		return "the neighbor has an md5 password (TCPMD5Unexpected)"
	}
	return ""
}

// signatures is the last reading, shared by all sessions.
var signatures struct {
	sync.Mutex
	at   time.Time
	last signatureErrors
}

// readSignatureErrorsAfter returns the counters as they were at some time after the given one,
// which is at most a second or two ago. Where they cannot be read, they are zero.
func readSignatureErrorsAfter(t time.Time) signatureErrors {
	signatures.Lock()
	defer signatures.Unlock()
	if !signatures.at.After(t) {
		signatures.last, _ = readSignatureErrors()
		signatures.at = time.Now()
	}
	return signatures.last
}
