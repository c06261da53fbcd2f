package study

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/qoe"
)

// Config is the section `study:` of a study's file.
type Config struct {
	// Title is what the pages and the report call the study.
	Title Text `yaml:"title"`
	// Contact is whom participants contact, also to withdraw later with their code. The consent
	// page shows it.
	Contact string `yaml:"contact"`
	// Database is the file of the answers, which is made if there is none. It is relative to the
	// study's file.
	Database string `yaml:"database"`
	// Seed determines the content of the services, the tasks, and which condition has which place
	// in the orders. Default: 0.
	Seed uint64 `yaml:"seed,omitempty"`
	// Services are the services that each participant uses under each condition: map, shop or both.
	// Default: both.
	Services []content.Service `yaml:"services,omitempty"`
	// Heavy selects the variant of the services with larger images.
	Heavy bool `yaml:"heavy,omitempty"`
	// Participants is the largest number of participants, those who withdrew not counted. Default: 200.
	Participants int `yaml:"participants,omitempty"`
	// SessionsPerMinute is how many participants can begin in a minute. Default: 60.
	SessionsPerMinute int `yaml:"sessions_per_minute,omitempty"`
	// Conditions are what is compared. Each has a listening socket of its own.
	Conditions []Condition `yaml:"conditions"`
}

// Text is a text in the languages of the pages.
type Text struct {
	// EN is the text in English.
	EN string `yaml:"en"`
	// JA is the text in Japanese.
	JA string `yaml:"ja"`
}

// Condition is what a participant uses the services under: the listening socket that serves them,
// and the network that leads to its address.
type Condition struct {
	// Transport names what is compared within an environment, such as the congestion control.
	Transport string `yaml:"transport"`
	// Environment names the network, the groups along the axis of figures. Default: all.
	Environment string `yaml:"environment,omitempty"`
	// URL is where browsers reach the listening socket: scheme, host and port.
	URL string `yaml:"url"`

	httpd.Listen `yaml:",inline"`
}

// everything is the environment of conditions without one.
const everything = "all"

// Group returns the environment of the condition.
func (c Condition) Group() string {
	if c.Environment == "" {
		return everything
	}
	return c.Environment
}

// Bounds of a configuration.
const (
	maxConditions          = 16
	maxParticipants        = 10_000
	defaultParticipants    = 200
	maxSessionsPerMinute   = 6000
	defaultSessions        = 60
	maxText                = 500
	maxServices            = 2
	defaultPortOfHTTP      = ":80"
	defaultPortOfHTTPS     = ":443"
	schemeHTTP, schemeTLS  = "http", "https"
	languageEN, languageJA = string(content.English), string(content.Japanese)
)

// name is the grammar of the names of environments and transports, which results have as well.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// AllServices returns the services in use.
func (c *Config) AllServices() []content.Service {
	if len(c.Services) == 0 {
		return content.Services()
	}
	return c.Services
}

// MaxParticipants returns Participants or its default.
func (c *Config) MaxParticipants() int {
	if c.Participants == 0 {
		return defaultParticipants
	}
	return c.Participants
}

func (c *Config) perMinute() int {
	if c.SessionsPerMinute == 0 {
		return defaultSessions
	}
	return c.SessionsPerMinute
}

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	var faults fault.List
	text := func(path, value string) {
		if value == "" || len(value) > maxText {
			faults.Add(path, "must have 1 to %d bytes, got %d", maxText, len(value))
		}
	}
	text("title.en", c.Title.EN)
	text("title.ja", c.Title.JA)
	text("contact", c.Contact)
	if c.Database == "" {
		faults.Add("database", "must name a file")
	}
	for i, s := range c.Services {
		path := fmt.Sprintf("services[%d]", i)
		if !slices.Contains(content.Services(), s) {
			faults.Add(path, "must be one of %v, got %q", content.Services(), s)
		} else if slices.Contains(c.Services[:i], s) {
			faults.Add(path, "%s is given twice", s)
		}
	}
	between := func(path string, n, most int) {
		if n < 0 || n > most {
			faults.Add(path, "must be 1 to %d, got %d", most, n)
		}
	}
	between("participants", c.Participants, maxParticipants)
	between("sessions_per_minute", c.SessionsPerMinute, maxSessionsPerMinute)
	if n := len(c.Conditions); n == 0 || n > maxConditions {
		faults.Add("conditions", "must be 1 to %d, got %d", maxConditions, n)
	}
	c.checkConditions(&faults)
	return faults
}

