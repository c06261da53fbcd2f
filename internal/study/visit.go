package study

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"html/template"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/qoe"
)

//go:embed static
var static embed.FS

var pages = template.Must(template.ParseFS(static, "static/pages.html"))

const (
	// root is the path of the study's own pages.
	root = "/study/"
	// cookieName is the cookie of the session, cookieAge how long browsers keep it.
	cookieName = "tabane_study"
	cookieAge  = 7 * 24 * time.Hour
	// maxForm bounds the body of a request, in bytes.
	maxForm = 4 << 10
	// storeTimeout bounds the wait for the database.
	storeTimeout = 10 * time.Second
	// anywhere is the position of forms that are on each page.
	anywhere = -1
)

// visit is one request.
type visit struct {
	*server

	w         http.ResponseWriter
	r         *http.Request
	ctx       context.Context
	condition int
	words     *words
	// session is nil if the browser has none.
	session *session
}

// serve finds the session of a request and calls f.
func (s *server) serve(w http.ResponseWriter, r *http.Request, condition int, f func(*visit)) {
	if r.Host != s.origins[condition].Host {
		misdirected(w)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", s.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with none at all, the browser says no origin of a form
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	v := &visit{server: s, w: w, r: r, ctx: ctx, condition: condition, words: in(string(content.Preferred(r.Header.Get("Accept-Language"))))}
	if cookie, err := r.Cookie(cookieName); err == nil {
		if id, err := s.sign.session(cookie.Value); err == nil {
			found, err := s.store.session(ctx, id)
			switch {
			case err == nil:
				v.session, v.words = &found, in(found.language)
			case !errors.Is(err, ErrNoSession):
				v.fail(err)
				return
			}
		}
	}
	f(v)
}

// view is what the templates show.
type view struct {
	W       *words
	Title   string
	Contact string
	Heading string
	// Number identifies the step for programs that drive the page.
	Number int
	// Refresh is where the page leads to at once.
	Refresh string
	Token   string
	// Withdraw is the token of the form that withdraws; empty without a session.
	Withdraw   string
	Code       string
	Total      int
	Position   int
	What, How  string
	Conditions []string
	Service    string
	Scale      []step
	Text, Back string
	Alert      bool
}

// step is one of the steps of the scale.
type step struct {
	Score qoe.Score
	Text  string
}

// view returns what all pages have.
func (v *visit) view(heading string) view {
	c := view{W: v.words, Title: v.words.title(v.config.Title), Contact: v.config.Contact, Heading: heading, Total: v.total()}
	if v.session != nil {
		c.Withdraw, c.Code = v.sign.form(v.session.id, "withdraw", anywhere), v.session.code
	}
	return c
}

func (v *visit) show(status int, name string, c view) {
	v.write(status, render(name, c))
}

func render(name string, c view) []byte {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, c); err != nil {
		panic("BUG: " + err.Error())
	}
	return b.Bytes()
}

func (v *visit) write(status int, body []byte) {
	h := v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(status)
	_, _ = v.w.Write(body) // an error means that the browser has closed the connection
}

func (v *visit) redirect(to string) { http.Redirect(v.w, v.r, to, http.StatusSeeOther) }

// refuse answers with a reason, and the way back.
func (v *visit) refuse(status int, why string) {
	v.w.Header().Set("Connection", "close") // what else the client sends is not read
	c := v.view(v.words.Refused)
	c.Text, c.Alert, c.Back = why, true, root
	v.show(status, "message", c)
}

// fail answers if the database does not work.
func (v *visit) fail(err error) {
	if v.r.Context().Err() == nil {
		v.log.Error("database does not work", "err", err)
	}
	v.refuse(http.StatusServiceUnavailable, v.words.NotStored)
}

// outcome answers if a change of the session was refused.
func (v *visit) outcome(err error) {
	switch {
	case errors.Is(err, errStale), errors.Is(err, errUsed):
		v.refuse(http.StatusConflict, v.words.Stale)
	case errors.Is(err, ErrNoSession):
		v.refuse(http.StatusForbidden, v.words.RefusedForm)
	case errors.Is(err, errFull):
		v.refuse(http.StatusServiceUnavailable, v.words.Full)
	default:
		v.fail(err)
	}
}

