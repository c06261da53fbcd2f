package quota

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Book has the accounts of lines by their names, as they are kept.
type Book map[string]Account

// MaxAccounts bounds a Book, and MaxBookSize its encoded form in bytes.
const MaxAccounts, MaxBookSize = 64, 64 << 10

// maxName is the longest name of a line in bytes.
const maxName = 64

// Encode returns what Decode reads.
func (b Book) Encode() ([]byte, error) {
	text, err := json.Marshal(b)
	return append(text, '\n'), err
}

// Decode returns the accounts of an encoded book. It refuses what Add cannot have made.
func Decode(text []byte) (Book, error) {
	if len(text) > MaxBookSize {
		return nil, fmt.Errorf("decode quotas: %d bytes, more than %d", len(text), MaxBookSize)
	}
	book := Book{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&book); err != nil {
		return nil, fmt.Errorf("decode quotas: %w", err)
	}
	if d.More() {
		return nil, errors.New("decode quotas: more than one value")
	}
	if len(book) > MaxAccounts {
		return nil, fmt.Errorf("decode quotas: %d lines, more than %d", len(book), MaxAccounts)
	}
	for name, a := range book {
		if err := a.check(); err != nil || len(name) > maxName {
			return nil, fmt.Errorf("decode quota of line %q: %w", name[:min(len(name), maxName)], errors.Join(err, tooLong(name)))
		}
	}
	return book, nil
}

func tooLong(name string) error {
	if len(name) <= maxName {
		return nil
	}
	return fmt.Errorf("a name of %d bytes", len(name))
}

// check returns what is wrong with an account.
func (a *Account) check() error {
	switch n := len(a.Months); {
	case n > keptMonths:
		return fmt.Errorf("%d months, more than %d", n, keptMonths)
	case a.Day < 0 || a.Day > MaxDay:
		return fmt.Errorf("day %d", a.Day)
	}
	seen := map[string]bool{}
	for _, m := range a.Months {
		if _, err := time.Parse(time.DateOnly, m.Begin); err != nil || seen[m.Begin] {
			return fmt.Errorf("month %q", m.Begin)
		}
		if seen[m.Begin] = true; m.Bytes > mostBytes || m.Ahead > m.Bytes {
			return fmt.Errorf("%d bytes in the month of %s, %d of them ahead", m.Bytes, m.Begin, m.Ahead)
		}
	}
	return nil
}
