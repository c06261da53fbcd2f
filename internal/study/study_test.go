package study

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/qoe"
)

// twoConditions is a study at two hosts.
func twoConditions(database string) Config {
	listen := func(port uint16) httpd.Listen {
		return httpd.Listen{Address: netip.AddrPortFrom(netip.IPv6Unspecified(), port)}
	}
	return Config{
		Title: Text{"Pages", "ページ"}, Contact: "the web laboratory", Database: database, Seed: 3,
		Conditions: []Condition{
			{Transport: "tcp", URL: "http://one.example:8081", Listen: listen(8081)},
			{Transport: "lia", URL: "http://two.example", Listen: listen(8082)},
		},
	}
}

// trial is a server without sockets and its browser.
type trial struct {
	*testing.T

	server   *server
	handlers []http.Handler
	cookies  map[string]string // by host
	language string
	now      time.Duration
	log      *strings.Builder
}

func start(t *testing.T, c Config) *trial {
	t.Helper()
	one := &trial{T: t, cookies: map[string]string{}, now: time.Hour, log: &strings.Builder{}}
	one.open(c)
	t.Cleanup(func() {
		if err := one.server.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return one
}

// open starts a server of the study, as after the end of an earlier one.
func (t *trial) open(c Config) {
	t.Helper()
	if t.server != nil {
		if err := t.server.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newServer(context.Background(), Options{Config: c, Log: slog.New(slog.NewTextHandler(t.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Duration { return t.now }
	s.sessions.filled, s.places.start = t.now, t.now
	services := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "service ", r.URL.Path) })
	t.server, t.handlers = s, []http.Handler{s.handler(0, services), s.handler(1, services)}
}

// answer is what a browser receives.
type answer struct {
	status int
	body   string
	header http.Header
	url    *url.URL
}

// send sends one request, with the browser's cookie, and keeps the cookie that it receives.
func (t *trial) send(method, target string, form url.Values, change func(*http.Request)) answer {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	r.Header.Set("User-Agent", "Secret/1.0")
	r.Header.Set("Accept-Language", t.language)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", u.Scheme+"://"+u.Host)
	}
	if c := t.cookies[u.Host]; c != "" {
		r.AddCookie(&http.Cookie{Name: cookieName, Value: c})
	}
	if change != nil {
		change(r)
	}
	at := 0
	if strings.HasPrefix(u.Host, "two") {
		at = 1
	}
	w := httptest.NewRecorder()
	t.handlers[at].ServeHTTP(w, r)
	result := w.Result()
	for _, c := range result.Cookies() {
		t.cookies[u.Host] = c.Value
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" {
			t.Errorf("cookie %v", c)
		}
	}
	return answer{result.StatusCode, w.Body.String(), result.Header, u}
}

var refreshed = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]+)"`)

// follow follows redirects and pages that lead on.
func (t *trial) follow(a answer) answer {
	t.Helper()
	for range 10 {
		to := a.header.Get("Location")
		if m := refreshed.FindStringSubmatch(a.body); m != nil {
			to = m[1]
		}
		if to == "" {
			return a
		}
		next, err := a.url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		a = t.send(http.MethodGet, next.String(), nil, nil)
	}
	t.Fatal("the pages lead around in a circle")
	return a
}

func (t *trial) get(target string) answer { return t.follow(t.send(http.MethodGet, target, nil, nil)) }

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]+)"(?: id="[^"]+")? value="([^"]*)"`)

// form returns the target and the hidden fields of the form of an action on a page.
func (t *trial) form(a answer, action string) (target string, f url.Values) {
	t.Helper()
	_, rest, ok := strings.Cut(a.body, `action="/study/`+action+`"`)
	if !ok {
		t.Fatalf("no form %q on the page:\n%s", action, a.body)
	}
	rest, _, _ = strings.Cut(rest, "</form>")
	f = url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(rest, -1) {
		f.Set(m[1], m[2])
	}
	return a.url.Scheme + "://" + a.url.Host + root + action, f
}

// post fills in the form of an action and follows.
func (t *trial) post(a answer, action string, fields ...string) answer {
	t.Helper()
	target, f := t.form(a, action)
	for i := 0; i < len(fields); i += 2 {
		f.Set(fields[i], fields[i+1])
	}
	return t.follow(t.send(http.MethodPost, target, f, nil))
}

