package nft

import (
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// firewalls are rulesets as their programs make them, which drop what the passages of these tests
// are.
func firewalls(t *testing.T) map[string][]*exec.Cmd {
	nft4 := programs.Need(t, "iptables-nft")
	nft6 := programs.Need(t, "ip6tables-nft")
	iptables := func(rules string) (list []*exec.Cmd) {
		for rule := range strings.SplitSeq(rules, ";") {
			list = append(list, exec.Command(nft4, strings.Fields(rule)...), exec.Command(nft6, strings.Fields(rule)...))
		}
		return list
	}
	return map[string][]*exec.Cmd{
		"nftables": {ruleTable(t, "inet", `chain input { type filter hook input priority 0; policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; iifname "lo" accept; tcp dport 22 accept; }
			chain forward { type filter hook forward priority 0; policy drop; }`)},
		"a table for each version": {
			ruleTable(t, "ip", `chain input { type filter hook input priority 0; policy drop; }; chain forward { type filter hook forward priority 0; policy drop; }`),
			ruleTable(t, "ip6", `chain input { type filter hook input priority 0; policy drop; }; chain forward { type filter hook forward priority 0; drop; }`),
		},
		"iptables-nft": iptables("-P INPUT DROP; -P FORWARD DROP; -A INPUT -i lo -j ACCEPT; -A INPUT -p tcp --dport 22 -j ACCEPT; -A FORWARD -i docker0 -j ACCEPT"),
		// What ufw enable makes, without the rules that are for other packets.
		"ufw": iptables("-P INPUT DROP; -P FORWARD DROP; -N ufw-before-input; -N ufw-before-forward; -N ufw-user-input; -N ufw-not-local; -N ufw-after-input; " +
			"-A ufw-before-input -i lo -j ACCEPT; -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A ufw-before-input -m conntrack --ctstate INVALID -j DROP; " +
			"-A ufw-before-input -p udp --sport 67 --dport 68 -j ACCEPT; -A ufw-before-input -j ufw-not-local; -A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN; -A ufw-not-local -j DROP; " +
			"-A ufw-before-input -j ufw-user-input; -A ufw-user-input -p tcp --dport 22 -j ACCEPT; -A ufw-after-input -p udp --dport 137 -j DROP; " +
			"-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A INPUT -j ufw-before-input; -A INPUT -j ufw-after-input; -A FORWARD -j ufw-before-forward"),
		// What firewalld makes by default.
		"firewalld": {ruleTable(t, "inet", `chain filter_INPUT { type filter hook input priority 10; policy accept; ct state { established, related } accept; ct status dnat accept; iifname "lo" accept; ct state invalid drop; jump filter_INPUT_ZONES; reject with icmpx admin-prohibited; }
			chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct state { established, related } accept; ct status dnat accept; iifname "lo" accept; ct state invalid drop; jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited; }
			chain filter_INPUT_ZONES { iifname "wan" goto filter_IN_public; goto filter_IN_public; }
			chain filter_FORWARD_ZONES { iifname "wan" goto filter_FWD_public; goto filter_FWD_public; }
			chain filter_IN_public { tcp dport 22 accept; meta l4proto { icmp, ipv6-icmp } accept; }
			chain filter_FWD_public { oifname "docker0" accept; }`)},
	}
}

// TestPermit: chains of usual firewalls accept the passages, and nothing else; other rules are not
// touched; rules that are flushed are made again; and none is left.
func TestPermit(t *testing.T) {
	nft := programs.Need(t, "nft")
	iptables := programs.Need(t, "iptables-nft")
	const owner = "tabane-test"
	passages := slices.Concat(between("ip"), between("ip6"), tunnel("ip"), tunnel("ip6"))
	others := []Passage{
		{Version: "ip", In: "wan", Out: "lan"}, {Version: "ip6", In: "lan", Out: "lan"},
		{Version: "ip", In: "lan", Protocol: tunnel("ip")[0].Protocol, Port: 4790}, {Version: "ip6", In: "wan", Protocol: tunnel("ip6")[0].Protocol, Port: 4791},
	}
	list := func() string { return listed(t, nft) }
	for name, commands := range firewalls(t) {
		t.Run(name, func(t *testing.T) {
			withLinks(t, commands, func() error {
				before := list()
				found, err := Blocking(passages)
				if err != nil || len(found) < 4 {
					t.Fatalf("found %v, %v", found, err)
				}
				if inserted, err := Permit(owner, passages); err != nil || len(inserted) == 0 {
					t.Fatalf("inserted %v, %v", inserted, err)
				}
				after := list()
				if found, err = Blocking(passages); len(found) > 0 || err != nil {
					t.Errorf("found %v, %v, after:\n%s", found, err, after)
				}
				if found, err = Blocking(others); len(found) < len(others) || err != nil {
					t.Errorf("of others, only %v is dropped, %v", found, err)
				}
				if inserted, err := Permit(owner, passages); err != nil || len(inserted) > 0 || list() != after {
					t.Errorf("again: %v, %v", inserted, err)
				}
				if ok, err := Permitted(owner, passages); !ok || err != nil {
					t.Errorf("permitted: %t, %v", ok, err)
				}
				if strings.Contains(after, "FORWARD {") { // iptables still reads its tables
					out, err := exec.Command(iptables, "-S").CombinedOutput()
					if err != nil || !strings.Contains(string(out), `-i wan -p udp -m udp --dport 4790 -m comment --comment "tabane-test iifname wan udp dport 4790 accept" -j ACCEPT`) && name != "firewalld" {
						t.Errorf("%v: %s", err, out)
					}
				}
				if _, err := Permit("another", nil); err != nil || list() != after {
					t.Errorf("another owner removed rules: %v", err)
				}
				if inserted, err := Permit(owner, nil); err != nil || len(inserted) > 0 || list() != before {
					t.Errorf("removed: %v, %v, left:\n%s", inserted, err, list())
				}
				return nil
			})
		})
	}
}

// listed returns all rules, as nft lists them.
func listed(t *testing.T, nft string) string {
	t.Helper()
	out, err := exec.Command(nft, "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestPermitMarked: the same chains accept packets by their mark besides, as long as that is wanted,
// and before rules that come later.
func TestPermitMarked(t *testing.T) {
	nft := programs.Need(t, "nft")
	iptables := programs.Need(t, "iptables-nft")
	const owner = "tabane-test"
	passages, marked := between("ip"), Packets{Mark: 4791, Bits: 0xffff, Lines: []string{"wan"}}
	list := func() string { return listed(t, nft) }
	for name, commands := range firewalls(t) {
		t.Run(name, func(t *testing.T) {
			withLinks(t, commands, func() error {
				before := list()
				if found, err := Untracked(marked); err != nil || len(found) == 0 {
					t.Fatalf("found %v, %v", found, err)
				}
				if ok, err := Permitted(owner, passages, marked); ok || err != nil {
					t.Errorf("permitted: %t, %v", ok, err)
				}
				if inserted, err := Permit(owner, passages, marked); err != nil || len(inserted) == 0 {
					t.Fatalf("inserted %v, %v", inserted, err)
				}
				after := list()
				found, err := Untracked(marked)
				blocks, other := Blocking(passages)
				if len(found)+len(blocks) > 0 || err != nil || other != nil {
					t.Errorf("found %v, %v, %v, %v, after:\n%s", found, blocks, err, other, after)
				}
				if inserted, err := Permit(owner, passages, marked); err != nil || len(inserted) > 0 || list() != after {
					t.Errorf("again: %v, %v", inserted, err)
				}
				if strings.Contains(after, "FORWARD {") && name != "firewalld" { // iptables still reads its tables
					if out, err := exec.Command(iptables, "-S", "FORWARD").CombinedOutput(); err != nil || !strings.Contains(string(out), "--mark 0x12b7/0xffff") {
						t.Errorf("%v: %s", err, out)
					}
				}
				if name == "nftables" {
					if out, err := exec.Command(nft, "insert rule inet fw forward ct state invalid drop").CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					if inserted, err := Permit(owner, passages, marked); err != nil || len(inserted) == 0 {
						t.Errorf("before another rule: %v, %v", inserted, err)
					}
					if found, err := Untracked(marked); len(found) > 0 || err != nil {
						t.Errorf("found %v, %v", found, err)
					}
					return nil
				}
				if _, err := Permit(owner, passages); err != nil || strings.Contains(list(), "meta mark") {
					t.Errorf("not wanted any more: %v, left:\n%s", err, list())
				}
				if _, err := Permit(owner, nil); err != nil || list() != before {
					t.Errorf("removed: %v, left:\n%s", err, list())
				}
				return nil
			})
		})
	}
}

// TestPermitAgain: the owner's rules follow what others change.
func TestPermitAgain(t *testing.T) {
	nft := programs.Need(t, "nft")
	const owner = "tabane-test"
	rules := ruleTable(t, "inet", `chain c { type filter hook forward priority 0; policy drop; }; chain d { drop; }`)
	withLinks(t, []*exec.Cmd{rules}, func() error {
		for _, step := range []struct {
			change string
			rules  int
		}{
			{"", 2},
			{"flush chain inet fw c", 2},
			{"insert rule inet fw c jump d", 2}, // before ours
			{"delete rule inet fw c handle HANDLE", 2},
			{"add rule inet fw c drop", 2},
			{"flush chain inet fw c; chain inet fw c { policy accept; }", 0},
			{"chain inet fw c { policy drop; }", 2},
			{`insert rule inet fw c iifname "lan" accept`, 1}, // half of them is not needed any more
			{"delete table inet fw", 0},
		} {
			out, err := exec.Command("sh", "-c", nft+` -a list chain inet fw c | sed -n 's/.*accepts lan.*# handle //p; s/.*oifname "wan".*# handle //p' | head -n 1`).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if step.change != "" {
				change := strings.ReplaceAll(step.change, "HANDLE", strings.TrimSpace(string(out)))
				if out, err := exec.Command(nft, change).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", change, err, out)
				}
				if ok, err := Permitted(owner, between("ip")); ok && step.rules > 0 && !strings.Contains(step.change, "add rule") || err != nil {
					t.Errorf("%s: permitted: %t, %v", step.change, ok, err)
				}
			}
			if _, err := Permit(owner, between("ip")); err != nil {
				return err
			}
			if found, err := Blocking(between("ip")); len(found) > 0 || err != nil {
				t.Errorf("%s: found %v, %v", step.change, found, err)
			}
			list, err := exec.Command(nft, "list", "ruleset").CombinedOutput()
			if got := strings.Count(string(list), owner); got != step.rules || err != nil {
				t.Errorf("%s: %d rules, want %d, %v\n%s", step.change, got, step.rules, err, list)
			}
		}
		return nil
	})
}

// TestOwnedTable: nothing is tried where the kernel refuses it, and the remedy says so.
func TestOwnedTable(t *testing.T) {
	nft := programs.Need(t, "nft")
	withLinks(t, nil, func() error {
		owner := exec.Command(nft, "-i")
		in, err := owner.StdinPipe()
		if err != nil {
			return err
		}
		if err := owner.Start(); err != nil {
			return err
		}
		defer func() { _ = in.Close(); _ = owner.Wait() }()
		if _, err := io.WriteString(in, "table inet firewalld { flags owner; chain f { type filter hook forward priority 0; policy drop; }; }\n"); err != nil {
			return err
		}
		for end := time.Now().Add(10 * time.Second); exec.Command(nft, "list", "chain", "inet", "firewalld", "f").Run() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("there is no table")
			}
		}
		found, err := Blocking(between("ip"))
		if err != nil || len(found) != 2 || !found[0].Owned || !strings.Contains(found[0].Remedy(), "NftablesTableOwner") {
			t.Errorf("found %+v, %v", found, err)
		}
		if inserted, err := Permit("tabane-test", between("ip")); len(inserted) > 0 || err != nil {
			t.Errorf("inserted %v, %v", inserted, err)
		}
		if ok, err := Permitted("tabane-test", between("ip")); !ok || err != nil {
			t.Errorf("permitted: %t, %v", ok, err)
		}
		return nil
	})
}
