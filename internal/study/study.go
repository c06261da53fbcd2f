// Package study serves a study with people: participants agree, use the services of the package
// content under each condition in a balanced order, and rate each task. Each condition has a
// listening socket of the package site.
//
// It records nothing before consent and nothing that identifies a person: no address, browser, date
// or time of day, neither in the database nor in the log. It draws no figures; answers are for
// report.
package study

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/qoe"
	"github.com/tabane/tabane/internal/study/site"
)

// Options are the parameters of New.
type Options struct {
	Config Config
	// Log receives the numbers of participants and faults of the database, nothing of a
	// participant.
	Log *slog.Logger
}

// Study is the server of a study.
type Study struct {
	*server

	site *site.Site
}

// server answers the requests of all origins.
type server struct {
	config  Config
	log     *slog.Logger
	store   *store
	sign    signer
	world   *content.World
	design  [][]qoe.Slot
	tasks   [][]content.Task // by service and by the place of the condition in the order
	origins []*url.URL
	policy  string
	now     func() time.Duration // since the epoch

	places *places

	mu       sync.Mutex
	sessions bucket
	random   *rand.Rand
}

// streamDesign is the stream of random numbers of the design, streamOrders that of the
// participants'.
const (
	streamDesign = iota + 1
	streamOrders
)

// New opens the database and the listening sockets in the network namespace of the calling thread.
// Run and Close release them. Errors wrap those of this package.
func New(ctx context.Context, o Options) (*Study, error) {
	s, err := newServer(ctx, o)
	if err != nil {
		return nil, err
	}
	listen := make([]httpd.Listen, len(o.Config.Conditions))
	for i, c := range o.Config.Conditions {
		listen[i] = c.Listen
	}
	services, err := site.New(site.Options{
		Config: httpd.Config{Seed: o.Config.Seed, Listen: listen},
		Log:    slog.New(slog.DiscardHandler), // it logs addresses
		Wrap:   s.handler,
	})
	if err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	return &Study{s, services}, nil
}

func newServer(ctx context.Context, o Options) (*server, error) {
	c := o.Config
	db, err := open(ctx, c.Database, c.design(), true)
	if err != nil {
		return nil, err
	}
	s := &server{
		config: c, log: o.Log, store: db, sign: db.secret, world: content.New(c.Seed),
		design: qoe.Design(len(c.Conditions), len(c.AllServices()), rand.New(rand.NewPCG(c.Seed, streamDesign))),
		now:    clock(time.Now()),
		random: rand.New(rand.NewPCG(rand.Uint64(), streamOrders)),
	}
	s.sessions = bucket{perMinute: c.perMinute(), filled: s.now()}
	s.sessions.tokens = s.sessions.burst()
	s.places = newPlaces(c.MaxParticipants(), s.now())
	for _, service := range c.AllServices() {
		s.tasks = append(s.tasks, differentTasks(s.world, service, c.Heavy, c.Seed, len(c.Conditions)))
	}
	own := []string{"'self'"}
	for _, one := range c.Conditions {
		u, err := origin(one.URL)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("url: %w", err), db.Close())
		}
		s.origins = append(s.origins, u)
		own = append(own, u.String())
	}
	// A form may lead to the origin of the next condition.
	s.policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action " + strings.Join(own, " ") + "; frame-ancestors 'none'"
	return s, nil
}

// clock returns a clock of the time since the epoch that runs on from start. A step of the host's
// clock does not change the time of a task that is running.
func clock(start time.Time) func() time.Duration {
	return func() time.Duration { return time.Duration(start.UnixNano()) + time.Since(start) }
}

// differentTasks returns n tasks of a service with different goals. The task at a place of the
// order is the same for all participants, so that each condition meets each task equally often.
func differentTasks(w *content.World, service content.Service, heavy bool, seed uint64, n int) []content.Task {
	var tasks []content.Task
	goals := map[string]bool{}
	for ; len(tasks) < n; seed++ {
		if t := w.Task(service, heavy, seed); !goals[t.Goal] {
			goals[t.Goal] = true
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// Close releases the sockets and the database of a study that is not running.
func (s *Study) Close() error { return errors.Join(s.site.Close(), s.store.Close()) }

// Run serves until ctx ends or a listener fails, and closes the database. It returns nil if ctx
// ended.
func (s *Study) Run(ctx context.Context) error {
	err := s.site.Run(ctx)
	return errors.Join(err, s.store.Close())
}

// total is the number of tasks of a participant.
func (s *server) total() int { return len(s.config.Conditions) * len(s.config.AllServices()) }

// slot returns what a participant does at a position.
func (s *server) slot(order, position int) qoe.Slot { return s.design[order%len(s.design)][position] }

// task returns the task at a position.
func (s *server) task(slot qoe.Slot, position int) content.Task {
	return s.tasks[slot.Service][position/len(s.config.AllServices())]
}

// condition returns the condition of the session's current step, that of the last task at the end.
func (s *server) condition(o *session) int {
	position, _ := o.step(s.total())
	return s.slot(o.order, min(position, s.total()-1)).Condition
}

// handler returns the handler of a condition's origin.
func (s *server) handler(condition int, services http.Handler) http.Handler {
	mux := http.NewServeMux()
	get := func(pattern string, f func(*visit)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, condition, f) })
	}
	get("GET /{$}", func(v *visit) { v.redirect(root) })
	get("GET "+root+"{$}", (*visit).current)
	get("GET "+root+"consent", (*visit).consentPage)
	get("GET "+root+"enter", (*visit).enter)
	get("GET "+root+"study.css", func(v *visit) { v.asset("study.css", "text/css; charset=utf-8") })
	get("GET "+root+"task.js", func(v *visit) { v.asset("task.js", "text/javascript; charset=utf-8") })
	for action, f := range actions {
		get("POST "+root+action, func(v *visit) { v.post(f) })
	}
	for _, service := range content.Services() {
		for _, heavy := range []bool{false, true} {
			get("GET "+content.Path(service, heavy)+"{$}", func(v *visit) { v.service(service, heavy) })
		}
	}
	get(root, func(v *visit) {
		if v.r.Method == http.MethodGet || v.r.Method == http.MethodHead {
			v.refuse(http.StatusNotFound, v.words.NotFound)
		} else {
			v.refuse(http.StatusMethodNotAllowed, v.words.WrongMethod)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != s.origins[condition].Host {
			misdirected(w)
			return
		}
		services.ServeHTTP(w, r)
	})
	return mux
}

// misdirected answers a request for another host: it is of a page that has this address under
// another name, which could read the answer.
func misdirected(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	http.Error(w, "this address serves a study under another name", http.StatusMisdirectedRequest)
}