func (v *visit) asset(name, kind string) {
	b, err := static.ReadFile("static/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	v.w.Header().Set("Content-Type", kind)
	v.w.Header().Set("Cache-Control", "no-cache")
	_, _ = v.w.Write(b) // an error means that the browser has closed the connection
}

// hop answers with a page that leads on at once. The request that follows comes from this origin,
// so that it has the cookie, which browsers do not send with one that comes from another site.
func (v *visit) hop(to string) {
	c := v.view(v.words.title(v.config.Title))
	c.Refresh, c.Text, c.Back = to, v.words.Moving, to
	v.show(http.StatusOK, "message", c)
}

// current shows the session's current step, at the origin of its condition.
func (v *visit) current() {
	if v.session == nil {
		v.hop(root + "consent")
		return
	}
	if at := v.server.condition(v.session); at != v.condition {
		v.handOver(at)
		return
	}
	position, p := v.session.step(v.total())
	c := v.view(v.words.Fill(v.words.TaskOf, position+1, v.total()))
	c.Position, c.Number = position, number(position, p)
	if p == ended {
		c.Heading = v.words.End
		v.show(http.StatusOK, "ended", c)
		return
	}
	v.sheet(&c, position)
	switch p {
	case briefing:
		c.Token = v.sign.form(v.session.id, "start", position)
		v.show(http.StatusOK, "briefing", c)
	case working:
		v.show(http.StatusOK, "working", c)
	default:
		c.Token = v.sign.form(v.session.id, "rate", position)
		for i := len(v.words.Scale) - 1; i >= 0; i-- { // the best first, as in paper E
			c.Scale = append(c.Scale, step{qoe.Score(i + 1), v.words.Scale[i]})
		}
		c.Heading += ": " + v.words.Rate
		v.show(http.StatusOK, "rating", c)
	}
}

// number returns the data-step of the page of a step, larger than that of any page of a service.
func number(position int, p phase) int { return 1000 + 10*position + int(p) }

// sheet fills in the task at a position.
func (v *visit) sheet(c *view, position int) {
	t := v.task(v.slot(v.session.order, position), position)
	c.Service = t.Path
	c.What, c.How = v.words.FindPlace, v.words.HowMap
	if t.Service == content.Shop {
		c.What, c.How = v.words.BuyItem, v.words.HowShop
	}
	for _, condition := range t.Conditions {
		c.Conditions = append(c.Conditions, content.Language(v.words.Lang()).Condition(condition.Key, condition.Value))
	}
}

// handOver leads to the origin of another condition, which takes the session over once.
func (v *visit) handOver(to int) {
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce) // never fails
	if _, err := v.store.change(v.ctx, v.session.id, func(s *session) error {
		s.handover = nonce
		return nil
	}); err != nil {
		v.outcome(err)
		return
	}
	v.redirect(v.origins[to].String() + root + "enter?t=" + v.sign.handover(v.session.id, nonce, to, v.now()))
}

// enter takes a session over from another origin.
func (v *visit) enter() {
	id, nonce, err := v.sign.accept(v.r.URL.Query().Get("t"), v.condition, v.now())
	if err == nil {
		var taken session
		taken, err = v.store.change(v.ctx, id, func(s *session) error {
			if !s.accept(nonce) {
				return errStale
			}
			return nil
		})
		if err == nil {
			v.session, v.words = &taken, in(taken.language)
			v.remember(id)
		}
	}
	switch {
	case err == nil, v.session != nil: // a reload
		v.hop(root)
	case errors.Is(err, errToken), errors.Is(err, errExpired):
		v.refuse(http.StatusForbidden, v.words.RefusedForm)
	default:
		v.outcome(err)
	}
}

// remember sets the cookie of a session.
func (v *visit) remember(id [idBytes]byte) {
	v.setCookie(v.sign.cookie(id), int(cookieAge.Seconds()))
}

func (v *visit) setCookie(value string, age int) {
	http.SetCookie(v.w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: v.origins[v.condition].Scheme == schemeTLS,
	})
}

func (v *visit) consentPage() {
	if v.session != nil {
		v.redirect(root)
		return
	}
	if asked := v.r.URL.Query().Get("lang"); asked == languageEN || asked == languageJA {
		v.words = in(asked)
	}
	c := v.view(v.words.Consent)
	c.Token, c.Number = v.sign.consent(v.now()), consentNumber
	v.show(http.StatusOK, "consent", c)
}

// consentNumber and withdrawnNumber are the data-step of pages without a position.
const (
	consentNumber   = 999
	withdrawnNumber = 998
)

