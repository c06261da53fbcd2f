// Package health says whether a daemon can do its work, and what of it fails.
//
// It refuses to look: daemons report what they see.
package health

import (
	"fmt"
	"strings"
)

// Status is the beginning of a daemon's /status.
type Status struct {
	// Ready: the daemon can do its work.
	Ready bool `json:"ready"`
	// Degraded: it can, but a part fails that another one replaces.
	Degraded bool `json:"degraded"`
	// Reason is why the daemon is degraded or not ready.
	Reason string `json:"reason,omitempty"`
	// Host are the problems of the host among the reasons.
	Host []Problem `json:"host,omitempty"`
}

// Problem is what a host lacks, and the command or instruction that mends it.
type Problem struct {
	Text   string `json:"problem"`
	Remedy string `json:"remedy"`
}

func (p *Problem) Error() string { return p.Text + ": " + p.Remedy }

// Report collects what is wrong with a daemon. The zero value is that of a daemon without problems.
type Report struct {
	failures, losses []string
	host             []Problem
}

// Fail adds a problem because of which the daemon cannot do its work.
func (r *Report) Fail(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

// Degrade adds a problem that the daemon works in spite of.
func (r *Report) Degrade(format string, a ...any) {
	r.losses = append(r.losses, fmt.Sprintf(format, a...))
}

// Lack adds problems of the host that the daemon works in spite of, in part.
func (r *Report) Lack(problems ...Problem) {
	for _, p := range problems {
		r.host = append(r.host, p)
		r.losses = append(r.losses, p.Error())
	}
}

// NeedOne adds the problems of parts that replace each other, one for each part that fails: the
// daemon needs one of total parts.
func (r *Report) NeedOne(total int, problems []string) {
	if len(problems) < total {
		r.losses = append(r.losses, problems...)
		return
	}
	r.failures = append(r.failures, problems...)
}

// Status is the verdict. Reasons for not being ready precede the others.
func (r *Report) Status() Status {
	ready := len(r.failures) == 0
	return Status{
		Ready: ready, Degraded: ready && len(r.losses) > 0,
		Reason: strings.Join(append(append([]string(nil), r.failures...), r.losses...), "; "), Host: r.host,
	}
}
