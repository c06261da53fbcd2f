package study

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/kernel/database"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/qoe"
)

// Errors of a database that a user can remove.
var (
	ErrLocked   = database.ErrLocked
	ErrNotWrite = database.ErrNotWrite
	ErrFull     = database.ErrFull
	ErrNotStudy = errors.New("it is not the database of a study")
	ErrVersion  = database.ErrVersion
	ErrDesign   = errors.New("it is of a study with other conditions, services or seed")
	// ErrNoSession means that no participant has the code.
	ErrNoSession = errors.New("there is no such participant")
)

var (
	errFull = errors.New("the study has as many participants as it may have")
	errUsed = errors.New("the consent form has been used")
)

const (
	// application marks the file (PRAGMA application_id): "tabn".
	application = 0x7461626e
	// version is that of the tables (PRAGMA user_version).
	version = 1
	// idBytes is the length of a session's id, keyBytes that of the key of signatures.
	idBytes  = 16
	keyBytes = 32
	// maxPages bounds the file, at 4 KiB each: 256 MiB.
	maxPages = 64 << 10
)

const schema = `
CREATE TABLE meta (
	one INTEGER PRIMARY KEY CHECK (one = 1),
	secret BLOB NOT NULL,
	design TEXT NOT NULL,
	runs INTEGER NOT NULL,
	withdrawn INTEGER NOT NULL
) STRICT;
CREATE TABLE sessions (
	id BLOB PRIMARY KEY,
	consent BLOB NOT NULL UNIQUE,
	code TEXT NOT NULL UNIQUE,
	language TEXT NOT NULL,
	design_row INTEGER NOT NULL,
	handover BLOB
) STRICT;
CREATE TABLE tasks (
	session BLOB NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
	position INTEGER NOT NULL,
	condition INTEGER NOT NULL,
	service TEXT NOT NULL,
	started_ns INTEGER,
	run INTEGER,
	views INTEGER NOT NULL,
	finished INTEGER NOT NULL,
	took_ns INTEGER,
	interrupted INTEGER NOT NULL,
	chosen TEXT,
	met INTEGER,
	score INTEGER CHECK (score BETWEEN 1 AND 5),
	PRIMARY KEY (session, position)
) STRICT, WITHOUT ROWID;
`

// store keeps sessions in a file. It is safe for concurrent use.
type store struct {
	db     *sql.DB
	secret []byte
	// run counts the starts of servers.
	run int64
}

// open opens the database of a study. A server makes a missing one, and counts as a start.
func open(ctx context.Context, path, design string, server bool) (*store, error) {
	kind := database.Kind{Application: application, Version: version, Schema: schema, MaxPages: maxPages, Erase: true}
	db, err := database.Open(ctx, path, kind, server, func(tx *sql.Tx) error {
		secret := make([]byte, keyBytes)
		_, _ = rand.Read(secret) // never fails
		_, err := tx.ExecContext(ctx, "INSERT INTO meta VALUES (1, ?, ?, 0, 0)", secret, design)
		return err
	})
	if err != nil {
		return nil, storeError(err)
	}
	s := &store{db: db}
	if err := s.begin(ctx, design, server); err != nil {
		return nil, errors.Join(storeError(err), db.Close())
	}
	return s, nil
}

// begin counts a start of a server, and reads what all sessions have in common.
func (s *store) begin(ctx context.Context, design string, server bool) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if server {
			if _, err := tx.ExecContext(ctx, "UPDATE meta SET runs = runs + 1"); err != nil {
				return err
			}
		}
		var was string
		if err := tx.QueryRowContext(ctx, "SELECT secret, design, runs FROM meta").Scan(&s.secret, &was, &s.run); err != nil {
			return err
		}
		if was != design {
			return fmt.Errorf("%w: %s, and the file has %s", ErrDesign, was, design)
		}
		return nil
	})
}

// storeError gives the causes that a user can remove the error of this package.
func storeError(err error) error {
	err = database.Named(err)
	if errors.Is(err, database.ErrForeign) {
		return fmt.Errorf("%w: %w", ErrNotStudy, err)
	}
	return err
}

// transact runs f in a transaction, which is committed unless f returns an error.
func (s *store) transact(ctx context.Context, f func(*sql.Tx) error) error {
	return database.Transact(ctx, s.db, f)
}