// consent begins a session and returns the page of its first task.
func (t *trial) consent() answer {
	t.Helper()
	a := t.post(t.get("http://one.example:8081/"), "consent", "agree", "yes")
	if !strings.Contains(a.body, `action="/study/start"`) {
		t.Fatalf("after consent: %d\n%s", a.status, a.body)
	}
	return a
}

func TestSession(t *testing.T) {
	for _, language := range []string{languageEN, languageJA} {
		t.Run(language, func(t *testing.T) {
			database := filepath.Join(t.TempDir(), "study.db")
			c := twoConditions(database)
			p := start(t, c)
			p.language = language
			a := p.consent()
			if want := `<html lang="` + language + `"`; !strings.Contains(a.body, want) {
				t.Errorf("no %s:\n%s", want, a.body)
			}
			hosts := map[string]int{}
			for position := range 4 {
				hosts[a.url.Host]++
				a = p.post(a, "start")
				// A reload shows the task again, and neither page restarts the time.
				if again := p.get(a.url.String()); !strings.Contains(again.body, `id="study"`) {
					t.Fatalf("task %d: no bar:\n%.2000s", position, again.body)
				}
				if again := p.get("http://" + a.url.Host + "/study/"); !strings.Contains(again.body, `id="continue"`) {
					t.Fatalf("task %d: the page does not lead on:\n%s", position, again.body)
				}
				if position == 2 { // the server is killed and started
					p.open(c)
				}
				p.now += 30 * time.Second
				goal := goalOf(t, p, position)
				if position == 3 {
					a = p.post(a, "done", "give-up", "yes")
				} else {
					a = p.post(a, "done", "chosen", goal)
				}
				a = p.post(a, "rate", "rating", fmt.Sprint(5-position))
			}
			if !strings.Contains(a.body, `id="code"`) || len(hosts) != 2 || hosts["two.example"] != 2 {
				t.Errorf("hosts %v, at the end:\n%s", hosts, a.body)
			}
			got, err := Read(t.Context(), &c)
			if err != nil || got.Participants != 1 || got.Withdrawn != 0 || len(got.Answers) != 4 {
				t.Fatalf("%+v, %v", got, err)
			}
			conditions := map[string]int{}
			for i, one := range got.Answers {
				conditions[one.Transport+" "+one.Service]++
				met := 3
				if i == 3 {
					met = 0
				}
				want := qoe.Answer{
					Participant: one.Participant, Language: language, Position: i, Environment: everything, Transport: one.Transport, Service: one.Service,
					Took: 30 * time.Second, Met: met, GaveUp: i == 3, Interrupted: i == 2, Views: 2, Score: qoe.Score(5 - i),
				}
				if one != want || len(one.Participant) != codeLength || !strings.Contains(a.body, one.Participant) {
					t.Errorf("answer %d:\n%+v, want\n%+v", i, one, want)
				}
			}
			if len(conditions) != 4 {
				t.Errorf("conditions %v", conditions)
			}
			if text := p.log.String(); strings.Contains(text, "192.0.2.1") || strings.Contains(text, "Secret") || !strings.Contains(text, "participants=1") {
				t.Errorf("log:\n%s", text) // httptest's address
			}
		})
	}
}

// goalOf returns the goal of the only session's task.
func goalOf(t *testing.T, p *trial, position int) string {
	t.Helper()
	var id [idBytes]byte
	for _, c := range p.cookies {
		var err error
		if id, err = p.server.sign.session(c); err != nil {
			t.Fatal(err)
		}
	}
	s, err := p.server.store.session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p.server.task(p.server.slot(s.order, position), position).Goal
}

// TestNothingBeforeConsent: without consent there is no cookie and no session, however many pages
// are opened.
func TestNothingBeforeConsent(t *testing.T) {
	p := start(t, twoConditions(filepath.Join(t.TempDir(), "study.db")))
	for _, path := range []string{"/", "/study/", "/study/consent?lang=ja", "/map/", "/shop/", "/study/enter?t=x", "/study/none", "/map/tile/1/0/0.png"} {
		p.get("http://one.example:8081" + path)
	}
	if p.post(p.get("http://one.example:8081/"), "consent").status != http.StatusBadRequest {
		t.Error("a session without consent")
	}
	if n, _, err := p.server.store.counts(t.Context()); n != 0 || err != nil || len(p.cookies) != 0 {
		t.Errorf("%d sessions, %v, cookies %v", n, err, p.cookies)
	}
}