func (c *Config) checkConditions(faults *fault.List) {
	seen, cells, scheme := fault.Seen{}, map[[2]string]string{}, ""
	for i, one := range c.Conditions {
		at := fmt.Sprintf("conditions[%d]", i)
		faults.Merge(at, one.Listen.Check())
		seen.Check(faults, at, "address", one.Address)
		seen.Check(faults, at, "url", one.URL)
		for key, value := range map[string]string{"transport": one.Transport, "environment": one.Group()} {
			if !name.MatchString(value) {
				faults.Add(at+"."+key, "must be 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a letter or digit, got %q", value)
			}
		}
		cell := [2]string{one.Group(), one.Transport}
		if first, ok := cells[cell]; ok {
			faults.Add(at+".transport", "%s has this transport in this environment as well", first)
		}
		cells[cell] = at
		u, err := origin(one.URL)
		switch {
		case err != nil:
			faults.Add(at+".url", "%v", err)
			continue
		case (u.Scheme == schemeTLS) != (one.Certificate != ""):
			faults.Add(at+".url", "must begin with https:// if the condition has a certificate, and with http:// otherwise, got %q", one.URL)
		case scheme != "" && u.Scheme != scheme:
			faults.Add(at+".url", "must have the scheme of the other conditions: browsers keep cookies of http and https apart")
		}
		scheme = u.Scheme
	}
}

// origin parses the URL of a condition.
func origin(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != schemeHTTP && u.Scheme != schemeTLS || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Host != strings.ToLower(u.Host) {
		return nil, fmt.Errorf("must be scheme, host in lower case and port, like http://study.example:8081, got %q", text)
	}
	u.Path = ""
	if u.Scheme == schemeHTTP {
		u.Host = strings.TrimSuffix(u.Host, defaultPortOfHTTP)
	} else {
		u.Host = strings.TrimSuffix(u.Host, defaultPortOfHTTPS)
	}
	return u, nil
}

// Analyze analyzes an outcome of the study. Errors wrap qoe.ErrAnswers.
func (c *Config) Analyze(o Outcome) (qoe.Analysis, error) {
	conditions := make([]qoe.Condition, len(c.Conditions))
	for i, one := range c.Conditions {
		conditions[i] = qoe.Condition{Environment: one.Group(), Transport: one.Transport}
	}
	var services []string
	for _, s := range c.AllServices() {
		services = append(services, string(s))
	}
	return qoe.Analyze(conditions, services, o.Answers)
}

// Files makes the names of the files relative to dir, and returns the faults of the certificates,
// which it reads.
func (c *Config) Files(dir string) fault.List {
	if c.Database != "" && !filepath.IsAbs(c.Database) {
		c.Database = filepath.Join(dir, c.Database)
	}
	var faults fault.List
	for i := range c.Conditions {
		faults.Merge(fmt.Sprintf("conditions[%d]", i), c.Conditions[i].Listen.Files(dir))
	}
	return faults
}

// design returns what the answers of a database depend on, as text: if it changes, they are of
// another study.
func (c *Config) design() string {
	d := struct {
		Seed       uint64
		Heavy      bool
		Services   []content.Service
		Conditions [][2]string
	}{Seed: c.Seed, Heavy: c.Heavy, Services: c.AllServices()}
	for _, one := range c.Conditions {
		d.Conditions = append(d.Conditions, [2]string{one.Group(), one.Transport})
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// Summary describes the study in a few words.
func (c *Config) Summary() string {
	return fmt.Sprintf("conditions: %d, services: %d, participants: at most %d", len(c.Conditions), len(c.AllServices()), c.MaxParticipants())
}
