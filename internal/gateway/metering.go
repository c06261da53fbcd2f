package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quota"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

// defaultQuotaFile is in a directory that is kept when the host is started again.
const defaultQuotaFile = "/var/lib/tabane/gateway.quota"

// checkMetered checks what concerns lines that cost.
func (c *Config) checkMetered(faults *fault.List, at string, p *Path) {
	q := &p.Quota
	if p.Probes != 0 && (p.Probes < tunnel.MinInterval || p.Probes > tunnel.MaxInterval) {
		faults.Add(at+".probes", "must be %s to %s, got %s", tunnel.MinInterval, tunnel.MaxInterval, p.Probes)
	}
	if p.Probes != 0 && p.Backup == NoBackup && *q == (Quota{}) {
		faults.Add(at+".probes", "must be left out without backup or quota: probes.interval is that of other lines")
	}
	if *q != (Quota{}) {
		if q.Volume < unit.MB {
			faults.Add(at+".quota.volume", "must be at least %v, got %v", unit.MB, q.Volume)
		}
		if q.Day < 0 || q.Day > quota.MaxDay {
			faults.Add(at+".quota.day", "must be 1 to %d, got %d", quota.MaxDay, q.Day)
		}
		if q.Then != "" && q.Then != thenStop && q.Then != thenBackup {
			faults.Add(at+".quota.then", "must be %s or %s, got %q", thenStop, thenBackup, q.Then)
		}
	}
	open := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.mode().Open() })
	for _, k := range []struct {
		key  string
		used bool
	}{{"backup", p.Backup != NoBackup}, {"quota", *q != (Quota{})}} {
		switch {
		case !k.used:
		case c.Role != "":
			faults.Add(at+"."+k.key, "must be left out with role %s: what an alliance sends over a line is not bound by it", c.Role)
		case open >= 0:
			faults.Add(at+"."+k.key, "must not be with peers[%d], whose packets are not encrypted: a program in the kernel sends them", open)
		}
	}
}

// metering counts what lines with a quota carry, and keeps it in a file.
type metering struct {
	log *slog.Logger
	// file has book, with more than was counted: what is carried until it is written again. lock is
	// that of the file called locked.
	file, locked string
	lock         io.Closer
	book         quota.Book
	// seen are the plane's counters of all lines at the last look, last the bytes since the look
	// before, kept the bytes of the current month in the file, limits the counters at which the
	// next level begins, levels what was logged.
	seen, last, kept, limits map[string]uint64
	levels                   map[string]quota.Level
	// reached is sent to by the plane when a line reaches its limit.
	reached chan struct{}
	// unread is why the file was not read, until the next start; problem why it was not written,
	// and retry when it is next attempted.
	unread, problem error
	retry           time.Time
}

const (
	// reservedPart is the part of a quota that is written to the file before it is used.
	reservedPart = 1000
	// retryWrite is the pause after the file could not be written.
	retryWrite = time.Minute
)

// newMetering reads what was kept.
func newMetering(c *Config, log *slog.Logger) *metering {
	m := &metering{log: log, book: quota.Book{}, levels: map[string]quota.Level{}, reached: make(chan struct{}, 1)}
	m.configure(c)
	return m
}

// quotas reports whether a line has a quota.
func (c *Config) quotas() bool {
	return slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Quota.Volume > 0 })
}

// quotaFile returns the file that quotas are kept in, empty if there are none.
func (c *Config) quotaFile() string {
	if !c.quotas() {
		return ""
	}
	return cmp.Or(c.QuotaFile, defaultQuotaFile)
}

// claim keeps other gateways of the host from the file of a configuration: each would write what it
// counted alone. What it returns, nil if there is nothing new to lock, is for keep.
func (m *metering) claim(c *Config) (io.Closer, error) {
	file := c.quotaFile()
	if file == "" || file == m.locked {
		return nil, nil
	}
	lock, err := statefile.Lock(file)
	if errors.Is(err, statefile.ErrLocked) {
		return nil, fmt.Errorf("lock quotas %q: another gateway of this host keeps its own there; give each a quota_file", file)
	}
	if err != nil {
		return nil, nil // nobody can write there; the status says so
	}
	return lock, nil
}

// keep applies what claim has returned.
func (m *metering) keep(c *Config, lock io.Closer) {
	if lock == nil {
		return
	}
	m.release()
	m.lock, m.locked = lock, c.quotaFile()
}

func (m *metering) release() {
	if m.lock != nil {
		_ = m.lock.Close() // of a file that nothing was written to
	}
	m.lock, m.locked = nil, ""
}