// TestStrangers: what a form of a session's own page would not send is refused, and changes
// nothing.
func TestStrangers(t *testing.T) {
	c := twoConditions(filepath.Join(t.TempDir(), "study.db"))
	p := start(t, c)
	first := p.consent()
	host := first.url.Host
	target, good := p.form(first, "start")
	with := func(change func(url.Values)) url.Values {
		f := url.Values{}
		for k, v := range good {
			f[k] = v
		}
		change(f)
		return f
	}
	set := func(key, value string) url.Values { return with(func(f url.Values) { f.Set(key, value) }) }
	header := func(key, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(key, value) }
	}
	other, third := "http://two.example", "https://evil.example"
	if host == "two.example" {
		other = "http://one.example:8081"
	}
	rate := "http://" + host + root + "rate"
	for name, one := range map[string]struct {
		target string
		form   url.Values
		change func(*http.Request)
		want   int
	}{
		"another token":         {target, set("token", "x"), nil, 403},
		"no token":              {target, with(func(f url.Values) { f.Del("token") }), nil, 400},
		"another position":      {target, set("position", "1"), nil, 403},
		"a position too high":   {target, set("position", "4"), nil, 400},
		"a negative position":   {target, set("position", "-1"), nil, 400},
		"a repeated key":        {target, with(func(f url.Values) { f.Add("position", "0") }), nil, 400},
		"an unknown key":        {target, set("admin", "1"), nil, 400},
		"a token of another":    {rate, set("rating", "5"), nil, 403},
		"no cookie":             {target, good, func(r *http.Request) { r.Header.Del("Cookie") }, 403},
		"a forged cookie":       {target, good, header("Cookie", cookieName+"="+strings.Repeat("A", 43)), 403},
		"a long cookie":         {target, good, header("Cookie", cookieName+"="+strings.Repeat("A", 4000)), 403},
		"another site":          {target, good, header("Origin", third), 403},
		"a sibling's origin":    {target, good, header("Origin", other), 403},
		"an opaque origin":      {target, good, header("Origin", "null"), 403},
		"no origin":             {target, good, func(r *http.Request) { r.Header.Del("Origin") }, 403},
		"a cross-site fetch":    {target, good, header("Sec-Fetch-Site", "cross-site"), 403},
		"a same-site fetch":     {target, good, header("Sec-Fetch-Site", "same-site"), 403},
		"another media type":    {target, good, header("Content-Type", "text/plain"), 415},
		"an oversized body":     {target, set("token", strings.Repeat("x", maxForm)), nil, 413},
		"another host":          {target, good, func(r *http.Request) { r.Host = "evil.example" }, 421},
		"an unknown action":     {"http://" + host + root + "admin", good, nil, 405},
		"a form to a service":   {"http://" + host + "/map/", good, nil, 200}, // the service's own handler, which takes nothing
		"a task in its absence": {"http://" + host + root + "done", with(func(f url.Values) { f.Set("chosen", "p1") }), nil, 403},
	} {
		before := dump(t, p)
		if a := p.send(http.MethodPost, one.target, one.form, one.change); a.status != one.want {
			t.Errorf("%s: status %d, want %d\n%s", name, a.status, one.want, a.body)
		}
		if after := dump(t, p); after != before {
			t.Errorf("%s: changed\n%s\nto\n%s", name, before, after)
		}
	}
	// A replay, and a form of a step that is not due.
	working := p.post(first, "start")
	if a := p.send(http.MethodPost, target, good, nil); a.status != http.StatusConflict {
		t.Errorf("a replay: %d", a.status)
	}
	for name, one := range map[string]struct {
		fields []string
		want   int
	}{
		"an unknown choice":   {[]string{"chosen", "p99999"}, 400},
		"no choice":           {[]string{"chosen", ""}, 400},
		"an unclear end":      {[]string{"chosen", "p1", "give-up", "no"}, 400},
		"markup for a choice": {[]string{"chosen", "<script>"}, 400},
	} {
		if a := p.post(working, "done", one.fields...); a.status != one.want || strings.Contains(a.body, "<script>") {
			t.Errorf("%s: %d, want %d", name, a.status, one.want)
		}
	}
	rating := p.post(working, "done", "chosen", goalOf(t, p, 0))
	for _, text := range []string{"0", "6", "", "3.5", "５", "NULL"} {
		if a := p.post(rating, "rate", "rating", text); a.status != http.StatusBadRequest {
			t.Errorf("rating %q: %d", text, a.status)
		}
	}
	p.post(rating, "rate", "rating", "2")
	if a := p.post(rating, "rate", "rating", "5"); a.status != http.StatusConflict {
		t.Errorf("a second rating: %d", a.status)
	}
	if got, err := Read(t.Context(), &c); err != nil || len(got.Answers) != 1 || got.Answers[0].Score != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	// A consent form is good once, and not for ever.
	p.cookies = map[string]string{}
	consent := p.get("http://one.example:8081/")
	p.now += consentAge + time.Second
	if a := p.post(consent, "consent", "agree", "yes"); a.status != http.StatusForbidden {
		t.Errorf("an old consent form: %d", a.status)
	}
	consent = p.get("http://one.example:8081/")
	p.post(consent, "consent", "agree", "yes")
	p.cookies = map[string]string{}
	if a := p.post(consent, "consent", "agree", "yes"); a.status != http.StatusConflict {
		t.Errorf("a used consent form: %d", a.status)
	}
}

