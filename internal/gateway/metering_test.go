package gateway

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quota"
)

// metered is a configuration whose second line has a quota of 1 GB, kept in a directory.
func metered(dir string) Config {
	return Config{QuotaFile: filepath.Join(dir, "quota"), Paths: []Path{{Name: "fiber"}, {Name: "lte", Quota: Quota{Volume: unit.GB}}}}
}

// lte is the status of the plane when the line has carried so much since the plane began.
func lte(carried uint64) []dataplane.PathStatus {
	return []dataplane.PathStatus{{Name: "fiber", Carried: 1 << 40}, {Name: "lte", Carried: carried}}
}

var november = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// TestQuotaIsUsedUp: a line carries packets until its quota is used up, and again in the next
// month.
func TestQuotaIsUsedUp(t *testing.T) {
	var logged strings.Builder
	c := metered(t.TempDir())
	m := newMetering(&c, slog.New(slog.NewTextHandler(&logged, nil)))
	for _, s := range []struct {
		carried uint64 // by the plane's counter
		now     time.Time
		then    string
		changed bool
		use     dataplane.Use
		limit   uint64 // of the plane's counter
		log     string
	}{
		{0, november, "", true, dataplane.Use{}, 800e6, ""},
		{500e6, november, "", false, dataplane.Use{}, 800e6, ""},
		{800e6, november, "", true, dataplane.Use{}, 1000e6, `"quota is nearly used up" line=lte used="80 % of 1GB" until=2026-12-01`},
		{1000e6 - 1, november, "", false, dataplane.Use{}, 1000e6, ""},
		{1000e6, november, "", true, dataplane.Use{Spent: true}, 0, `"quota is used up" line=lte used="100 % of 1GB" until=2026-12-01 then=stop`},
		{1000e6, november, thenBackup, false, dataplane.Use{Backup: true}, 0, ""},
		{1001e6, november, "", false, dataplane.Use{Spent: true}, 0, ""},
		{1002e6, november.AddDate(0, 0, 11), "", true, dataplane.Use{}, 1801e6, `"quota is available"`},
		{5, november.AddDate(0, 0, 11), "", true, dataplane.Use{}, 799e6, ""}, // the plane has another line
		// Nobody looked in between: it is warned nevertheless.
		{1000e6, november.AddDate(0, 0, 11), "", true, dataplane.Use{Spent: true}, 0, `"quota is nearly used up"`},
	} {
		logged.Reset()
		c.Paths[1].Quota.Then = s.then
		if changed := m.count(c.Paths, lte(s.carried), s.now, false); changed != s.changed || m.use(&c.Paths[1]) != s.use {
			t.Errorf("%d at %v: changed %t, %+v, want %t, %+v", s.carried, s.now, changed, m.use(&c.Paths[1]), s.changed, s.use)
		}
		if got := logged.String(); !strings.Contains(got, s.log) || s.log == "" && got != "" {
			t.Errorf("%d at %v: %q is logged, want %q", s.carried, s.now, got, s.log)
		}
		if got := m.limit(&c.Paths[1]); got.Carried != s.limit || (got.Reached != nil) != (s.limit > 0) {
			t.Errorf("%d at %v: the limit is %+v, want %d", s.carried, s.now, got, s.limit)
		}
		problems := m.problems(c.Paths)
		if (len(problems) > 0) != s.use.Spent {
			t.Errorf("%d at %v: %+v", s.carried, s.now, problems)
		}
	}
	if a := m.book["lte"]; a.Used() != 1001e6 {
		t.Errorf("%d used in the next month", a.Used())
	}
	var l Line
	m.show(&l, &c.Paths[1], november.AddDate(0, 0, 11))
	if want := "100 % of 1GB, until 2027-01-01"; l.Quota != want || l.QuotaBytes != 1e9 || l.QuotaUsedBytes != 1001e6 {
		t.Errorf("%+v, want %q", l, want)
	}
}