// configure applies a configuration. Another file is read.
func (m *metering) configure(c *Config) {
	file := c.quotaFile()
	if file == "" || file == m.file {
		return
	}
	m.file, m.kept = file, map[string]uint64{}
	book, err := readBook(file)
	switch {
	case err == nil:
		for name, a := range book {
			if _, counted := m.book[name]; !counted {
				m.book[name] = a
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		// What it has is not lost by the next write.
		if aside, failed := statefile.SetAside(file); failed != nil {
			m.unread = errors.Join(err, failed)
		} else {
			m.unread = fmt.Errorf("%w; the file is %q now", err, aside)
		}
		m.log.Error("quotas are counted from zero", "err", m.unread)
	}
}

// fail notes why the file was not written, and logs it once.
func (m *metering) fail(err error) {
	if m.problem == nil {
		m.log.Error("quotas are not kept over a restart", "err", err)
	}
	m.problem = err
}

// use returns how a line is used, given what it has carried.
func (m *metering) use(p *Path) dataplane.Use {
	u := dataplane.Use{Backup: p.Backup != NoBackup, Full: p.Backup == BackupFull, Interval: p.Probes}
	if p.Quota.Volume > 0 && m.levels[p.Name] == quota.Spent {
		if p.Quota.Then == thenBackup {
			u.Backup = true
		} else {
			u.Spent = true
		}
	}
	return u
}

// limit returns when the plane is to have the quota of a line looked at.
func (m *metering) limit(p *Path) dataplane.Limit {
	if p.Quota.Volume == 0 || m.limits[p.Name] == 0 {
		return dataplane.Limit{}
	}
	return dataplane.Limit{Carried: m.limits[p.Name], Reached: m.reached}
}

// count adds what the lines have carried by the plane's counters, and keeps it. early: it is less
// than countEvery since the last look. It reports whether the plane's state has changed: a line is
// to be used in another way, or has another limit.
func (m *metering) count(paths []Path, lines []dataplane.PathStatus, now time.Time, early bool) (changed bool) {
	write := false
	carried := m.look(lines, early)
	levels, limits := map[string]quota.Level{}, map[string]uint64{}
	for i := range paths {
		p := &paths[i]
		if p.Quota.Volume == 0 {
			continue
		}
		bytes := carried[p.Name]
		plan, account := p.Quota.plan(), m.book[p.Name]
		account.Add(plan, now, bytes)
		m.book[p.Name] = account
		// As much again may be carried before the next look.
		kept, known := m.kept[p.Name]
		write = write || !known || account.Used()+m.reserve(p)/2 > kept || account.Used() < kept-min(kept, m.reserve(p)+4*bytes)
		level := plan.Level(account.Used())
		before, known := m.levels[p.Name]
		if known && before == quota.Fine && level == quota.Spent {
			m.report(p, quota.Low, account.Used(), plan.Ends(now)) // both at once
		}
		if level != before {
			m.report(p, level, account.Used(), plan.Ends(now))
		}
		changed = changed || (level == quota.Spent) != (before == quota.Spent)
		levels[p.Name] = level
		// Both counts grow alike, so that this changes with the level, the month and the file alone.
		if next := plan.Next(account.Used()); next > 0 {
			limits[p.Name] = m.seen[p.Name] + next - account.Used()
		}
	}
	changed = changed || !maps.Equal(limits, m.limits)
	m.levels, m.limits = levels, limits
	if write && !now.Before(m.retry) && !m.write(paths, true) {
		m.retry = now.Add(retryWrite)
	}
	return changed
}

// look returns what lines have carried since the last look, also those without a quota: a reload may
// give them one. After an early look, last is that of the longer time before, if it is more.
func (m *metering) look(lines []dataplane.PathStatus, early bool) (carried map[string]uint64) {
	seen, last := map[string]uint64{}, map[string]uint64{}
	carried = map[string]uint64{}
	for _, l := range lines {
		// A counter that is lower than before began again.
		bytes := l.Carried
		if before := m.seen[l.Name]; before <= bytes {
			bytes -= before
		}
		seen[l.Name], carried[l.Name], last[l.Name] = l.Carried, bytes, bytes
		if early {
			last[l.Name] = max(bytes, m.last[l.Name])
		}
	}
	m.seen, m.last = seen, last
	return carried
}

// reserve returns how many bytes more the file has than a line has carried when it is written: at
// least what a fast line carries in two looks.
func (m *metering) reserve(p *Path) uint64 {
	return max(uint64(p.Quota.Volume)/reservedPart, 2*m.last[p.Name])
}

// report logs that a line has used another part of its quota.
func (m *metering) report(p *Path, level quota.Level, used uint64, ends time.Time) {
	args := []any{"line", p.Name, "used", share(used, p.Quota.Volume), "until", ends.Format(time.DateOnly)}
	switch level {
	case quota.Low:
		m.log.Warn("quota is nearly used up", args...)
	case quota.Spent:
		m.log.Warn("quota is used up", append(args, "then", cmp.Or(p.Quota.Then, thenStop))...)
	case quota.Fine:
		m.log.Info("quota is available", args...)
	}
}

// share returns which part of a volume is used, in words.
func share(used uint64, volume unit.Size) string {
	return fmt.Sprintf("%.0f %% of %v", 100*float64(used)/float64(volume), volume)
}

// write keeps what was counted; with reserve, as if more had been carried. It reports success.
func (m *metering) write(paths []Path, reserve bool) bool {
	book, kept := quota.Book{}, map[string]uint64{}
	for name, a := range m.book {
		i := slices.IndexFunc(paths, func(p Path) bool { return p.Name == name && p.Quota.Volume > 0 })
		switch {
		case i >= 0 && reserve:
			a = a.Reserve(m.reserve(&paths[i]))
		case i < 0 && len(m.book) > quota.MaxAccounts:
			delete(m.book, name)
			continue
		}
		book[name], kept[name] = a, a.Used()
	}
	if err := replaceBook(m.file, book); err != nil {
		m.fail(err)
		return false
	}
	m.kept, m.problem = kept, nil
	return true
}

// close keeps exactly what was counted.
func (m *metering) close(paths []Path) {
	if len(m.levels) > 0 {
		m.write(paths, false)
	}
	m.release()
}

// readBook reads what was kept in a file.
func readBook(name string) (quota.Book, error) {
	text, err := statefile.Read(name, quota.MaxBookSize)
	var book quota.Book
	if err == nil {
		book, err = quota.Decode(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read quotas: %w", err)
	}
	return book, nil
}

// replaceBook replaces a file as a whole.
func replaceBook(name string, book quota.Book) error {
	text, err := book.Encode()
	if err == nil {
		err = statefile.Replace(name, statefile.Bytes(text))
	}
	if err != nil {
		return fmt.Errorf("write quotas %q: %w", filepath.Base(name), err)
	}
	return nil
}

// countEvery is how often it is looked at what lines with a quota have carried, besides when a part
// of a quota is used up: the file is written ahead by what they carry in that time.
const countEvery = time.Second

// meter counts what lines with a quota carry until ctx ends.
func (g *Gateway) meter(ctx context.Context) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		early := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.metering.reached:
			early = true
			tick.Reset(countEvery)
		}
		_ = contain.Do(contain.GatewayTimer, g.log, nil, func() { // it is logged
			g.loop.Do(ctx, func() {
				if g.config.quotas() && g.countQuotas(early) {
					g.applyChanged()
				}
			})
		})
	}
}