// service shows the page of a service with the task above it, if the session's task is running
// there.
func (v *visit) service(service content.Service, heavy bool) {
	if v.session == nil || v.server.condition(v.session) != v.condition {
		v.redirect(root)
		return
	}
	position, p := v.session.step(v.total())
	if p != working || v.session.tasks[position].service != service || v.config.Heavy != heavy {
		v.redirect(root)
		return
	}
	if _, err := v.store.change(v.ctx, v.session.id, func(s *session) error {
		if err := s.expect(v.total(), position, working); err != nil {
			return err
		}
		s.tasks[position].views++
		return nil
	}); err != nil {
		v.outcome(err)
		return
	}
	found, err := v.world.In(content.Language(v.words.Lang())).Resource(content.Path(service, heavy), "")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	c := v.view(v.words.Fill(v.words.TaskOf, position+1, v.total()))
	c.Position, c.Token = position, v.sign.form(v.session.id, "done", position)
	v.sheet(&c, position)
	v.write(http.StatusOK, insert(found.Body(), render("bar", c)))
}

// The places of a service's page where the bar and its files are inserted.
const (
	endOfHead   = "</head>"
	startOfBody = "<body>"
	barFiles    = `<link rel="stylesheet" href="` + root + `study.css">` + "\n" + `<script defer src="` + root + `task.js"></script>` + "\n"
)

// insert returns the page of a service with a bar.
func insert(body, bar []byte) []byte {
	for _, mark := range []string{endOfHead, startOfBody} {
		if bytes.Count(body, []byte(mark)) != 1 {
			panic("BUG: a service's page must have " + mark + " once")
		}
	}
	body = bytes.Replace(body, []byte(endOfHead), []byte(barFiles+endOfHead), 1)
	return bytes.Replace(body, []byte(startOfBody), append([]byte(startOfBody+"\n"), bar...), 1)
}

// action is a form that is posted.
type action struct {
	name string
	// fields are its keys beside the token; optional ones may be left out.
	fields, optional []string
	// anywhere is set if the form is on each page.
	anywhere bool
	// change is what the form does to the session at a position.
	change func(v *visit, f url.Values, position int)
}

// actions are the forms of a session, and that of consent.
var actions = map[string]action{
	"consent":  {name: "consent", fields: []string{"lang", "agree"}},
	"start":    {name: "start", fields: []string{"position"}, change: (*visit).start},
	"done":     {name: "done", fields: []string{"position", "chosen"}, optional: []string{"give-up"}, change: (*visit).done},
	"rate":     {name: "rate", fields: []string{"position", "rating"}, change: (*visit).rate},
	"withdraw": {name: "withdraw", anywhere: true, change: (*visit).leave},
}

// post checks a form and applies it.
func (v *visit) post(a action) {
	if !v.fromHere() {
		v.refuse(http.StatusForbidden, v.words.RefusedForm)
		return
	}
	f, status := v.form(a)
	if status != 0 {
		v.refuse(status, v.words.RefusedForm)
		return
	}
	if a.change == nil {
		v.begin(f)
		return
	}
	position := anywhere
	if !a.anywhere {
		var err error
		if position, err = strconv.Atoi(f.Get("position")); err != nil || position < 0 || position >= v.total() {
			v.refuse(http.StatusBadRequest, v.words.RefusedForm)
			return
		}
	}
	if v.session == nil || !v.sign.isForm(f.Get("token"), v.session.id, a.name, position) {
		v.refuse(http.StatusForbidden, v.words.RefusedForm)
		return
	}
	a.change(v, f, position)
}

// fromHere reports whether a form comes from a page of this origin. Browsers send Origin with each
// form, and Sec-Fetch-Site where the origin is trustworthy.
func (v *visit) fromHere() bool {
	here := v.r.Header.Get("Sec-Fetch-Site")
	return v.r.Header.Get("Origin") == v.origins[v.condition].String() && (here == "" || here == "same-origin")
}

// form reads the body of a form. status is that of the refusal, or 0.
func (v *visit) form(a action) (_ url.Values, status int) {
	if kind, _, err := mime.ParseMediaType(v.r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, http.StatusUnsupportedMediaType
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(http.MaxBytesReader(v.w, v.r.Body, maxForm)); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, http.StatusRequestEntityTooLarge
		}
		return nil, http.StatusBadRequest
	}
	f, err := url.ParseQuery(b.String())
	if err != nil {
		return nil, http.StatusBadRequest
	}
	required := append([]string{"token"}, a.fields...)
	for _, key := range required {
		if len(f[key]) != 1 {
			return nil, http.StatusBadRequest
		}
	}
	more := 0
	for _, key := range a.optional {
		if n := len(f[key]); n > 1 {
			return nil, http.StatusBadRequest
		} else if n == 1 {
			more++
		}
	}
	if len(f) != len(required)+more {
		return nil, http.StatusBadRequest
	}
	return f, 0
}

