package measurement

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/database"
)

// File is the name of the store in its directory.
const File = "measure.db"

// ErrExists means that the directory has a measurement.
var ErrExists = errors.New("it has a measurement already")

// kind is that of the file: "tabm".
var kind = database.Kind{Application: 0x7461626d, Version: 1, MaxPages: 64 << 10, Schema: `
CREATE TABLE meta (
	one INTEGER PRIMARY KEY CHECK (one = 1),
	plan TEXT NOT NULL
) STRICT;
CREATE TABLE trials (
	id INTEGER PRIMARY KEY,
	block INTEGER NOT NULL,
	position INTEGER NOT NULL,
	mode TEXT NOT NULL,
	started_ns INTEGER NOT NULL,
	goodput_bps REAL,
	failed TEXT,
	trial TEXT NOT NULL,
	conditions TEXT NOT NULL,
	series BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX results ON trials (block, mode) WHERE failed IS NULL;
`}

// Store keeps the trials of one measurement in a directory. A trial that was added survives the end
// of the process and of the machine at any time. It is safe for concurrent use.
type Store struct {
	db   *sql.DB
	plan Plan
	dir  string
}

// Create makes the store of a measurement in a directory, which it creates if needed. Errors wrap
// ErrExists or those of package database.
func Create(ctx context.Context, dir string, p Plan) (*Store, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	made := false
	db, err := database.Open(ctx, filepath.Join(dir, File), kind, true, func(tx *sql.Tx) error {
		made = true
		_, err := tx.ExecContext(ctx, "INSERT INTO meta VALUES (1, ?)", string(text))
		return err
	})
	if err != nil {
		return nil, err
	}
	if !made {
		return nil, errors.Join(ErrExists, db.Close())
	}
	return &Store{db, p, dir}, nil
}

// Open opens the store in a directory. Errors wrap fs.ErrNotExist if there is none, or those of
// package database.
func Open(ctx context.Context, dir string) (*Store, error) {
	db, err := database.Open(ctx, filepath.Join(dir, File), kind, false, nil)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, dir: dir}
	var text string
	err = database.Transact(ctx, db, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, "SELECT plan FROM meta").Scan(&text) })
	if err == nil {
		s.plan, err = decodePlan([]byte(text))
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// decodePlan reads a plan from a store, which anybody may have written.
func decodePlan(text []byte) (Plan, error) {
	var p Plan
	err := json.Unmarshal(text, &p)
	if err == nil {
		err = p.Check()
	}
	if err != nil {
		return Plan{}, fmt.Errorf("%w: its plan: %w", database.ErrForeign, err)
	}
	return p, nil
}

// Exists reports whether a directory has a measurement.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, File))
	return err == nil
}

// claim keeps other runs out of the directory until it is released; it can be read meanwhile.
// Errors wrap database.ErrLocked.
func (s *Store) claim() (release func() error, err error) {
	d, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	// File systems without these locks have no claims.
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%w: it measures into this directory", database.ErrLocked), d.Close())
	}
	return d.Close, nil
}

// Plan returns what is compared.
func (s *Store) Plan() Plan { return s.plan }

// Extend changes the number of trials.
func (s *Store) Extend(ctx context.Context, trials int) error {
	p := s.plan
	p.Trials = trials
	text, err := json.Marshal(p)
	if err == nil {
		err = p.Check()
	}
	if err != nil {
		return err
	}
	err = database.Transact(ctx, s.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE meta SET plan = ?", string(text))
		return err
	})
	if err == nil {
		s.plan = p
	}
	return err
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// Add stores trials, all or none.
func (s *Store) Add(ctx context.Context, rows ...Row) error {
	return database.Transact(ctx, s.db, func(tx *sql.Tx) error {
		for _, r := range rows {
			trial, err := json.Marshal(r.Trial)
			if err != nil {
				return err
			}
			conditions, err := json.Marshal(r.Conditions)
			if err != nil {
				return err
			}
			var failed, goodput any
			if r.Failed != "" {
				failed = r.Failed
			} else {
				goodput = r.GoodputBps
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO trials (block, position, mode, started_ns, goodput_bps, failed, trial, conditions, series) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
				r.Block, r.Position, r.Mode, r.Started.UnixNano(), goodput, failed, string(trial), string(conditions), encodeSeries(r.Series))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Drop removes the results of a block, of which the client's network changed.
func (s *Store) Drop(ctx context.Context, block int, why string) error {
	return database.Transact(ctx, s.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE trials SET failed = ?, goodput_bps = NULL WHERE block = ? AND failed IS NULL", why, block)
		return err
	})
}

// Rows returns all trials in the order in which they were made.
func (s *Store) Rows(ctx context.Context) (rows []Row, err error) {
	err = database.Transact(ctx, s.db, func(tx *sql.Tx) error {
		list, err := tx.QueryContext(ctx, "SELECT block, position, mode, started_ns, failed, trial, conditions, series FROM trials ORDER BY id")
		if err != nil {
			return err
		}
		defer list.Close()
		for list.Next() {
			var r Row
			var started int64
			var failed sql.NullString
			var trial, conditions string
			var series []byte
			if err := list.Scan(&r.Block, &r.Position, &r.Mode, &started, &failed, &trial, &conditions, &series); err != nil {
				return err
			}
			r.Started, r.Failed = time.Unix(0, started).UTC(), failed.String
			if failed.Valid && r.Failed == "" {
				r.Failed = "unknown"
			}
			if err := errors.Join(json.Unmarshal([]byte(trial), &r.Trial), json.Unmarshal([]byte(conditions), &r.Conditions)); err != nil {
				return fmt.Errorf("%w: trial %d: %w", database.ErrForeign, len(rows)+1, err)
			}
			if r.Series, err = decodeSeries(series); err != nil {
				return fmt.Errorf("%w: trial %d: %w", database.ErrForeign, len(rows)+1, err)
			}
			if !(r.GoodputBps > 0) && r.Failed == "" || r.Block < 0 || r.Position < 0 {
				return fmt.Errorf("%w: trial %d has no goodput", database.ErrForeign, len(rows)+1)
			}
			rows = append(rows, r)
		}
		return list.Err()
	})
	return rows, err
}

// maxSeries bounds the samples of a trial: those of maxTime. A trial may end a little after its
// time, so that up to readSeries are read.
const (
	maxSeries  = int(maxTime / (100 * time.Millisecond))
	readSeries = 2 * maxSeries
)

// encodeSeries encodes samples as varints, and cuts those beyond maxSeries.
func encodeSeries(series []int64) []byte {
	b := []byte{}
	for _, n := range series[:min(len(series), maxSeries)] {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// decodeSeries is the reverse of encodeSeries.
func decodeSeries(b []byte) (series []int64, err error) {
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 || len(series) == readSeries {
			return nil, errors.New("its series is damaged")
		}
		series, b = append(series, int64(v)), b[n:]
	}
	return series, nil
}