// TestPropertyKilled: a daemon that is killed at any time counts no less than was carried, if that
// is not more after the last look than before it or than half of a thousandth of the quota; and no
// more than a thousandth and six times what is carried between two looks beyond. One that is
// stopped counts what was carried.
func TestPropertyKilled(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		c := metered(dir)
		_ = os.Remove(c.QuotaFile)
		total, most := uint64(0), uint64(0)
		for range rapid.IntRange(1, 4).Draw(t, "starts") {
			m := newMetering(&c, slog.New(slog.DiscardHandler))
			m.count(c.Paths, lte(0), november, false)
			a := m.book["lte"]
			if used := a.Used(); used < total || used > total+1e6+6*most {
				t.Fatalf("%d counted after a start, %d carried, %d at most in a look", used, total, most)
			}
			total, most = a.Used(), 0
			carried, bytes := uint64(0), uint64(0)
			for range rapid.IntRange(0, 20).Draw(t, "looks") {
				early, before := rapid.Bool().Draw(t, "early"), bytes
				bytes = rapid.Uint64Range(0, 5e6).Draw(t, "bytes")
				carried, most = carried+bytes, max(most, bytes)
				m.count(c.Paths, lte(carried), november, early)
				if early {
					bytes = max(bytes, before)
				}
			}
			total += carried
			if rapid.Bool().Draw(t, "stopped") {
				m.close(c.Paths)
				most = 0
				book, err := readBook(c.QuotaFile)
				if a := book["lte"]; err != nil || a.Used() != total {
					t.Fatalf("%d kept at a stop, %d carried: %v", a.Used(), total, err)
				}
			} else {
				total += rapid.Uint64Range(0, max(bytes, 5e5)).Draw(t, "after the last look")
			}
		}
	})
}