// Close closes the database.
func (s *store) Close() error { return s.db.Close() }

// release deletes a session whose participant has rated no task and whose place has expired, if
// there is one.
func release(ctx context.Context, tx *sql.Tx, expired func([idBytes]byte) bool) (released bool, err error) {
	list, err := tx.QueryContext(ctx, "SELECT id FROM sessions WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE session = id AND score IS NOT NULL)")
	if err != nil {
		return false, err
	}
	defer list.Close()
	for list.Next() {
		var b []byte
		if err := list.Scan(&b); err != nil {
			return false, err
		}
		var id [idBytes]byte
		if copy(id[:], b); expired(id) {
			if err := list.Close(); err != nil {
				return false, err
			}
			_, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?", b)
			return err == nil, err
		}
	}
	return false, list.Err()
}

// begins adds a session. If all places are taken, it has that of a participant without a rating
// that has expired. order returns its row of the design from how often each of the rows is in use.
// Errors are errFull and errUsed, or of the database.
func (s *store) begins(ctx context.Context, id [idBytes]byte, consent []byte, language string, most, rows int, expired func([idBytes]byte) bool, order func(used []int) int) (session, error) {
	added := session{id: id, language: language, code: newCode()}
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var known, all int
		if err := tx.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM sessions WHERE consent = ?), (SELECT count(*) FROM sessions)", consent).Scan(&known, &all); err != nil {
			return err
		}
		if known > 0 {
			return errUsed
		}
		if all >= most {
			if released, err := release(ctx, tx, expired); err != nil {
				return err
			} else if !released {
				return errFull
			}
		}
		used := make([]int, rows)
		list, err := tx.QueryContext(ctx, "SELECT design_row, count(*) FROM sessions GROUP BY design_row")
		if err != nil {
			return err
		}
		defer list.Close()
		for list.Next() {
			var row, n int
			if err := list.Scan(&row, &n); err != nil {
				return err
			}
			if row >= 0 && row < rows {
				used[row] = n
			}
		}
		if err := list.Err(); err != nil {
			return err
		}
		added.order = order(used)
		_, err = tx.ExecContext(ctx, "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, NULL)", added.id[:], consent, added.code, language, added.order)
		return err
	})
	return added, storeError(err)
}

// letters are those of participants' codes: none looks like another one.
const letters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// codeLength gives 2^40 codes.
const codeLength = 8

// newID returns a random identifier of a session.
func newID() (id [idBytes]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// newCode returns a random code.
func newCode() string {
	b := make([]byte, codeLength)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b)
}

// session returns a session. The error is ErrNoSession, or of the database.
func (s *store) session(ctx context.Context, id [idBytes]byte) (found session, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) (err error) {
		found, err = read(ctx, tx, id)
		return err
	})
	return found, storeError(err)
}

// change applies f to a session, in one transaction. It keeps nothing if f returns an error.
func (s *store) change(ctx context.Context, id [idBytes]byte, f func(*session) error) (changed session, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) (err error) {
		if changed, err = read(ctx, tx, id); err != nil {
			return err
		}
		if err := f(&changed); err != nil {
			return err
		}
		return write(ctx, tx, &changed)
	})
	return changed, storeError(err)
}

func read(ctx context.Context, tx *sql.Tx, id [idBytes]byte) (session, error) {
	s := session{id: id}
	err := tx.QueryRowContext(ctx, "SELECT code, language, design_row, handover FROM sessions WHERE id = ?", id[:]).Scan(&s.code, &s.language, &s.order, &s.handover)
	if errors.Is(err, sql.ErrNoRows) {
		return session{}, ErrNoSession
	}
	if err != nil {
		return session{}, err
	}
	list, err := tx.QueryContext(ctx, "SELECT condition, service, coalesce(started_ns, 0), coalesce(run, 0), views, finished, coalesce(took_ns, 0), interrupted, coalesce(chosen, ''), coalesce(met, 0), coalesce(score, 0) FROM tasks WHERE session = ? ORDER BY position", id[:])
	if err != nil {
		return session{}, err
	}
	defer list.Close()
	for list.Next() {
		var t task
		if err := list.Scan(&t.condition, &t.service, &t.started, &t.run, &t.views, &t.finished, &t.took, &t.interrupted, &t.chosen, &t.met, &t.score); err != nil {
			return session{}, err
		}
		s.tasks = append(s.tasks, t)
	}
	return s, list.Err()
}

