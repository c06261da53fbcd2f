package acceptance

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/testkit/programs"
	"github.com/tabane/tabane/internal/testkit/published"
)

// The sizes of BenchmarkProxies.
const (
	proxyRounds = 5
	proxyBulk   = 1 << 30 // bytes
	proxyShort  = 5000    // connections
	proxyPiece  = 1 << 10 // bytes of a short connection in each direction
	proxyIdle   = 2000    // connections
	proxyFirst  = 200     // connections whose first byte is awaited
	// proxyWorkers open short connections at a time.
	proxyWorkers = 32
)

// contestant is a proxy that is measured, or none.
type contestant struct {
	name   string
	config func(listen, server string) string
	// command is the program with its arguments, but for the file; nil: clients connect to the
	// server.
	command []string
	// multipath: it connects to the server by MPTCP.
	multipath bool

	pid                                   int
	listen                                string
	bulk, bulkCPU, short, shortCPU, first []float64
	idle                                  float64
}

// BenchmarkProxies measures the proxy beside HAProxy and nginx on loopback, in interleaved rounds:
// a download by one connection, short connections, the time to the first byte, and the memory of
// idle ones. CPU time is that of the proxy's processes.
func BenchmarkProxies(b *testing.B) {
	haproxy, nginx, mptcpize := programs.Need(b, "haproxy"), programs.Need(b, "nginx"), programs.Need(b, "mptcpize")
	tabane := func(scheme string) func(listen, server string) string {
		return func(listen, server string) string {
			return fmt.Sprintf("proxy:\n  control: %s/s.sock\n  status: %s\n  listeners: [{listen: \"tcp://%s\", upstream: \"%s://%s\"}]\n", b.TempDir(), freeAddress(b), listen, scheme, server)
		}
	}
	stream := func(listen, server string) string {
		dir := b.TempDir()
		return fmt.Sprintf("load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nworker_processes auto;\nworker_rlimit_nofile 20000;\npid %s/pid;\nerror_log %s/log;\nevents { worker_connections 9000; }\nstream { server { listen %s backlog=4096; proxy_pass %s; } }\n", dir, dir, listen, server)
	}
	splice := func(listen, server string) string {
		return fmt.Sprintf("global\n  maxconn 4000\n  nbthread 2\ndefaults\n  mode tcp\n  option splice-auto\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\nlisten l\n  bind %s\n  server s %s\n", listen, server)
	}
	list := []*contestant{
		{name: "none"},
		{name: "tabane", config: tabane("tcp"), command: []string{program, "proxy", "-c"}},
		{name: "HAProxy", config: splice, command: []string{haproxy, "-db", "-f"}},
		{name: "nginx", config: stream, command: []string{nginx, "-c"}},
		{name: "tabane to MPTCP", config: tabane("mptcp"), command: []string{program, "proxy", "-c"}, multipath: true},
		{name: "HAProxy to MPTCP", config: splice, command: []string{mptcpize, "run", haproxy, "-db", "-f"}, multipath: true},
		{name: "nginx to MPTCP", config: stream, command: []string{mptcpize, "run", nginx, "-c"}, multipath: true},
	}
	loadBefore := loadAverage(b)
	var multipath atomic.Bool // the last connection
	bulk, short := bulkServer(b, &multipath), shortServer(b)
	start := func(c *contestant, server string) (stop func()) {
		if c.command == nil {
			c.listen, c.pid = server, 0
			return func() {}
		}
		c.listen = freeAddress(b)
		file := filepath.Join(b.TempDir(), "config")
		if err := os.WriteFile(file, []byte(c.config(c.listen, server)), 0o600); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("sh", append(append([]string{"-c", `exec "$@"`, "sh"}, c.command...), file)...)
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		c.pid = cmd.Process.Pid
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if l, err := net.Dial("tcp", c.listen); err == nil {
				_ = l.Close()
				break
			}
			if time.Now().After(end) {
				b.Fatalf("%s does not listen: %s", c.name, &output)
			}
		}
		return func() {
			_ = cmd.Process.Signal(unix.SIGTERM)
			_ = cmd.Wait()
		}
	}
	for b.Loop() {
		for range proxyRounds {
			for _, c := range list {
				stop := start(c, bulk)
				cpu, begun := proxyCPU(b, c.pid), time.Now()
				n, err := download(c.listen)
				took := time.Since(begun).Seconds()
				if err != nil || n != proxyBulk {
					b.Fatalf("%s: %d bytes, %v", c.name, n, err)
				}
				if multipath.Load() != c.multipath {
					b.Fatalf("%s: the connection to the server is MPTCP: %v", c.name, multipath.Load())
				}
				c.bulk = append(c.bulk, float64(n)*8/took/1e9)
				c.bulkCPU = append(c.bulkCPU, (proxyCPU(b, c.pid)-cpu)/float64(n)*1e9)
				stop()
				stop = start(c, short)
				cpu, begun = proxyCPU(b, c.pid), time.Now()
				if err := shortConnections(c.listen); err != nil {
					b.Fatalf("%s: %v", c.name, err)
				}
				took = time.Since(begun).Seconds()
				c.short = append(c.short, proxyShort/took)
				c.shortCPU = append(c.shortCPU, (proxyCPU(b, c.pid)-cpu)/proxyShort*1e6)
				first, err := firstByte(c.listen)
				if err != nil {
					b.Fatalf("%s: %v", c.name, err)
				}
				c.first = append(c.first, first.Seconds()*1000)
				stop()
			}
		}
		for _, c := range list[1:] {
			stop := start(c, short)
			before := proxyResident(b, c.pid)
			var open []net.Conn
			for range proxyIdle {
				conn, err := net.Dial("tcp", c.listen)
				if err != nil {
					b.Fatalf("%s: %v", c.name, err)
				}
				open = append(open, conn)
			}
			time.Sleep(500 * time.Millisecond)
			c.idle = float64(proxyResident(b, c.pid)-before) / proxyIdle / 1000
			for _, conn := range open {
				_ = conn.Close()
			}
			stop()
		}
	}
	median := func(v []float64) float64 {
		v = slices.Sorted(slices.Values(v))
		return v[len(v)/2]
	}
	lines := append([]string{
		fmt.Sprintf("Loopback, medians of %d interleaved rounds, each a download of %.1f GB by one connection, %d connections that exchange 1 kB in each direction,",
			proxyRounds, proxyBulk/1e9, proxyShort),
		fmt.Sprintf("and %d, one after the other, of which the time from connecting to the first byte of the answer counts; and %d idle connections once,", proxyFirst, proxyIdle),
		fmt.Sprintf("on %s.", published.Machine()),
		fmt.Sprintf("Processes that wanted to run, on average of a minute: %.1f before, %.1f after the measurement, which itself makes 2 to 3.", loadBefore, loadAverage(b)), "",
	}, published.Head("proxy", "Gbit/s", "CPU s/GB", "connections/s", "CPU us/connection", "first byte ms", "kB per idle connection")...)
	for _, c := range list {
		of := func(c *contestant, format string, v float64) string {
			if c.command == nil {
				return "-"
			}
			return fmt.Sprintf(format, v)
		}
		lines = append(lines, published.Row(c.name, fmt.Sprintf("%.1f", median(c.bulk)), of(c, "%.3f", median(c.bulkCPU)),
			fmt.Sprintf("%.0f", median(c.short)), of(c, "%.1f", median(c.shortCPU)), fmt.Sprintf("%.2f", median(c.first)), of(c, "%.1f", c.idle)))
	}
	publish(b, "docs/proxy.md", "proxies", "make bench-proxy", lines)
}