// begin adds a session of a participant who agrees.
func (v *visit) begin(f url.Values) {
	language := f.Get("lang")
	if language != languageEN && language != languageJA || f.Get("agree") != "yes" {
		v.refuse(http.StatusBadRequest, v.words.RefusedForm)
		return
	}
	if v.session == nil {
		v.words = in(language)
	}
	nonce, err := v.sign.consented(f.Get("token"), v.now())
	if err != nil {
		v.refuse(http.StatusForbidden, v.words.RefusedForm)
		return
	}
	if v.session != nil {
		v.outcome(errUsed)
		return
	}
	network := v.places.network(v.r.RemoteAddr)
	id := newID()
	v.mu.Lock()
	allowed := v.places.reserve(id, network, v.now())
	if allowed && !v.sessions.take(v.now()) {
		v.places.settle(id)
		allowed = false
	}
	v.mu.Unlock()
	if !allowed {
		v.w.Header().Set("Retry-After", "60")
		v.refuse(http.StatusTooManyRequests, v.words.TooMany)
		return
	}
	expired := func(id [idBytes]byte) bool { return v.places.expired(id, v.now()) }
	added, err := v.store.begins(v.ctx, id, nonce, language, v.config.MaxParticipants(), len(v.design), expired, func(used []int) int {
		v.mu.Lock()
		defer v.mu.Unlock()
		return qoe.NextOrder(used, v.random)
	})
	if err != nil {
		v.places.settle(id)
		v.mu.Lock()
		v.sessions.putBack()
		v.mu.Unlock()
		v.outcome(err)
		return
	}
	v.remember(added.id)
	v.logCounts("participant begins")
	v.redirect(root)
}

// logCounts logs how many participants there are.
func (v *visit) logCounts(what string) {
	if sessions, withdrawn, err := v.store.counts(v.ctx); err == nil {
		v.log.Info(what, "participants", sessions, "withdrawn", withdrawn)
	}
}

func (v *visit) start(_ url.Values, position int) {
	slot := v.slot(v.session.order, position)
	if slot.Condition != v.condition {
		v.outcome(errStale)
		return
	}
	t := v.task(slot, position)
	v.change(func(s *session) error {
		if err := s.expect(v.total(), position, briefing); err != nil {
			return err
		}
		s.tasks = append(s.tasks, task{condition: slot.Condition, service: t.Service, started: v.now(), run: v.store.run})
		return nil
	}, t.Path)
}

func (v *visit) done(f url.Values, position int) {
	t := v.task(v.slot(v.session.order, position), position)
	chosen := f.Get("chosen")
	switch {
	case f.Get("give-up") == "yes":
		chosen = ""
	case f.Has("give-up") || !v.world.Has(t.Service, chosen):
		v.refuse(http.StatusBadRequest, v.words.RefusedForm)
		return
	}
	now := v.now()
	v.change(func(s *session) error {
		if err := s.expect(v.total(), position, working); err != nil {
			return err
		}
		s.tasks[position].finish(now, v.store.run, chosen, v.world.Met(t, chosen))
		return nil
	}, root)
}

func (v *visit) rate(f url.Values, position int) {
	score, err := qoe.ParseScore(f.Get("rating"))
	if err != nil {
		v.refuse(http.StatusBadRequest, v.words.RefusedForm)
		return
	}
	v.change(func(s *session) error {
		if err := s.expect(v.total(), position, rating); err != nil {
			return err
		}
		s.tasks[position].score = score
		return nil
	}, root)
	v.places.settle(v.session.id)
}

// change applies f to the session and leads to a path.
func (v *visit) change(f func(*session) error, to string) {
	if _, err := v.store.change(v.ctx, v.session.id, f); err != nil {
		v.outcome(err)
		return
	}
	v.redirect(to)
}

// leave deletes the session with all of its answers.
func (v *visit) leave(url.Values, int) {
	if err := v.store.withdraw(v.ctx, "id", v.session.id[:]); err != nil {
		v.outcome(err)
		return
	}
	v.places.settle(v.session.id)
	v.session = nil
	v.setCookie("", -1)
	v.logCounts("participant withdraws")
	c := v.view(v.words.Withdrawn)
	c.Text, c.Number = v.words.WithdrawnText, withdrawnNumber
	v.show(http.StatusOK, "message", c)
}
