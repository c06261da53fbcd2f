package message

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// mrtFolder is the environment variable with a folder of more MRT files to read, plain, .gz or
// .bz2, as route collectors publish them.
const mrtFolder = "TABANE_MRT"

// Types and subtypes of MRT records (RFC 6396 sections 4.4 and 4.5).
const (
	mrtBGP4MP          = 16
	mrtBGP4MPExtended  = 17 // with microseconds
	mrtMessage         = 1
	mrtMessageAS4      = 4
	mrtMessageLocal    = 6
	mrtMessageAS4Local = 7
	mrtHeaderLen       = 12
	// maxRecord is more than any record of a message has, in bytes; others are no MRT file.
	maxRecord = 1 << 20
)

// recorded is an UPDATE of an MRT file.
type recorded struct {
	number    int // of the record
	fourOctet bool
	body      []byte
}

// openMRT opens a file and decompresses it.
func openMRT(path string) (io.Reader, func() error, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(f)
	switch magic, _ := r.Peek(3); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		return z, f.Close, err
	case string(magic) == "BZh":
		return bzip2.NewReader(r), f.Close, nil
	}
	return r, f.Close, nil
}

// updates iterates over the UPDATEs of an MRT file without additional paths (RFC 7911), which this
// speaker does not negotiate.
func updates(r io.Reader) iter.Seq2[recorded, error] {
	return func(yield func(recorded, error) bool) {
		for number := 1; ; number++ {
			var head [mrtHeaderLen]byte
			if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				yield(recorded{}, fmt.Errorf("record %d: %w", number, err))
				return
			}
			kind, subtype := binary.BigEndian.Uint16(head[4:]), binary.BigEndian.Uint16(head[6:])
			size := binary.BigEndian.Uint32(head[8:])
			if size > maxRecord {
				yield(recorded{}, fmt.Errorf("record %d: type %d of %d bytes", number, kind, size))
				return
			}
			b := make([]byte, size)
			if _, err := io.ReadFull(r, b); err != nil {
				yield(recorded{}, fmt.Errorf("record %d: %w", number, err))
				return
			}
			if u, ok := updateOf(kind, subtype, b); ok {
				if u.number = number; !yield(u, nil) {
					return
				}
			}
		}
	}
}

// updateOf returns the UPDATE of an MRT record, false if the record is something else.
func updateOf(kind, subtype uint16, b []byte) (recorded, bool) {
	if kind == mrtBGP4MPExtended && len(b) >= 4 {
		b = b[4:]
	} else if kind != mrtBGP4MP {
		return recorded{}, false
	}
	width := 2
	switch subtype {
	case mrtMessage, mrtMessageLocal:
	case mrtMessageAS4, mrtMessageAS4Local:
		width = 4
	default:
		return recorded{}, false
	}
	head := 2*width + 4 // two AS numbers, interface, address family
	if len(b) < head {
		return recorded{}, false
	}
	addresses := 2 * 4
	if binary.BigEndian.Uint16(b[head-2:]) == afiIPv6 {
		addresses = 2 * 16
	}
	if b = b[head:]; len(b) < addresses+HeaderLen {
		return recorded{}, false
	}
	b = b[addresses:]
	kindOf, length, err := ParseHeader(b, MaxExtended)
	return recorded{0, width == 4, b[HeaderLen:]}, err == nil && kindOf == TypeUpdate && length == len(b)
}

// tally is what was found in MRT files.
type tally struct{ messages, routes, withdrawn, faults, refused, compared int }

// read decodes an UPDATE as one of an external and of an internal neighbor, compares the accessors
// of all attributes with their fields, what is encoded again with what was decoded, and all with
// GoBGP.
func (c *tally) read(t *testing.T, m recorded, in *Interner) {
	c.messages++
	n := everything
	n.FourOctetAS = m.fourOctet
	for _, internal := range []bool{false, true} {
		var u Update
		if err := NewDecoder(n, internal, in).Update(m.body, &u); err != nil {
			// Collectors record what a session was closed for, too.
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != CodeUpdate {
				t.Errorf("error %v", err)
			}
			c.refused++
			return
		}
		accessor.Call(t, &u)
		for _, k := range u.Withdrawn {
			checkKey(t, k)
		}
		for _, a := range u.Announced {
			checkAccessors(t, a.Attributes)
			if again := in.Intern(a.Attributes.Fields()); again != a.Attributes {
				t.Errorf("%+v\nbecame %+v", a.Attributes.Fields(), again.Fields())
			}
			for _, r := range a.NLRI {
				checkKey(t, r.Key)
			}
			if !internal {
				c.routes += len(a.NLRI)
			}
		}
		if !internal {
			c.withdrawn, c.faults = c.withdrawn+len(u.Withdrawn), c.faults+len(u.Faults)
		}
	}
	if compare(t, m.fourOctet, m.body) {
		c.compared++
	}
}

// TestRecordedUpdates reads what route collectors recorded: excerpts of public files, and those of
// the folder that is named in the environment.
func TestRecordedUpdates(t *testing.T) {
	excerpts, err := filepath.Glob("testdata/*.mrt")
	if err != nil || len(excerpts) == 0 {
		t.Fatalf("no excerpts: %v", err)
	}
	files := excerpts
	if folder := os.Getenv(mrtFolder); folder != "" {
		more, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range more {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r, closeFile, err := openMRT(path)
			if err != nil {
				t.Fatal(err)
			}
			defer closeFile()
			var c tally
			in := NewInterner()
			for m, err := range updates(r) {
				if err != nil && slices.Contains(excerpts, path) {
					t.Fatal(err)
				} else if err != nil {
					t.Log(err) // the file is cut off, or another one, such as a README
					break
				}
				c.read(t, m, in)
				if t.Failed() {
					t.Fatalf("record %d: %x", m.number, m.body)
				}
			}
			t.Logf("%+v", c)
			// The excerpts have no faults that hide what they are for.
			if slices.Contains(excerpts, path) && (c.messages < 50 || c.refused > 0 || c.compared < c.messages*9/10) {
				t.Errorf("%+v", c)
			}
		})
	}
}