// dump returns what the database has of sessions and tasks, but for hand-overs.
func dump(t *testing.T, p *trial) string {
	t.Helper()
	var text string
	if err := p.server.store.db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM sessions) || ' ' || coalesce((SELECT group_concat(position || service || views || finished || coalesce(score, '-')) FROM tasks), '')").Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestHandOver: it is good once, for one origin, for a minute.
func TestHandOver(t *testing.T) {
	p := start(t, twoConditions(filepath.Join(t.TempDir(), "study.db")))
	first := p.consent()
	here, there := first.url, "http://two.example"
	if here.Host == "two.example" {
		there = "http://one.example:8081"
	}
	// From the other origin, with the session's cookie, back to the one of the task.
	lead := func() string {
		t.Helper()
		p.cookies["two.example"], p.cookies["one.example:8081"] = p.cookies[here.Host], p.cookies[here.Host]
		a := p.send(http.MethodGet, there+root, nil, nil)
		to := a.header.Get("Location")
		if a.status != http.StatusSeeOther || !strings.HasPrefix(to, "http://"+here.Host+root+"enter?t=") {
			t.Fatalf("%d to %q", a.status, to)
		}
		p.cookies = map[string]string{}
		return to
	}
	cookie := p.cookies[here.Host]
	to := lead()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	if a := p.send(http.MethodGet, there+u.RequestURI(), nil, nil); a.status != http.StatusForbidden {
		t.Errorf("at another origin: %d", a.status)
	}
	at := strings.Index(to, "?t=") + len("?t=") + 5
	other := map[bool]string{true: "B", false: "A"}[to[at] == 'A']
	if a := p.send(http.MethodGet, to[:at]+other+to[at+1:], nil, nil); a.status != http.StatusForbidden {
		t.Errorf("changed: %d", a.status)
	}
	if a := p.get(to); a.status != http.StatusOK || p.cookies[here.Host] != cookie {
		t.Errorf("not taken over: %d", a.status)
	}
	if a := p.get(to); a.status != http.StatusOK {
		t.Errorf("a reload with the session: %d", a.status)
	}
	p.cookies = map[string]string{}
	if a := p.send(http.MethodGet, to, nil, nil); a.status != http.StatusConflict || len(p.cookies) != 0 {
		t.Errorf("a second time: %d", a.status)
	}
	p.cookies[here.Host] = cookie
	to = lead()
	p.now += handoverAge + time.Second
	if a := p.send(http.MethodGet, to, nil, nil); a.status != http.StatusForbidden || len(p.cookies) != 0 {
		t.Errorf("too late: %d", a.status)
	}
}