// countQuotas counts what the lines have carried, and reports whether the plane's state has
// changed.
func (g *Gateway) countQuotas(early bool) bool {
	return g.metering.count(g.config.Paths, g.plane.Status().Paths, g.wall(), early)
}

// show adds what a line has used of its quota to its status.
func (m *metering) show(l *Line, p *Path, now time.Time) {
	if p.Quota.Volume == 0 {
		return
	}
	a := m.book[p.Name]
	l.QuotaBytes, l.QuotaUsedBytes = int64(p.Quota.Volume), int64(a.Used())
	l.Quota = fmt.Sprintf("%s, until %s", share(a.Used(), p.Quota.Volume), p.Quota.plan().Ends(now).Format(time.DateOnly))
}

// problems returns which lines carry nothing because of their quota, and why the quotas are not
// kept.
func (m *metering) problems(paths []Path) (problems []health.Problem) {
	for i := range paths {
		if p := &paths[i]; p.Quota.Volume > 0 && m.use(p).Spent {
			problems = append(problems, health.Problem{Text: fmt.Sprintf("line %q has used up its quota of %v", p.Name, p.Quota.Volume), Remedy: "raise quota.volume, or wait for the next month"})
		}
	}
	if m.unread != nil && len(m.levels) > 0 {
		problems = append(problems, health.Problem{Text: fmt.Sprintf("quotas are counted from zero: %v", m.unread), Remedy: "stop the daemon, mend that file and move it back, or start the daemon again without it"})
	}
	if m.problem != nil && len(m.levels) > 0 {
		remedy := "make %s a directory that the daemon can write"
		if errors.Is(m.problem, unix.ENOSPC) || errors.Is(m.problem, unix.EDQUOT) {
			remedy = "free space in %s"
		}
		problems = append(problems, health.Problem{Text: fmt.Sprintf("quotas are not kept over a restart: %v", m.problem), Remedy: fmt.Sprintf(remedy, filepath.Dir(m.file))})
	}
	return problems
}
