package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/lab/browser"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// served is a study that a process of the program serves.
type served struct {
	*testing.T

	dir, file string
	urls      []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	output bytes.Buffer
}

// studyPatience bounds each wait. The machine may be busy.
const studyPatience = 60 * time.Second

// serve serves a study of the services under two conditions, at addresses of different hosts.
func serve(t *testing.T, services string) *served {
	t.Helper()
	s := &served{T: t, dir: t.TempDir()}
	text := fmt.Sprintf("study:\n  title: {en: Pages, ja: ページ}\n  contact: the web laboratory\n  database: study.db\n  seed: 3\n  services: [%s]\n  conditions:\n", services)
	for i, transport := range []string{"tcp", "mptcp"} {
		free, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", 2+i))
		if err != nil {
			t.Fatal(err)
		}
		address := free.Addr().String()
		if err := free.Close(); err != nil {
			t.Fatal(err)
		}
		s.urls = append(s.urls, "http://"+address)
		text += fmt.Sprintf("    - {transport: %s, url: \"http://%s\", address: %q, mptcp: %t}\n", transport, address, address, i > 0)
	}
	s.file = filepath.Join(s.dir, "study.yaml")
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.output.String())
		}
	})
	s.start()
	return s
}

// start starts a server and waits until it listens.
func (s *served) start() {
	s.Helper()
	cmd := exec.Command(program, "qoe", "study", "-c", s.file)
	cmd.Stderr = &s.output
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	for _, u := range s.urls {
		for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			c, err := net.Dial("tcp", strings.TrimPrefix(u, "http://"))
			if err == nil {
				_ = c.Close()
				break
			}
			if time.Since(begun) > studyPatience {
				s.Fatalf("the study is not served: %v", err)
			}
		}
	}
}

// end ends the server with a signal, if it runs, and waits for it.
func (s *served) end(sig syscall.Signal) {
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(sig); err != nil {
		s.Error(err)
	}
	if err := cmd.Wait(); err != nil && sig != syscall.SIGKILL {
		s.Errorf("the server: %v", err)
	}
}

// exportedStudy is the JSON export.
type exportedStudy struct {
	Participants, Withdrawn int
	Answers                 []struct {
		Participant, Language, Transport string
		Position                         int
		TimeS                            *float64 `json:"time_s"`
		Met                              int      `json:"conditions_met"`
		GaveUp                           bool     `json:"gave_up"`
		Interrupted                      bool
		Rating                           *int
	}
}

func (s *served) export() (o exportedStudy) {
	s.Helper()
	out, err := exec.Command(program, "qoe", "export", "-c", s.file, "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &o)
	}
	if err != nil {
		s.Fatalf("export: %v\n%s", err, out)
	}
	return o
}

// leavesNothing stops the server and checks that only the database is left of it.
func (s *served) leavesNothing() {
	s.Helper()
	s.end(syscall.SIGTERM)
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "study.db" && e.Name() != "study.yaml" {
			s.Errorf("left behind: %s", e.Name())
		}
	}
}

// The steps that the pages of a study report (data-step): of a position, and of the end.
const (
	studyBriefing = iota
	studyWorking
	studyRating
	studyEnded
)

func studyStep(position, phase int) int { return 1000 + 10*position + phase }

// participant takes part over HTTP.
type participant struct {
	*served

	client *http.Client
	number int
	// reached is the step that the last acknowledged form led to.
	reached int
	acked   func()
	code    string
}

var (
	studyStepOf  = regexp.MustCompile(`data-step="(\d+)"`)
	studyRefresh = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]+)"`)
	studyHidden  = regexp.MustCompile(`<input type="hidden" name="([^"]+)"(?: id="[^"]+")? value="([^"]*)"`)
	studyCode    = regexp.MustCompile(`id="code">([A-Z0-9]+)<`)
)

// current returns the page of the session's current step, and its URL.
func (p *participant) current() (text string, at *url.URL, err error) {
	to := p.urls[0] + "/study/"
	for range 10 {
		r, err := p.client.Get(to)
		if err != nil {
			return "", nil, err
		}
		body, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return "", nil, err
		}
		m := studyRefresh.FindSubmatch(body)
		if m == nil {
			return string(body), r.Request.URL, nil
		}
		next, err := r.Request.URL.Parse(html.UnescapeString(string(m[1])))
		if err != nil {
			return "", nil, err
		}
		to = next.String()
	}
	return "", nil, errors.New("the pages lead around in a circle")
}