// TestSessionsAreBounded: in number and in rate, and withdrawn ones are not counted.
func TestSessionsAreBounded(t *testing.T) {
	c := twoConditions(filepath.Join(t.TempDir(), "study.db"))
	c.Participants, c.SessionsPerMinute = 3, 2
	p := start(t, c)
	begin := func() answer {
		p.cookies = map[string]string{}
		return p.post(p.get("http://one.example:8081/"), "consent", "agree", "yes")
	}
	form := p.get("http://one.example:8081/")
	p.post(form, "consent", "agree", "yes")
	// A consent that fails begins no session.
	for range 5 {
		p.cookies = map[string]string{}
		if a := p.post(form, "consent", "agree", "yes"); a.status != http.StatusConflict {
			t.Errorf("a used consent form: %d", a.status)
		}
	}
	if a := begin(); a.status != http.StatusOK {
		t.Errorf("a second one after consents that failed: %d", a.status)
	}
	if a := begin(); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
		t.Errorf("a third one within a minute: %d", a.status)
	}
	p.now += 30 * time.Second
	last := begin()
	p.now += time.Minute
	if a := begin(); a.status != http.StatusServiceUnavailable {
		t.Errorf("a fourth one of three: %d", a.status)
	}
	cookie := last.url.Host
	p.cookies[cookie] = ""
	got, err := Read(t.Context(), &c)
	if err != nil || got.Participants != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	var code string
	if err := p.server.store.db.QueryRowContext(t.Context(), "SELECT code FROM sessions").Scan(&code); err != nil {
		t.Fatal(err)
	}
	if err := Withdraw(t.Context(), &c, strings.ToLower(code)); err != nil {
		t.Fatal(err)
	}
	if err := Withdraw(t.Context(), &c, code); err == nil {
		t.Error("withdrawn twice")
	}
	if a := begin(); a.status != http.StatusOK {
		t.Errorf("after a withdrawal: %d", a.status)
	}
	if got, err := Read(t.Context(), &c); err != nil || got.Participants != 3 || got.Withdrawn != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPlacesAreNotTakenByWhoTakesNoPart: one network gets a share of the places, not at once, and