// write writes what can change of a session: its hand-over and the last task.
func write(ctx context.Context, tx *sql.Tx, s *session) error {
	if _, err := tx.ExecContext(ctx, "UPDATE sessions SET handover = ? WHERE id = ?", s.handover, s.id[:]); err != nil {
		return err
	}
	n := len(s.tasks)
	if n == 0 {
		return nil
	}
	t := s.tasks[n-1]
	var started, run, took, chosen, met, score any // nil: there is none
	if t.finished {
		took, chosen, met = int64(t.took), t.chosen, t.met
	} else {
		started, run = int64(t.started), t.run
	}
	if t.score != 0 {
		score = int(t.score)
	}
	_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		s.id[:], n-1, t.condition, string(t.service), started, run, t.views, t.finished, took, t.interrupted, chosen, met, score)
	return err
}

// withdraw deletes a session with all of its answers.
func (s *store) withdraw(ctx context.Context, where string, value any) error {
	err := s.transact(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE "+where+" = ?", value)
		if err != nil {
			return err
		}
		n, err := done.RowsAffected()
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrNoSession
		}
		_, err = tx.ExecContext(ctx, "UPDATE meta SET withdrawn = withdrawn + 1")
		return err
	})
	if err == nil {
		// The log of changes has the answers as well, until it is truncated.
		_, err = s.db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	return storeError(err)
}

// counts are the numbers of sessions, and of those whose participants withdrew.
func (s *store) counts(ctx context.Context) (sessions, withdrawn int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM sessions), withdrawn FROM meta").Scan(&sessions, &withdrawn)
	return sessions, withdrawn, storeError(err)
}

// Outcome is what a study has so far.
type Outcome struct {
	// Participants counts those who agreed, Withdrawn those of them who withdrew, whose answers are
	// deleted and who are not among Participants.
	Participants, Withdrawn int
	// Counted is false if Withdrawn, and Participants without an answer, are not known.
	Counted bool
	// Answers are all tasks that are finished, by the participants' codes.
	Answers []qoe.Answer
}

// Read returns what the database of a study has, also while a server uses it.
func Read(ctx context.Context, c *Config) (o Outcome, err error) {
	s, err := open(ctx, c.Database, c.design(), false)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if o.Participants, o.Withdrawn, err = s.counts(ctx); err != nil {
		return o, err
	}
	o.Counted = true
	o.Answers, err = s.answers(ctx, c)
	return o, err
}

// Withdraw deletes a participant's answers, by the code.
func Withdraw(ctx context.Context, c *Config, code string) (err error) {
	s, err := open(ctx, c.Database, c.design(), false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.withdraw(ctx, "code", strings.ToUpper(code))
}

// answers returns all tasks that are finished, by the participants' codes.
func (s *store) answers(ctx context.Context, c *Config) ([]qoe.Answer, error) {
	list, err := s.db.QueryContext(ctx, `SELECT code, language, position, condition, service, views, took_ns, interrupted, chosen, met, coalesce(score, 0)
		FROM tasks JOIN sessions ON sessions.id = tasks.session WHERE finished ORDER BY code, position`)
	if err != nil {
		return nil, storeError(err)
	}
	defer list.Close()
	var answers []qoe.Answer
	for list.Next() {
		var a qoe.Answer
		var condition int
		var chosen string
		if err := list.Scan(&a.Participant, &a.Language, &a.Position, &condition, &a.Service, &a.Views, &a.Took, &a.Interrupted, &chosen, &a.Met, &a.Score); err != nil {
			return nil, storeError(err)
		}
		if condition < 0 || condition >= len(c.Conditions) || a.Score != 0 && (a.Score < qoe.MinScore || a.Score > qoe.MaxScore) || !slices.Contains(c.AllServices(), content.Service(a.Service)) {
			return nil, fmt.Errorf("%w: participant %s, task %d", ErrNotStudy, a.Participant, a.Position)
		}
		a.Environment, a.Transport, a.GaveUp = c.Conditions[condition].Group(), c.Conditions[condition].Transport, chosen == ""
		answers = append(answers, a)
	}
	return answers, storeError(list.Err())
}
