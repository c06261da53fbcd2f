package study

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/browser"
	"github.com/tabane/tabane/internal/page"
	"github.com/tabane/tabane/internal/programs"
	"github.com/tabane/tabane/internal/qoe"
	"github.com/tabane/tabane/internal/site"
)

// patience bounds each wait. The machine may be busy.
const patience = 60 * time.Second

// person drives a browser through a study, by clicks and keys alone.
type person struct {
	*testing.T

	page *browser.Page
	ctx  context.Context
}

// until repeats what fails until it succeeds: a page that a click leads to takes its time.
func (p person) until(what string, f func() error) {
	p.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			p.Fatalf("%s: %v; the page's last step is %d", what, err, p.page.Last().Step)
		}
	}
}

// reach clicks on the elements in turn until the page reports a step: a browser drops clicks until it
// has painted a page.
func (p person) reach(step int, selectors ...string) {
	p.Helper()
	p.until(fmt.Sprintf("step %d", step), func() error {
		var failed error
		for _, selector := range selectors {
			failed = errors.Join(failed, p.page.Click(p.ctx, selector))
		}
		for range 20 {
			if p.page.Last().Step == step {
				return nil
			}
			time.Sleep(50 * time.Millisecond)
		}
		return errors.Join(failed, errors.New("the page has not changed"))
	})
}

// at waits for a step that the page reports.
func (p person) at(step int) {
	p.Helper()
	p.until(fmt.Sprintf("step %d", step), func() error {
		if last := p.page.Last(); last.Step != step {
			return fmt.Errorf("step %d", last.Step)
		}
		return nil
	})
}

// play finds the goal of a task on the page of a service.
func (p person) play(t page.Task) {
	p.Helper()
	p.at(0)
	loads := 0
	for _, s := range t.Steps {
		p.until(s.Selector, func() error { return p.page.Perform(p.ctx, s) })
		if s.Loads {
			loads++
			p.at(loads)
		}
	}
}

// TestChromium takes part in a study, in English and in Japanese, with a reload and a restart of the
// server in the middle, over origins of different hosts.
func TestChromium(t *testing.T) {
	c := Config{
		Title: Text{"Pages", "ページ"}, Contact: "the web laboratory", Database: filepath.Join(t.TempDir(), "study.db"), Seed: 3, Services: []page.Service{page.Shop},
	}
	for i, transport := range []string{"tcp", "mptcp"} {
		host := fmt.Sprintf("127.0.0.%d", 2+i)
		free, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		address := netip.MustParseAddrPort(free.Addr().String())
		if err := free.Close(); err != nil {
			t.Fatal(err)
		}
		without := i > 0
		c.Conditions = append(c.Conditions, Condition{Transport: transport, URL: "http://" + address.String(), Listen: site.Listen{Address: address, MPTCP: &without}})
	}
	if faults := c.Check(); len(faults) > 0 {
		t.Fatal(faults)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var s *Study
	var stop func()
	start := func() {
		t.Helper()
		var err error
		if s, err = New(ctx, Options{Config: c, Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		running, end := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- s.Run(running) }()
		stop = func() {
			t.Helper()
			end()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	start()
	b, err := browser.Start(ctx, browser.Options{Program: programs.Need(t, "chromium"), TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, language := range []string{languageEN, languageJA} {
		opened, err := b.Open(ctx, browser.PageOptions{Width: 1000, Height: 1200})
		if err != nil {
			t.Fatal(err)
		}
		p := person{t, opened, ctx}
		if _, err := opened.Navigate(ctx, c.Conditions[0].URL+root+"consent?lang="+language); err != nil {
			t.Fatal(err)
		}
		p.reach(number(0, briefing), "#agree", "#begin")
		order := 0
		if err := s.store.db.QueryRowContext(ctx, "SELECT design_row FROM sessions WHERE language = ?", language).Scan(&order); err != nil {
			t.Fatal(err)
		}
		for position := range 2 {
			p.reach(0, "#start")
			if position == 0 {
				task := s.task(s.slot(order, position), position)
				p.play(task)
				if language == languageEN { // what is chosen is lost with the page; the task goes on
					stop()
					start()
					if _, err := opened.Navigate(ctx, s.origins[s.slot(order, position).Condition].String()); err != nil {
						t.Fatal(err)
					}
					p.reach(0, "#continue")
					p.play(task)
				}
				p.reach(number(position, rating), "#study-done:not(:disabled)")
			} else {
				p.reach(number(position, rating), "#study-give-up")
			}
			next := number(position+1, briefing)
			if position == 1 {
				next = number(2, ended)
			}
			p.reach(next, fmt.Sprintf("#rating-%d", 4-position), "#send")
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	o, err := Read(ctx, &c)
	if err != nil || o.Participants != 2 || len(o.Answers) != 4 {
		t.Fatalf("%+v, %v", o, err)
	}
	languages, transports := map[string]int{}, map[string]int{}
	for _, a := range o.Answers {
		languages[a.Language]++
		transports[a.Transport]++
		score, met := qoe.Score(4-a.Position), 3
		if a.Position > 0 {
			met = 0
		}
		if a.Score != score || a.Met != met || a.GaveUp != (a.Position > 0) || a.Took <= 0 || a.Interrupted != (a.Language == languageEN && a.Position == 0) {
			t.Errorf("answer %+v, want score %d and %d conditions met", a, score, met)
		}
	}
	if len(languages) != 2 || len(transports) != 2 {
		t.Errorf("languages %v, transports %v", languages, transports)
	}
}
