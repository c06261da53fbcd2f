package bfd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/realtime"
)

// processName is the name of the process in the list of processes.
const processName = "tabane: bfd"

// parentDied is the signal that the process gets when the daemon dies. SIGTERM is for the daemon: a
// service manager sends it to all processes of a service.
const parentDied = syscall.SIGUSR1

// A request to the process has one of these; each has a reply with Done.
type request struct {
	Add    *Neighbor `json:",omitempty"`
	Remove string    `json:",omitempty"`
}

// A reply is the answer to a request, a transition of a session, or a notice.
type reply struct {
	Done       bool       `json:",omitempty"`
	Err        string     `json:",omitempty"`
	Neighbor   string     `json:",omitempty"`
	Transition transition `json:",omitempty"`
	Notice     string     `json:",omitempty"`
	Ignored    string     `json:",omitempty"` // why packets of the neighbor are
	Panic      string     `json:",omitempty"` // one that was contained
}

// Process runs the sessions of the process that called it, and does not return, if this process was
// started by a Detector; otherwise it does nothing. A program that uses a Detector calls it first.
//
// The sessions have a process of their own so that nothing delays their packets: not the scheduler
// and the garbage collector of a daemon that processes a full table, and, with real-time priority,
// not the load of the host. The kernel signals the death of the daemon before it releases the
// daemon's memory and closes its connections, which takes a while if there is much: neighbors learn
// it by BFD at once.
func Process() {
	prepared = true
	if len(os.Args) == 0 || os.Args[0] != processName {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bfd:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// prepared: this program has called Process. Without it, a process would run the program again.
var prepared bool

func serve(in io.Reader, out io.Writer) error {
	died := make(chan os.Signal, 1)
	signal.Notify(died, parentDied)
	// SIGPIPE: a report to a daemon that is gone must not end this process before the neighbors
	// know.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	send := func(r reply) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(r) // if the daemon is gone, the next read ends
	}
	if err := realtime.Process(); err != nil {
		send(reply{Notice: err.Error()})
	}
	e := newEngine(
		func(neighbor string, t transition) { send(reply{Neighbor: neighbor, Transition: t}) },
		func(err error) { send(reply{Panic: err.Error()}) },
	)
	e.ignored = func(neighbor, reason string) { send(reply{Neighbor: neighbor, Ignored: reason}) }
	e.assist()
	ended := make(chan error, 1)
	go func() {
		decoder := json.NewDecoder(in)
		for {
			var r request
			if err := decoder.Decode(&r); err != nil {
				ended <- err
				return
			}
			done := reply{Done: true}
			var err error
			if fault := contain.Do(contain.BFD, faults, nil, func() {
				if r.Add == nil {
					e.remove(r.Remove)
				} else {
					err = e.add(*r.Add)
				}
			}); fault != nil {
				e.fault(fault)
				err = fault
			}
			if err != nil {
				done.Err = err.Error()
			}
			send(done)
		}
	}()
	select {
	case <-died:
		e.die()
		return nil
	case err := <-ended:
		// A daemon that stops has removed its sessions before.
		e.die()
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// process is the daemon's end of a process.
type process struct {
	pid     int
	in      io.WriteCloser
	encoder *json.Encoder
	done    chan error    // answers to requests
	ended   chan struct{} // closed when it has ended
	err     error         // why it ended
}

// startProcess starts a process in the network namespace of the calling thread. report is called
// for replies other than to requests.
func startProcess(report func(reply)) (*process, error) {
	if !prepared {
		panic("BUG: the program does not call bfd.Process")
	}
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	p := &process{done: make(chan error), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.ended)
		// The kernel takes the thread that starts a process for its parent: the thread must live
		// as long as this process. It is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		cmd, out, err := p.command(namespace)
		if err == nil {
			if err = cmd.Start(); err == nil {
				p.pid = cmd.Process.Pid
			}
		}
		if started <- err; err != nil {
			return
		}
		p.read(out, report)
		p.err = cmd.Wait()
	}()
	return p, <-started
}

// command prepares the calling thread and the command.
func (p *process) command(namespace *os.File) (cmd *exec.Cmd, out io.Reader, err error) {
	defer namespace.Close()
	if err := enter(namespace); err != nil {
		return nil, nil, err
	}
	cmd = exec.Command("/proc/self/exe")
	cmd.Args[0] = processName
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: parentDied, Setpgid: true}
	if p.in, err = cmd.StdinPipe(); err == nil {
		p.encoder = json.NewEncoder(p.in)
		out, err = cmd.StdoutPipe()
	}
	return cmd, out, err
}

// enter moves the calling thread into a network namespace unless it is there.
func enter(namespace *os.File) error {
	var want, have unix.Stat_t
	if err := unix.Fstat(int(namespace.Fd()), &want); err != nil {
		return err
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &have); err != nil {
		return err
	}
	if want.Dev == have.Dev && want.Ino == have.Ino {
		return nil // otherwise it takes a privilege
	}
	return unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
}

func (p *process) read(out io.Reader, report func(reply)) {
	for decoder := json.NewDecoder(out); ; {
		var r reply
		switch err := decoder.Decode(&r); {
		case err != nil:
			return
		case !r.Done:
			report(r)
		case r.Err != "":
			p.done <- errors.New(r.Err)
		default:
			p.done <- nil
		}
	}
}

// call sends a request and returns the error of its reply. It must not be called concurrently.
func (p *process) call(r request) error {
	if err := p.encoder.Encode(r); err != nil {
		return fmt.Errorf("request to bfd process: %w", err)
	}
	select {
	case err := <-p.done:
		return err
	case <-p.ended:
		return errors.New("bfd process ended")
	}
}

// close ends the process and waits for it.
func (p *process) close() {
	_ = p.in.Close()
	<-p.ended
}
