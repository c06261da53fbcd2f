package sealed

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// docs/wire.md has every record and the length of every message, as they are written.
func TestWireDocument(t *testing.T) {
	b, err := os.ReadFile("../../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		fmt.Sprintf("| initiation | type and three zero bytes, sender's index (4), Noise message with 14 bytes, two hashes (16 each) | %d |", handshake.InitiationLen),
		fmt.Sprintf("two hashes | %d |", handshake.ResponseLen),
		fmt.Sprintf("sealed cookie (16 + 16) | %d |", handshake.CookieLen),
		fmt.Sprintf("| %d on | packet |", tunnel.Offset),
		fmt.Sprintf("| %d to 19 | time sent |", tunnel.HeaderLen),
		fmt.Sprintf("| last %d | tag |", tunnel.TagLen),
		fmt.Sprintf("The tunnel adds %d bytes to a packet; with UDP and IP it is %d over IPv4 and %d over IPv6.", tunnel.Overhead, tunnel.Overhead+inet.UDP4Len, tunnel.Overhead+inet.UDP6Len),
		fmt.Sprintf("The tunnel adds %d bytes to a packet; with UDP and IP it is %d over IPv4 and %d over IPv6.", openbpf.OverheadIPv4-inet.UDP4Len, openbpf.OverheadIPv4, openbpf.OverheadIPv6),
		fmt.Sprintf("until the home agent has answered, the rate is %d kbit/s", unansweredRate/1000),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/wire.md does not have %q", want)
		}
	}
	for c, who := range map[tunnel.Code]string{
		tunnel.Accepted: "both", tunnel.MemberProhibited: "member", tunnel.MemberResources: "member", tunnel.MemberMalformed: "member",
		tunnel.MemberUnreachable: "member", tunnel.HomeProhibited: "any gateway", tunnel.HomeResources: "home agent", tunnel.HomeMalformed: "home agent",
	} {
		if want := fmt.Sprintf("| %d | %s |", uint8(c), who); !strings.Contains(text, want) {
			t.Errorf("docs/wire.md does not have the code %q", want)
		}
	}
	const recordHead, numberLen = 3, 4
	documented := map[int]bool{}
	for _, r := range []tunnel.Record{
		tunnel.Probe{}, tunnel.Answer{}, tunnel.Report{}, tunnel.Ack{}, tunnel.Progress{{}}, tunnel.Request{Counters: []uint64{1}}, tunnel.Hello{},
		tunnel.PathAdd{}, tunnel.PathRemove{}, tunnel.NAT{}, tunnel.Register{}, tunnel.Bye{}, tunnel.Registered{}, tunnel.Open{}, tunnel.Arrived{}, tunnel.Sent{}, tunnel.NATSession{},
		tunnel.Scout{}, tunnel.Scouted{}, tunnel.Rated{}, tunnel.PathUse{},
	} {
		n := 0
		if r.Type().Reliable() {
			n = len(tunnel.AppendNumbered(nil, 0, r)) - recordHead - numberLen
		} else {
			n = len(tunnel.AppendRecord(nil, r)) - recordHead
		}
		documented[int(r.Type())] = true
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \| %v \| %d[ ,]`, r.Type(), r.Type(), n))
		if !row.MatchString(text) {
			t.Errorf("docs/wire.md has no row for type %d, %v, with %d bytes", r.Type(), r.Type(), n)
		}
	}
	// And none that does not exist.
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| [a-z ]+ \| [^|]*\| [^|]* \|$`).FindAllStringSubmatch(text, -1) {
		if n, _ := strconv.Atoi(m[1]); !documented[n] {
			t.Errorf("docs/wire.md has a record of type %d", n)
		}
	}
	for n := range 256 {
		if kind := tunnel.RecordType(n); kind.String() != fmt.Sprintf("record type %d", n) && n != 0 && !documented[n] {
			t.Errorf("the record %v is not checked here", kind)
		}
	}
}