// post posts the form of a page and reports whether the server acknowledged it.
func (p *participant) post(text string, at *url.URL, action string, fields ...string) bool {
	_, form, ok := strings.Cut(text, `action="/study/`+action+`"`)
	if !ok {
		p.Errorf("participant %d: no form %s on the page:\n%s", p.number, action, text)
		return false
	}
	form, _, _ = strings.Cut(form, "</form>")
	values := url.Values{}
	for _, m := range studyHidden.FindAllStringSubmatch(form, -1) {
		values.Set(m[1], html.UnescapeString(m[2]))
	}
	for i := 0; i < len(fields); i += 2 {
		values.Set(fields[i], fields[i+1])
	}
	origin := at.Scheme + "://" + at.Host
	r, err := http.NewRequest(http.MethodPost, origin+"/study/"+action, strings.NewReader(values.Encode()))
	if err != nil {
		p.Error(err)
		return false
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", origin)
	once := *p.client
	once.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := once.Do(r)
	if err != nil {
		return false // the server was killed: whether it has the form is not known
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusSeeOther {
		p.Errorf("participant %d: %s was answered with %s", p.number, action, answer.Status)
		return false
	}
	p.acked()
	return true
}

// rating returns what the participant answers at a position.
func (p *participant) rating(position int) int { return 1 + (p.number+position)%5 }

// take takes part until the end.
func (p *participant) take(total int) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.Error(err)
		return
	}
	p.client = &http.Client{Jar: jar, Timeout: studyPatience, Transport: &http.Transport{}}
	defer p.client.CloseIdleConnections()
	for begun := time.Now(); !p.Failed(); {
		text, at, err := p.current()
		if err != nil {
			if time.Since(begun) > studyPatience {
				p.Errorf("participant %d: %v", p.number, err)
			}
			time.Sleep(10 * time.Millisecond) // the server starts
			continue
		}
		step := 0
		if m := studyStepOf.FindStringSubmatch(text); m != nil {
			step, _ = strconv.Atoi(m[1])
		}
		if step < p.reached {
			p.Errorf("participant %d: an acknowledged form was lost: step %d after %d", p.number, step, p.reached)
			return
		}
		if step < studyStep(0, 0) { // the consent page
			if p.post(text, at, "consent", "agree", "yes") {
				p.reached = studyStep(0, studyBriefing)
			}
			continue
		}
		position := (step - 1000) / 10
		next := step + 1
		switch (step - 1000) % 10 {
		case studyBriefing:
			if !p.post(text, at, "start") {
				continue
			}
		case studyWorking:
			// The form is on the page of the service.
			_, rest, _ := strings.Cut(text, `class="button" href="`)
			path, _, _ := strings.Cut(rest, `"`)
			r, err := p.client.Get(at.Scheme + "://" + at.Host + path)
			if err != nil {
				continue
			}
			body, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			if err != nil || !p.post(string(body), at, "done", "give-up", "yes") {
				continue
			}
		case studyRating:
			if !p.post(text, at, "rate", "rating", strconv.Itoa(p.rating(position))) {
				continue
			}
			if next = studyStep(position+1, studyBriefing); position+1 == total {
				next = studyStep(total, studyEnded)
			}
		case studyEnded:
			if m := studyCode.FindStringSubmatch(text); m != nil {
				p.code = m[1]
			}
			return
		}
		p.reached = next
	}
}

// TestStudyIsKilled: a server that is killed again and again while participants post forms loses
// nothing that it acknowledged. Sessions go on with the next one.
func TestStudyIsKilled(t *testing.T) {
	const participants, total, each, kills = 6, 4, 7, 6
	s := serve(t, "map, shop")
	acknowledged := make(chan struct{}, 1000)
	var all []*participant
	var running sync.WaitGroup
	for i := range participants {
		p := &participant{served: s, number: i, acked: func() { acknowledged <- struct{}{} }}
		all = append(all, p)
		running.Add(1)
		go func() { defer running.Done(); p.take(total) }()
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	for range kills {
		for range each {
			select {
			case <-acknowledged:
			case <-done: // what was stored but not acknowledged at a kill is not posted again
			case <-time.After(studyPatience):
				t.Fatal("participants do not go on")
			}
		}
		s.end(syscall.SIGKILL)
		s.start()
	}
	<-done
	byCode := map[string]map[int]int{}
	for _, a := range s.export().Answers {
		if byCode[a.Participant] == nil {
			byCode[a.Participant] = map[int]int{}
		}
		if a.Rating != nil {
			byCode[a.Participant][a.Position] = *a.Rating
		}
	}
	for _, p := range all {
		for position := range total {
			if got := byCode[p.code][position]; got != p.rating(position) {
				t.Errorf("participant %d (%s), task %d: rating %d, want %d", p.number, p.code, position, got, p.rating(position))
			}
		}
	}
	if len(byCode) != participants {
		t.Errorf("%d participants have answers, want %d", len(byCode), participants)
	}
	s.leavesNothing()
}

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
		if time.Since(begun) > studyPatience {
			p.Fatalf("%s: %v; the page's last step is %d", what, err, p.page.Last().Step)
		}
	}
}

