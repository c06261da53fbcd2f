package simrun

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Errors of opening a sweep's file.
var (
	// ErrOtherFile means that the columns of the file are not those of the sweep, or that it is
	// not a CSV file.
	ErrOtherFile = errors.New("holds something else than this sweep's rows")
	// ErrNotRegular means that rows cannot be added to what is no regular file.
	ErrNotRegular = errors.New("is no regular file, which rows are added to")
	// ErrBusy means that another sweep writes to the file.
	ErrBusy = errors.New("another sweep is writing to it")
)

// table is a CSV file to which rows are appended, each with one write, so that a killed program
// leaves at most one incomplete row.
type table struct {
	f *os.File
	// rows are the fingerprints of the rows in the file when it was opened; columns is the
	// number of columns.
	rows     map[string]bool
	columns  int
	repaired bool
	buffer   bytes.Buffer
}

// openTable opens or creates the file, locks it and reads the fingerprints of its rows. An
// incomplete last row is removed.
func openTable(name string, header []string) (_ *table, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	// The end of another file, such as a pipe or a device, may never come.
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open table %q: %w", name, ErrNotRegular)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, fmt.Errorf("open table %q: %w", name, err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read table %q: %w", name, err)
	}
	t := &table{f: f, rows: map[string]bool{}, columns: len(header)}
	// No field contains a line break, so the text after the last line break is an incomplete
	// row.
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	var first bytes.Buffer
	if err := writeRow(&first, header); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(first.Bytes(), data) && !bytes.HasPrefix(whole, first.Bytes()) {
		return nil, fmt.Errorf("read table %q: %w: its columns are others", name, ErrOtherFile)
	}
	r := csv.NewReader(bytes.NewReader(whole))
	r.FieldsPerRecord = len(header)
	all, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read table %q: %w: %w", name, ErrOtherFile, err)
	}
	for _, row := range all[min(1, len(all)):] {
		t.rows[row[len(row)-1]] = true
	}
	if len(whole) < len(data) {
		t.repaired = true
		if err := f.Truncate(int64(len(whole))); err != nil {
			return nil, fmt.Errorf("repair table %q: %w", name, err)
		}
	}
	if len(whole) == 0 {
		if err := t.add(header); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func writeRow(b *bytes.Buffer, row []string) error {
	w := csv.NewWriter(b)
	if err := w.Write(row); err != nil {
		return fmt.Errorf("encode row: %w", err)
	}
	w.Flush()
	return w.Error()
}

// add appends a row.
func (t *table) add(row []string) error {
	if len(row) != t.columns || slices.ContainsFunc(row, func(s string) bool { return bytes.ContainsAny([]byte(s), "\r\n") }) {
		panic(fmt.Sprintf("BUG: row %q of a table of %d columns", row, t.columns))
	}
	t.buffer.Reset()
	if err := writeRow(&t.buffer, row); err != nil {
		return err
	}
	if _, err := t.f.Write(t.buffer.Bytes()); err != nil {
		return fmt.Errorf("add row: %w", err)
	}
	return nil
}

// close syncs the file to disk and releases the lock.
func (t *table) close() error { return errors.Join(t.f.Sync(), t.f.Close()) }
