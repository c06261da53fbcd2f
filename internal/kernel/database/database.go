// Package database opens the files of SQLite that tabane keeps: it makes them, recognizes those of
// other programs and versions, and gives the errors that a user can remove names.
//
// It has no tables of its own.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors of a file that a user can remove.
var (
	ErrLocked   = errors.New("another program has locked it")
	ErrNotWrite = errors.New("it cannot be written")
	ErrFull     = errors.New("the disk is full")
	ErrForeign  = errors.New("it is not a database of this kind")
	ErrVersion  = errors.New("it is of another version")
)

// busy bounds the wait for another program's lock.
const busy = 2 * time.Second

// Kind is what a file is for.
type Kind struct {
	// Application marks the file (PRAGMA application_id), and Version is that of the tables (PRAGMA
	// user_version).
	Application, Version int
	// Schema makes the tables.
	Schema string
	// MaxPages bounds the file, in pages of 4 KiB.
	MaxPages int
	// Erase overwrites what is deleted with zeros.
	Erase bool
}

// Open opens a file; with create it makes a missing one, and calls fill in the transaction that
// makes the tables. What is committed survives the end of the process and of the machine at any
// time. Errors wrap those of this package, or of the file.
func Open(ctx context.Context, path string, k Kind, create bool, fill func(*sql.Tx) error) (*sql.DB, error) {
	if err := reach(path, create); errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil, fmt.Errorf("%w: %w", ErrNotWrite, err)
	} else if err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	erase := 0
	if k.Erase {
		erase = 1
	}
	pragmas := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", fmt.Sprintf("secure_delete(%d)", erase),
		fmt.Sprintf("max_page_count(%d)", k.MaxPages), "trusted_schema(0)",
	}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: absolute, RawQuery: pragmas.Encode()}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := Transact(ctx, db, func(tx *sql.Tx) error { return k.recognize(ctx, tx, create, fill) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// reach returns why the file cannot be read and written, of which SQLite says less. With create it
// makes a missing one. It does not open one that is there: to close it would release locks that this
// process has.
func reach(path string, create bool) error {
	err := unix.Access(path, unix.R_OK|unix.W_OK)
	if create && errors.Is(err, fs.ErrNotExist) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}

// recognize checks the file, or makes its tables.
func (k Kind) recognize(ctx context.Context, tx *sql.Tx, create bool, fill func(*sql.Tx) error) error {
	var app, user, tables int
	if err := tx.QueryRowContext(ctx, "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)").Scan(&app, &user, &tables); err != nil {
		return err
	}
	switch {
	case app == 0 && user == 0 && tables == 0 && create:
		for _, statement := range []string{fmt.Sprintf("PRAGMA application_id = %d", k.Application), fmt.Sprintf("PRAGMA user_version = %d", k.Version), k.Schema} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return fill(tx)
	case app != k.Application:
		return ErrForeign
	case user != k.Version:
		return fmt.Errorf("%w: %d, and this program has %d", ErrVersion, user, k.Version)
	}
	return nil
}

// Transact runs f in a transaction, which is committed unless f returns an error.
func Transact(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return Named(err)
	}
	if err := f(tx); err != nil {
		return errors.Join(Named(err), tx.Rollback())
	}
	return Named(tx.Commit())
}

// Named gives the causes that a user can remove the error of this package, for statements outside
// of Transact.
func Named(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	for code, known := range map[int]error{
		sqlite3.SQLITE_BUSY: ErrLocked, sqlite3.SQLITE_LOCKED: ErrLocked, sqlite3.SQLITE_READONLY: ErrNotWrite, sqlite3.SQLITE_PERM: ErrNotWrite,
		sqlite3.SQLITE_CANTOPEN: ErrNotWrite, sqlite3.SQLITE_FULL: ErrFull, sqlite3.SQLITE_IOERR: ErrNotWrite,
		sqlite3.SQLITE_NOTADB: ErrForeign, sqlite3.SQLITE_CORRUPT: ErrForeign,
	} {
		if e.Code()&0xff == code && !errors.Is(err, known) {
			if code == sqlite3.SQLITE_CANTOPEN {
				return known // its text is "out of memory"
			}
			return fmt.Errorf("%w (%w)", known, err)
		}
	}
	return err
}