// TestQuotaFile: a file that cannot be read or written is reported, and the line is counted
// nevertheless. What cannot be read is set aside.
func TestQuotaFile(t *testing.T) {
	for name, make := range map[string]func(file string) error{
		"garbage":     func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
		"a directory": func(file string) error { return os.Mkdir(file, 0o700) },
		"a link":      func(file string) error { return os.Symlink("/dev/zero", file) },
		"too long": func(file string) error {
			return os.WriteFile(file, []byte(strings.Repeat(" ", quota.MaxBookSize+1)), 0o600)
		},
		"a missing parent":  func(file string) error { return os.Remove(filepath.Dir(file)) },
		"not there, at all": func(string) error { return nil },
	} {
		var logged strings.Builder
		c := metered(filepath.Join(t.TempDir(), "dir"))
		if err := os.Mkdir(filepath.Dir(c.QuotaFile), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := make(c.QuotaFile); err != nil {
			t.Fatal(err)
		}
		m := newMetering(&c, slog.New(slog.NewTextHandler(&logged, nil)))
		m.count(c.Paths, lte(1e6), november, false)
		m.count(c.Paths, lte(2e6), november, false)
		if a := m.book["lte"]; a.Used() != 2e6 {
			t.Errorf("%s: %d used", name, a.Used())
		}
		want, problem := ".invalid", "quotas are counted from zero"
		switch name {
		case "not there, at all":
			want, problem = "", ""
		case "a missing parent":
			want, problem = "", "quotas are not kept"
		}
		if n := strings.Count(logged.String(), "level=ERROR"); n > 1 || (n == 1) != (problem != "") || !strings.Contains(logged.String(), problem) {
			t.Errorf("%s: %q is logged, want %q once", name, logged.String(), problem)
		}
		if _, err := os.Lstat(c.QuotaFile + ".invalid"); (err == nil) != (want != "") {
			t.Errorf("%s: the file that was set aside: %v", name, err)
		}
		if problems := m.problems(c.Paths); (len(problems) == 1) != (problem != "") || problem != "" && !strings.Contains(problems[0].Text, problem) || want != "" && !strings.Contains(problems[0].Text, c.QuotaFile+want) {
			t.Errorf("%s: %+v, want %q", name, problems, problem)
		}
	}
}

// TestQuotaFileIsWrittenAgain: what could not be written is, after a pause.
func TestQuotaFileIsWrittenAgain(t *testing.T) {
	c := metered(filepath.Join(t.TempDir(), "dir"))
	m := newMetering(&c, slog.New(slog.DiscardHandler))
	m.count(c.Paths, lte(1e6), november, false)
	if err := os.Mkdir(filepath.Dir(c.QuotaFile), 0o700); err != nil {
		t.Fatal(err)
	}
	for pause, want := range []bool{false, true} {
		m.count(c.Paths, lte(1e6), november.Add(time.Duration(pause)*retryWrite), false)
		if _, err := os.Stat(c.QuotaFile); (err == nil) != want || len(m.problems(c.Paths)) == 0 != want {
			t.Errorf("after %d pauses: %v, %v", pause, err, m.problems(c.Paths))
		}
	}
}

// TestQuotaRemedy: a full file system is not said to be a directory that cannot be written.
func TestQuotaRemedy(t *testing.T) {
	c := metered(t.TempDir())
	m := newMetering(&c, slog.New(slog.DiscardHandler))
	m.count(c.Paths, lte(1e6), november, false)
	for err, want := range map[error]string{syscall.ENOSPC: "free space in ", syscall.EDQUOT: "free space in ", syscall.EACCES: "make ", syscall.EROFS: "make "} {
		m.problem = fmt.Errorf("write quotas: %w", err)
		if p := m.problems(c.Paths); len(p) != 1 || !strings.HasPrefix(p[0].Remedy, want) {
			t.Errorf("%v: %+v, want %q", err, p, want)
		}
	}
}

// TestQuotaOfARemovedLine: a quota that is removed and given again goes on where it was, and what
// is carried meanwhile does not count.
func TestQuotaOfARemovedLine(t *testing.T) {
	c := metered(t.TempDir())
	m := newMetering(&c, slog.New(slog.DiscardHandler))
	m.count(c.Paths, lte(5e6), november, false)
	without := c
	without.Paths = c.Paths[:1]
	m.configure(&without)
	m.count(without.Paths, lte(9e6), november, false)
	m.configure(&c)
	m.count(c.Paths, lte(10e6), november, false)
	if a := m.book["lte"]; a.Used() != 6e6 {
		t.Errorf("%d used, want what the line has carried with a quota", a.Used())
	}
	m.count(c.Paths, lte(10e9), november, false)
	c.Paths[1].Quota = Quota{}
	if u := m.use(&c.Paths[1]); u.Spent {
		t.Error("a line is spent without a quota")
	}
}

// TestQuotaFileIsLocked: two gateways do not count in one file, neither from the start nor after a
// reload; one that has ended, or has another file since, leaves it to others.
func TestQuotaFileIsLocked(t *testing.T) {
	c := metered(t.TempDir())
	claim := func(m *metering, c *Config, want string) {
		t.Helper()
		lock, err := m.claim(c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("%v, want %q", err, want)
		}
		m.keep(c, lock)
	}
	first, second := newMetering(&c, slog.New(slog.DiscardHandler)), newMetering(&c, slog.New(slog.DiscardHandler))
	claim(first, &c, "")
	claim(first, &c, "")
	claim(second, &c, "give each a quota_file")
	none := c
	none.Paths = c.Paths[:1]
	claim(second, &none, "")
	other := c
	other.QuotaFile += "2"
	claim(second, &other, "")
	claim(first, &other, "give each a quota_file")
	second.close(other.Paths)
	claim(first, &other, "")
	claim(second, &c, "")
	missing := c
	missing.QuotaFile = filepath.Join(t.TempDir(), "missing", "quota")
	claim(first, &missing, "")
}
