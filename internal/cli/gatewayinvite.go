package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/role"
)

func (a *App) gatewayInviteCommand(r role.Descriptor) *cobra.Command {
	var f setupFlags
	var address []string
	var replace string
	c := &cobra.Command{
		Use:   "invite",
		Short: "Let one more site join this VPS, and print a line to paste there",
		Long: `Invite prints one line, as tabane gateway init --vps does, while the gateway goes on with the sites that it has. When the site has
joined, a peer is added to the gateway's file, comments stay, and the gateway reloads it. Sites reach each other through the VPS, so
their networks must differ.

A site that comes again, after tabane gateway leave there, takes its place with --replace NAME. It is a site of the same networks.`,
		Example: "  tabane gateway invite\n  tabane gateway invite --replace office",
		Args:    Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.gatewayInvite(c.Context(), r, &f, address, replace)
		},
	}
	f.addCommon(c)
	f.noLAN = true
	addressFlag(c, &address)
	c.Flags().StringVar(&replace, "replace", "", "the `name` of a site that the new one takes the place of")
	CompleteFlag(c, "replace", gatewayPeers)
	return c
}

// inviter is a VPS that has sites, and the way to its gateway.
type inviter struct {
	host  *setup.Host
	files setup.Files
	// text is that of the file, key the file that it names, record nil without one.
	text     []byte
	key      string
	record   *setup.Record
	status   netip.AddrPort
	replaces string
}

// inviter examines the host and its gateway.
func (a *App) inviter(ctx context.Context, r role.Descriptor, f *setupFlags, what, replace string) (*inviter, error) {
	h, files, err := f.find(what)
	if err != nil {
		return nil, err
	}
	v := &inviter{host: h, files: files, replaces: replace}
	if v.text, err = os.ReadFile(files.Config()); errors.Is(err, fs.ErrNotExist) {
		return nil, &Failure{What: what, Why: err, Do: "tabane gateway init --vps sets a VPS up for its first site"}
	} else if err != nil {
		return nil, &Failure{What: what, Why: err}
	}
	c, err := config.Load(files.Config())
	if err != nil {
		return nil, err
	}
	written, err := config.Reader{}.Parse(files.Config(), v.text) // names of files as they are written
	if err != nil {
		return nil, err
	}
	g := written.Gateway
	switch {
	case g == nil || !g.Masquerade:
		err = fmt.Errorf("%s is not that of a VPS: it has no masquerade: true", files.Config())
	case replace != "" && !slices.ContainsFunc(g.Peers, func(p gateway.Peer) bool { return p.Name == replace }):
		err = fmt.Errorf("no site has the name %q: see tabane status gateway", replace)
	}
	if err != nil {
		return nil, &Failure{What: what, Why: err}
	}
	h.Gateway, v.key, v.status = g, c.Gateway.Key, role.Here(r.Status(&c.Sections))
	if _, err := gatewayState(ctx, v.status); err != nil {
		return nil, &Failure{What: what, Why: fmt.Errorf("the gateway does not answer: %w", err), Do: "start it"}
	}
	if record, err := setup.ReadRecord(files.Record()); err == nil {
		v.record = record
	}
	return v, nil
}

// accept answers the request of a site.
func (v *inviter) accept(key handshake.PublicKey, q join.Request) setup.Peer {
	h := *v.host
	if v.replaces != "" { // its networks and addresses are free
		others := *h.Gateway
		others.Peers = slices.DeleteFunc(slices.Clone(others.Peers), func(p gateway.Peer) bool { return p.Name == v.replaces })
		h.Gateway = &others
		q.Name = v.replaces
	}
	peer := h.Accept(v.files, key, q)
	if peer.Answer.Refused == "" {
		if _, err := setup.Add(v.host, v.files, v.text, peer, v.replaces); err != nil {
			peer.Answer = join.Answer{Refused: "the file of the VPS has a form that cannot be edited: see there"}
		}
	}
	return peer
}

func (a *App) gatewayInvite(ctx context.Context, r role.Descriptor, f *setupFlags, address []string, replace string) error {
	const what = "invite site"
	if _, err := parseAddresses(address); err != nil {
		return err // before what needs privileges and the gateway
	}
	if err := Require(what, r.Needs...); err != nil {
		return err
	}
	v, err := a.inviter(ctx, r, f, what, replace)
	if err != nil {
		return err
	}
	h, port := v.host, v.host.Gateway.Port()
	addresses, err := publicAddresses(h, what, address)
	if err != nil {
		return err
	}
	steps := []string{"write " + v.files.Config() + " with one more peer, when a site has joined", "tabane reload gateway"}
	if replace != "" {
		steps[0] = fmt.Sprintf("write %s with the new site in place of %q, when it has joined", v.files.Config(), replace)
	}
	if why := h.WithoutIPv6(); why != "" {
		steps = append(steps, "("+notCarried(why)+")")
	}
	if ok, err := a.confirm(ctx, f, what, steps); !ok {
		return err
	}
	ctx, stop := UntilHangup(ctx)
	defer stop()
	own, err := gateway.PrivateKey(v.key)
	if err != nil {
		return &Failure{What: what, Why: err}
	}
	peer, err := a.inviteBeside(ctx, v, own, addresses, port)
	if err != nil {
		return &Failure{What: what, Why: err, Do: "nothing was changed"}
	}
	if err := a.addSite(ctx, v, peer); err != nil {
		return &Failure{What: what, Why: err}
	}
	return a.sendTest(ctx, v.status, nil, peer)
}

// inviteBeside waits until a site has joined, while the gateway uses the port: requests are
// redirected to one of this process.
func (a *App) inviteBeside(ctx context.Context, v *inviter, own handshake.PrivateKey, addresses []netip.Addr, port uint16) (setup.Peer, error) {
	at, err := net.ListenUDP("udp", nil)
	if err != nil {
		return setup.Peer{}, err
	}
	defer at.Close()
	redirection := nft.Redirection{Table: setup.RedirectTable, First: byte(tunnel.Join), From: port, To: uint16(at.LocalAddr().(*net.UDPAddr).Port)}
	if err := redirection.Set(); err != nil {
		return setup.Peer{}, err
	}
	invitation, err := join.Invite(own.Public(), port, addresses, rand.Reader)
	var peer setup.Peer
	if err == nil {
		peer, err = a.awaitSite(ctx, v.host, at, own, invitation, v.accept)
	}
	return peer, errors.Join(err, nft.Delete(setup.RedirectTable))
}

// addSite writes the file with a site, and has the gateway reload it. If that fails, the file is as
// before.
func (a *App) addSite(ctx context.Context, v *inviter, peer setup.Peer) error {
	changed, err := setup.Add(v.host, v.files, v.text, peer, v.replaces)
	if err != nil {
		return err
	}
	if err := v.record.Rewrite(v.files.Config(), v.text, changed); err != nil {
		return err
	}
	lines, err := command(ctx, v.status, http.MethodPost, reloadPath, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("reload gateway: %w", err), v.record.Rewrite(v.files.Config(), changed, v.text))
	}
	fmt.Fprintf(a.Out, "%q has joined.\n", peer.Request.Name)
	for _, l := range lines {
		fmt.Fprintln(a.Out, "  "+l)
	}
	return nil
}