var writeTables = flag.Bool("update", false, "write the tables that are measured")

// publish prints a table, and with -update writes it to where the command's table is.
func publish(tb testing.TB, file, name, command string, lines []string) {
	tb.Helper()
	fmt.Println("\n" + strings.Join(lines, "\n"))
	if !*writeTables {
		return
	}
	table, err := published.Read(file, name, command)
	if err == nil {
		err = table.Write(lines)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func freeAddress(b testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// bulkServer sends proxyBulk bytes to each client that sends one, and reports whether that came by
// MPTCP.
func bulkServer(b *testing.B, multipath *atomic.Bool) string {
	piece := make([]byte, 1<<18)
	return benchServer(b, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return // a look whether the proxy listens
		}
		is, err := c.(*net.TCPConn).MultipathTCP()
		multipath.Store(err == nil && is)
		for n := 0; n < proxyBulk; n += len(piece) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	})
}

// shortServer answers a piece with a piece.
func shortServer(b *testing.B) string {
	return benchServer(b, func(c net.Conn) {
		piece := make([]byte, proxyPiece)
		if _, err := io.ReadFull(c, piece); err == nil {
			_, _ = c.Write(piece) // the client notices
		}
	})
}

// echo sends back what it receives. The copy is not by splice(2), for which Go would keep pipes.
func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func benchServer(b testing.TB, f func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { f(c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

// download reads what bulkServer sends.
func download(address string) (n int64, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.Write([]byte{1}); err != nil {
		return 0, err
	}
	b := make([]byte, 1<<18)
	for {
		m, err := c.Read(b)
		n += int64(m)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// firstByte returns the median time from connecting to the first byte of the answer, of proxyFirst
// connections one after the other.
func firstByte(address string) (time.Duration, error) {
	piece := make([]byte, proxyPiece)
	var took []time.Duration
	for range proxyFirst {
		begun := time.Now()
		c, err := net.Dial("tcp", address)
		if err != nil {
			return 0, err
		}
		_, err = c.Write(piece)
		if err == nil {
			_, err = io.ReadFull(c, piece[:1])
		}
		took = append(took, time.Since(begun))
		_ = c.Close()
		if err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// shortConnections opens proxyShort connections and exchanges a piece over each.
func shortConnections(address string) error {
	var left atomic.Int64
	left.Store(proxyShort)
	var working sync.WaitGroup
	failed := make(chan error, proxyWorkers)
	for range proxyWorkers {
		working.Go(func() {
			piece := make([]byte, proxyPiece)
			for left.Add(-1) >= 0 {
				c, err := net.Dial("tcp", address)
				if err == nil {
					_, err = c.Write(piece)
					if err == nil {
						_, err = io.ReadFull(c, piece)
					}
					_ = c.Close()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	working.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// proxyFamily returns a process and its children.
func proxyFamily(b *testing.B, pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		b.Fatal(err)
	}
	all := []int{pid}
	for _, f := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// proxyCPU returns the CPU time of a process and its children in seconds.
func proxyCPU(b *testing.B, pid int) (seconds float64) {
	if pid == 0 {
		return 0
	}
	for _, p := range proxyFamily(b, pid) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		if err != nil {
			b.Fatal(err)
		}
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has ended
			}
			ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += ns / 1e9
		}
	}
	return seconds
}

// proxyResident returns the resident memory of a process and its children in bytes.
func proxyResident(b *testing.B, pid int) (n int) {
	for _, p := range proxyFamily(b, pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p))
		if err != nil {
			b.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(text))[1])
		if err != nil {
			b.Fatal(err)
		}
		n += pages * os.Getpagesize()
	}
	return n
}
