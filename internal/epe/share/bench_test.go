package share

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
)

// BenchmarkStore has servers exchange what they measured of networks, four modes each, as often as
// mostServers have a record of each. It reports what a network costs the store: memory, and bytes
// and commands for a server that writes and reads it. docs/delivery-measured.md has the figures.
func BenchmarkStore(b *testing.B) {
	const networks = 100 // of an exchange
	address, _ := server(b, freePort(b))
	var clients []*Client
	for i := range mostServers {
		c := New(Options{Address: address, Site: "65000", Server: fmt.Sprint("10.0.0.", i)})
		defer c.Close()
		clients = append(clients, c)
	}
	modes := []belief.SharedMode{{Mode: "single transit-a"}, {Mode: "single transit-b"}, {Mode: "single transit-c"}, {Mode: "spread"}}
	for i := range modes {
		modes[i].Mean, modes[i].SD, modes[i].Trials = 0.12345678+float32(i)/10, 0.04567891, 12
	}
	info := func(key string) float64 {
		text, err := clients[0].conn.Do("INFO")
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text.([]byte)), "\n"+key+":")
		value, _, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	exchange := func(c *Client, first int) {
		var x belief.Exchange
		for i := range networks {
			n := first + i
			p := netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), 48)
			x.Asked = append(x.Asked, p)
			x.Measured = append(x.Measured, belief.Shared{Version: belief.SharedVersion, Prefix: p, Measured: time.Now().Unix(), Modes: modes})
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		if r, err := c.Exchange(ctx, x); err != nil || r.Refused != nil || r.Invalid > 0 {
			b.Fatal(r, err)
		}
	}
	rounds := 0
	exchange(clients[0], 0) // which connects
	memory, in, out, commands, spent := info("used_memory"), info("total_net_input_bytes"), info("total_net_output_bytes"), info("total_commands_processed"), info("used_cpu_user")+info("used_cpu_sys")
	for b.Loop() {
		rounds++
		for _, c := range clients {
			exchange(c, rounds*networks)
		}
	}
	records := float64(rounds * networks * len(clients))
	b.ReportMetric((info("used_memory")-memory)/float64(rounds*networks), "memory-B/network")
	b.ReportMetric((info("total_net_input_bytes")-in)/records, "in-B/exchange")
	b.ReportMetric((info("total_net_output_bytes")-out)/records, "out-B/exchange")
	b.ReportMetric((info("total_commands_processed")-commands)/records, "commands/exchange")
	b.ReportMetric((info("used_cpu_user")+info("used_cpu_sys")-spent)/records*1e6, "store-us/exchange")
	b.ReportMetric(0, "ns/op")
}