// changes waits a second for a step that the page reports. Otherwise it returns why, with what
// failed before.
func (p person) changes(step int, failed error) error {
	for range 20 {
		if p.page.Last().Step == step {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(failed, errors.New("the page has not changed"))
}

// reach clicks on the elements in turn until the page reports a step: a browser drops clicks until
// it has painted a page.
func (p person) reach(step int, selectors ...string) {
	p.Helper()
	p.until(fmt.Sprintf("step %d", step), func() error {
		var failed error
		for _, selector := range selectors {
			failed = errors.Join(failed, p.page.Click(p.ctx, selector))
		}
		return p.changes(step, failed)
	})
}

// press focuses an element and presses keys in turn until the page reports a step.
func (p person) press(step int, selector string, keys ...string) {
	p.Helper()
	p.until(fmt.Sprintf("step %d", step), func() error {
		failed := p.page.Focus(p.ctx, selector)
		for _, key := range keys {
			failed = errors.Join(failed, p.page.Press(p.ctx, key))
		}
		return p.changes(step, failed)
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
func (p person) play(t content.Task) {
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

// TestStudyInChromium goes from consent to the figure, in English and in Japanese. The server is
// killed in the middle of a task, which goes on with the next one.
func TestStudyInChromium(t *testing.T) {
	chromium := programs.Need(t, "chromium")
	s := serve(t, "shop")
	ctx, cancel := context.WithTimeout(t.Context(), 3*studyPatience)
	defer cancel()
	b, err := browser.Start(ctx, browser.Options{Program: chromium, TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	// The task at a place of the order is the same for all participants.
	world, tasks, seed := content.New(3), []content.Task(nil), uint64(3)
	for ; len(tasks) < 2; seed++ {
		if next := world.Task(content.Shop, false, seed); len(tasks) == 0 || next.Goal != tasks[0].Goal {
			tasks = append(tasks, next)
		}
	}
	for _, language := range []string{"en", "ja"} {
		opened, err := b.Open(ctx, browser.PageOptions{Width: 1000, Height: 1200})
		if err != nil {
			t.Fatal(err)
		}
		p := person{t, opened, ctx}
		if _, err := opened.Navigate(ctx, s.urls[0]+"/study/consent?lang="+language); err != nil {
			t.Fatal(err)
		}
		p.reach(studyStep(0, studyBriefing), "#agree", "#begin")
		for position := range 2 {
			p.reach(0, "#start")
			if position == 0 {
				p.play(tasks[0])
				if language == "en" { // what is chosen is lost with the page; the task goes on
					s.end(syscall.SIGKILL)
					s.start()
					if _, err := opened.Navigate(ctx, s.urls[0]); err != nil {
						t.Fatal(err)
					}
					p.reach(0, "#continue")
					p.play(tasks[0])
				}
				p.reach(studyStep(0, studyRating), "#study-done:not(:disabled)")
			} else {
				p.reach(studyStep(1, studyRating), "#study-give-up")
			}
			next := studyStep(1, studyBriefing)
			if position == 1 {
				next = studyStep(2, studyEnded)
			}
			if language == "ja" { // by keys alone: an arrow key moves within the group, from the best down
				p.press(next, fmt.Sprintf("#rating-%d", 5-position), " ", "ArrowDown", "Enter")
			} else {
				p.reach(next, fmt.Sprintf("#rating-%d", 4-position), "#send")
			}
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
	out := filepath.Join(t.TempDir(), "report")
	// The study is served meanwhile.
	said, err := exec.Command(program, "qoe", "report", "-c", s.file, "-o", out).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(said), "Not enough participants to compare transports: 2.") {
		t.Errorf("report: %v\n%s", err, said)
	}
	s.leavesNothing()
	o := s.export()
	if o.Participants != 2 || len(o.Answers) != 4 {
		t.Fatalf("%+v", o)
	}
	languages, transports := map[string]int{}, map[string]int{}
	for _, a := range o.Answers {
		languages[a.Language]++
		transports[a.Transport]++
		met := 3
		if a.Position > 0 {
			met = 0
		}
		interrupted := a.Language == "en" && a.Position == 0
		if a.Rating == nil || *a.Rating != 4-a.Position || a.Met != met || a.GaveUp != (a.Position > 0) || a.Interrupted != interrupted || (a.TimeS == nil) != interrupted {
			t.Errorf("answer %+v, want %d conditions met and rating %d", a, met, 4-a.Position)
		}
	}
	if len(languages) != 2 || len(transports) != 2 {
		t.Errorf("languages %v, transports %v", languages, transports)
	}
	checkStudyReport(t, out)
}

// checkStudyReport checks the report of TestStudyInChromium: its figures are drawn, and what it
// leaves out is counted.
func checkStudyReport(t *testing.T, out string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 participants agreed and did not withdraw, 2 of them have an answer; 2 finished all tasks.", "so nothing is judged", "the server was restarted during the task", "the task was ended without a choice",
		`aria-label="Satisfaction (1 to 5), rating by environment and transport. Shop all: tcp `,
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the report has no %q", want)
		}
	}
	for _, name := range []string{"rating", "task-time", "conditions-met", "efficiency"} {
		if picture, err := os.ReadFile(filepath.Join(out, "figures", name+".png")); err != nil || !bytes.HasPrefix(picture, []byte("\x89PNG")) {
			t.Errorf("figure %s: %v", name, err)
		}
	}
}