// loses those without a rating to others when the study is full.
func TestPlacesAreNotTakenByWhoTakesNoPart(t *testing.T) {
	c := twoConditions(filepath.Join(t.TempDir(), "study.db"))
	c.Participants, c.SessionsPerMinute = 20, 60
	p := start(t, c)
	begin := func(from string) int {
		p.cookies = map[string]string{}
		target, v := p.form(p.get("http://one.example:8081/"), "consent")
		v.Set("agree", "yes")
		return p.send(http.MethodPost, target, v, func(r *http.Request) { r.RemoteAddr = from }).status
	}
	taken := 0
	for i := range 100 { // at one moment, of the addresses of one site
		if begin(fmt.Sprintf("[2001:db8:0:%x::1]:99", i)) == http.StatusSeeOther {
			taken++
		}
	}
	if taken != 5 {
		t.Errorf("a network took %d of 20 places, want 5", taken)
	}
	for i := range 100 { // of as many networks as it likes
		if begin(fmt.Sprintf("192.0.2.%d:99", i)) == http.StatusSeeOther {
			taken++
		}
	}
	if taken != 15 {
		t.Errorf("%d places were taken at once, want 15", taken)
	}
	p.now += time.Minute
	for i := range 5 {
		if got := begin(fmt.Sprintf("198.51.100.%d:99", i)); got != http.StatusSeeOther {
			t.Errorf("a place: %d", got)
		}
	}
	if got := begin("203.0.113.1:99"); got != http.StatusServiceUnavailable {
		t.Errorf("the study is full: %d", got)
	}
	p.now += keepPlace
	if got := begin("203.0.113.1:99"); got != http.StatusSeeOther {
		t.Errorf("a place that nobody uses: %d", got)
	}
	if got, err := Read(t.Context(), &c); err != nil || got.Participants != 20 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWithdraw: the button deletes everything of the session, and the browser starts again.
func TestWithdraw(t *testing.T) {
	c := twoConditions(filepath.Join(t.TempDir(), "study.db"))
	p := start(t, c)
	working := p.post(p.consent(), "start")
	rating := p.post(working, "done", "chosen", goalOf(t, p, 0))
	if a := p.post(rating, "withdraw"); a.status != http.StatusOK || !strings.Contains(a.body, english.WithdrawnText) || p.cookies[rating.url.Host] != "" {
		t.Errorf("%d, cookies %v\n%s", a.status, p.cookies, a.body)
	}
	if text := dump(t, p); text != "0 " {
		t.Errorf("left: %s", text)
	}
	if a := p.post(rating, "rate", "rating", "5"); a.status != http.StatusForbidden {
		t.Errorf("a rating afterwards: %d", a.status)
	}
	if got, err := Read(t.Context(), &c); err != nil || got.Participants != 0 || got.Withdrawn != 1 || len(got.Answers) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestOrdersOfParticipants: participants have all orders equally often.
func TestOrdersOfParticipants(t *testing.T) {
	p := start(t, twoConditions(filepath.Join(t.TempDir(), "study.db")))
	for range 3 * len(p.server.design) {
		p.cookies = map[string]string{}
		p.consent()
	}
	var least, most int
	if err := p.server.store.db.QueryRowContext(t.Context(), "SELECT min(n), max(n) FROM (SELECT count(*) n FROM sessions GROUP BY design_row)").Scan(&least, &most); err != nil || least != 3 || most != 3 {
		t.Errorf("%d to %d participants of each order, %v", least, most, err)
	}
}

func TestLanguages(t *testing.T) {
	p := start(t, twoConditions(filepath.Join(t.TempDir(), "study.db")))
	p.language = languageJA
	sheet := p.consent()
	working := p.post(sheet, "start")
	service := content.Shop
	if strings.HasPrefix(working.url.Path, "/map/") {
		service = content.Map
	}
	goal := goalOf(t, p, 0)
	var task content.Task
	for seed := uint64(0); task.Goal != goal; seed++ {
		task = p.server.world.In(content.Japanese).Task(service, false, seed)
	}
	for _, c := range task.Conditions {
		if c.Key != "feature" && (!strings.Contains(sheet.body, c.Text) || !strings.Contains(working.body, c.Text)) {
			t.Errorf("%q is not on the sheet, or not in the bar:\n%s", c.Text, sheet.body)
		}
	}
	if !strings.Contains(working.body, `<html lang="ja">`) {
		t.Errorf("the service is not in Japanese:\n%.2000s", working.body)
	}
}

// TestPages: the pages can be used by keyboard and screen reader, and take nothing from elsewhere.
func TestPages(t *testing.T) {
	p := start(t, twoConditions(filepath.Join(t.TempDir(), "study.db")))
	consent := p.get("http://one.example:8081/study/consent?lang=ja")
	briefing := p.consent()
	working := p.post(briefing, "start")
	rating := p.post(working, "done", "chosen", goalOf(t, p, 0))
	refused := p.post(rating, "rate", "rating", "9")
	for name, a := range map[string]answer{"consent": consent, "briefing": briefing, "working": working, "rating": rating, "refused": refused} {
		policy := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self' http://one.example:8081 http://two.example"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q", name, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || a.header.Get("Cache-Control") != "no-store" || a.header.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: header %v", name, a.header)
		}
		for _, bad := range []string{"style=", "onclick", "<script>", "src=\"http", "href=\"http", "tabindex=\"1"} {
			if strings.Contains(a.body, bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
		if strings.Count(a.body, "<main") != 1 || strings.Count(a.body, "<h1") != 1 || !strings.Contains(a.body, "<html lang=") || !strings.Contains(a.body, "<title>") {
			t.Errorf("%s:\n%s", name, a.body)
		}
	}
	if !strings.Contains(consent.body, `<html lang="ja"`) || !strings.Contains(consent.body, "ページ") {
		t.Errorf("consent in Japanese:\n%s", consent.body)
	}
	if !strings.Contains(rating.body, "<fieldset") || !strings.Contains(rating.body, "<legend>") || strings.Count(rating.body, `<label><input type="radio"`) != 5 {
		t.Errorf("rating:\n%s", rating.body)
	}
	if !strings.Contains(refused.body, `role="alert"`) {
		t.Errorf("refused:\n%s", refused.body)
	}
	if !strings.Contains(working.body, `<link rel="stylesheet" href="/study/study.css">`) || !strings.Contains(working.body, `<section id="study" class="bar" lang="en"`) {
		t.Errorf("working:\n%.3000s", working.body)
	}
	for path, kind := range map[string]string{"study.css": "text/css; charset=utf-8", "task.js": "text/javascript; charset=utf-8"} {
		if a := p.get("http://one.example:8081/study/" + path); a.status != http.StatusOK || a.header.Get("Content-Type") != kind {
			t.Errorf("%s: %d, %v", path, a.status, a.header)
		}
	}
}
