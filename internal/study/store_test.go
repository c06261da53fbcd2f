package study

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
)

// exec opens a database with the library alone and runs statements.
func exec(t *testing.T, path string, statements ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// TestDatabases: what is not the database of this study is refused, with the cause.
func TestDatabases(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	mine := func(name string) string {
		s, err := open(t.Context(), at(name), "design", true)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if info, err := os.Stat(mine("mode.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(at("text.db"), []byte(strings.Repeat("no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("folder.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exec(t, at("foreign.db"), "CREATE TABLE notes (text TEXT)").Close(); err != nil {
		t.Fatal(err)
	}
	if err := exec(t, mine("newer.db"), "PRAGMA user_version = 2").Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(mine("torn.db")); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(at("torn.db"), append(b[:4096:4096], make([]byte, len(b)-4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	locked := exec(t, mine("locked.db"), "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "UPDATE meta SET withdrawn = 0")
	defer locked.Close()
	for _, one := range []struct {
		name   string
		server bool
		want   error
	}{
		{"text.db", true, ErrNotStudy}, {"text.db", false, ErrNotStudy}, {"foreign.db", true, ErrNotStudy}, {"newer.db", true, ErrVersion}, {"newer.db", false, ErrVersion},
		{"torn.db", true, ErrNotStudy}, {"locked.db", true, ErrLocked}, {"none.db", false, fs.ErrNotExist}, {"none/none.db", true, fs.ErrNotExist},
	} {
		if s, err := open(t.Context(), at(one.name), "design", one.server); !errors.Is(err, one.want) {
			t.Errorf("%s: %v, %v, want %v", one.name, s, err, one.want)
		}
	}
	if _, err := open(t.Context(), mine("other.db"), "another design", false); !errors.Is(err, ErrDesign) {
		t.Errorf("another design: %v", err)
	}
	if _, err := open(t.Context(), at("folder.db"), "design", true); err == nil {
		t.Error("a folder: no error")
	}
	if os.Geteuid() != 0 {
		path := mine("read.db")
		if err := os.Chmod(path, 0o400); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t.Context(), path, "design", true); !errors.Is(err, ErrNotWrite) {
			t.Errorf("a file that cannot be written: %v", err)
		}
	}
	// A file that stops taking anything: the answer is that it was not stored.
	p := start(t, twoConditions(at("study.db")))
	a := p.consent()
	if _, err := p.server.store.db.Exec("PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	if a := p.post(a, "start"); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, english.NotStored) || !strings.Contains(p.log.String(), "database does not work") {
		t.Errorf("%d\n%s\n%s", a.status, a.body, p.log)
	}
}

// TestNothingIdentifies: no byte of the database's files is of the browser or of the day.
func TestNothingIdentifies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "study.db")
	p := start(t, twoConditions(path))
	p.now = time.Duration(time.Now().UnixNano())
	a := p.post(p.consent(), "start")
	p.now += time.Minute
	p.post(a, "done", "give-up", "yes")
	var left int
	if err := p.server.store.db.QueryRow("SELECT count(*) FROM tasks WHERE started_ns IS NOT NULL OR run IS NOT NULL").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d times of day are left, %v", left, err)
	}
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"192.0.2.1", "Secret/1.0", "one.example"} {
			if strings.Contains(string(b), bad) {
				t.Errorf("%s has %q", filepath.Base(path+suffix), bad)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	c := twoConditions("study.db")
	if faults := c.Check(); len(faults) > 0 {
		t.Error(faults)
	}
	at := func(text string) httpd.Listen { return httpd.Listen{Address: netip.MustParseAddrPort(text)} }
	for want, change := range map[string]func(*Config){
		"title.en: must have":                                   func(c *Config) { c.Title.EN = "" },
		"title.ja: must have":                                   func(c *Config) { c.Title.JA = strings.Repeat("x", maxText+1) },
		"contact: must have":                                    func(c *Config) { c.Contact = "" },
		"database: must name":                                   func(c *Config) { c.Database = "" },
		"services[0]: must be one of":                           func(c *Config) { c.Services = []content.Service{"mail"} },
		"services[1]: map is given twice":                       func(c *Config) { c.Services = []content.Service{content.Map, content.Map} },
		"participants: must be 1 to":                            func(c *Config) { c.Participants = -1 },
		"sessions_per_minute: must be":                          func(c *Config) { c.SessionsPerMinute = 1e6 },
		"conditions: must be 1 to":                              func(c *Config) { c.Conditions = nil },
		"conditions[0].transport: must be":                      func(c *Config) { c.Conditions[0].Transport = "a b" },
		"conditions[0].environment: must be":                    func(c *Config) { c.Conditions[0].Environment = "-" },
		"conditions[1].transport: conditions[0] has":            func(c *Config) { c.Conditions[1].Transport = "tcp" },
		"conditions[1].address: [::]:8081 is already":           func(c *Config) { c.Conditions[1].Listen = at("[::]:8081") },
		"conditions[1].url: http://one.example:8081 is already": func(c *Config) { c.Conditions[1].URL = c.Conditions[0].URL },
		"conditions[0].url: must be scheme":                     func(c *Config) { c.Conditions[0].URL = "one.example" },
		"conditions[0].url: must begin with https":              func(c *Config) { c.Conditions[0].URL = "https://one.example" },
		"conditions[1].url: must have the scheme": func(c *Config) {
			c.Conditions[1].URL, c.Conditions[1].Certificate, c.Conditions[1].Key = "https://two.example", "a", "b"
		},
		"conditions[0].congestion: must have": func(c *Config) { c.Conditions[0].Congestion = "a name that is too long" },
		"conditions[0]: must have both":       func(c *Config) { c.Conditions[0].Key = "x" },
	} {
		c := twoConditions("study.db")
		change(&c)
		if text := fmt.Sprint(c.Check()); !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
	for _, bad := range []string{"http://user@one.example", "http://one.example/path", "http://one.example?q", "http://one.example#f", "ftp://one.example", "http://", "http://ONE.example", "http://[::1"} {
		if u, err := origin(bad); err == nil {
			t.Errorf("%s: %v", bad, u)
		}
	}
	if u, err := origin("https://one.example:443/"); err != nil || u.String() != "https://one.example" {
		t.Errorf("got %v, %v", u, err)
	}
}

// FuzzForms posts what strangers may post to each action: the server neither panics nor takes it
// for an answer.
func FuzzForms(f *testing.F) {
	for _, seed := range []string{
		"", "token=x&position=0", "token=&lang=en&agree=yes", "token=a&position=0&rating=5", "token=a&position=0&chosen=p1", "token=a&position=0&chosen=&give-up=yes",
		"position=99999999999999999999&token=%00", "token=%ff&position=-1&rating=٣", "a;b=c", "%zz", "token=a&token=b", "lang=ja&agree=yes&token=" + strings.Repeat("A", 64),
	} {
		f.Add("start", seed, "", "http://one.example:8081", "")
		f.Add("rate", seed, "x", "http://one.example:8081", "same-origin")
	}
	c := twoConditions(filepath.Join(f.TempDir(), "study.db"))
	s, err := newServer(context.Background(), Options{Config: c})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.store.Close() })
	s.sessions.perMinute = 1 << 30
	participant, err := s.store.begins(context.Background(), newID(), []byte("consent"), languageEN, 10, len(s.design), func([idBytes]byte) bool { return false }, func([]int) int { return 0 })
	if err != nil {
		f.Fatal(err)
	}
	handlers := []http.Handler{s.handler(0, http.NotFoundHandler()), s.handler(1, http.NotFoundHandler())}
	own := s.sign.cookie(participant.id)
	f.Fuzz(func(t *testing.T, action, body, cookie, origin, fetch string) {
		if len(body) > 2*maxForm || len(action) > 64 || len(cookie) > 256 {
			return
		}
		for _, value := range []string{own, cookie} {
			r, err := http.NewRequest(http.MethodPost, "http://one.example:8081"+root+url.PathEscape(action), strings.NewReader(body))
			if err != nil {
				return
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Origin", origin)
			r.Header.Set("Sec-Fetch-Site", fetch)
			r.Header.Set("Cookie", cookieName+"="+value)
			w := &discard{header: http.Header{}}
			handlers[0].ServeHTTP(w, r)
			if w.status < 300 || w.status == http.StatusInternalServerError {
				t.Errorf("status %d", w.status)
			}
		}
		if found, err := s.store.session(context.Background(), participant.id); err != nil || len(found.tasks) != 0 {
			t.Errorf("the session has %v, %v", found, err)
		}
	})
}

// discard is a ResponseWriter that keeps the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) WriteHeader(status int) { d.status = status }

func (d *discard) Write(b []byte) (int, error) {
	if d.status == 0 {
		d.status = http.StatusOK
	}
	return len(b), nil
}
