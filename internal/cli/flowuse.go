package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/epe/flows"
)

// usesEvery is how often flows asks the edge which subflows carry data.
const usesEvery = time.Second

// uses is what an edge says of subflows.
type uses struct {
	mu  sync.Mutex
	all map[subflowEnds]flows.Use
}

type subflowEnds struct {
	local  netip.Addr
	remote netip.AddrPort
}

// of returns what the edge said last of a subflow.
func (u *uses) of(local netip.Addr, remote netip.AddrPort) flows.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[subflowEnds{local, remote}]
}

// follow asks the edge at a status address until ctx ends. While it does not answer, nothing is
// known.
func (u *uses) follow(ctx context.Context, at netip.AddrPort) {
	tick := time.NewTicker(usesEvery)
	defer tick.Stop()
	for {
		body, err := ask(ctx, at, fmt.Sprintf("%s?limit=%d", connectionsPath, maxConnections))
		all := map[subflowEnds]flows.Use{}
		if err == nil {
			all, err = parseUses(body)
		}
		if err != nil {
			all = nil
		}
		u.mu.Lock()
		u.all = all
		u.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// parseUses decodes the answer of an edge.
func parseUses(body []byte) (map[subflowEnds]flows.Use, error) {
	var answer struct {
		Subflows []struct {
			Client  netip.AddrPort `json:"client"`
			Address netip.Addr     `json:"address"`
			Policy  string         `json:"policy"`
			Use     string         `json:"use"`
		} `json:"subflows"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	all := map[subflowEnds]flows.Use{}
	for _, s := range answer.Subflows {
		if s.Policy != "" {
			all[subflowEnds{s.Address, s.Client}] = flows.Use{Policy: s.Policy, Reason: s.Use}
		}
	}
	return all, nil
}
