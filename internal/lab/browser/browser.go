// Package browser runs Chromium without a screen and measures pages in it: Start starts a browser,
// Browser.Open a page in a fresh browser context, with neither cache nor connections of an earlier
// one. Pages are operated by mouse and keyboard events, as by a person.
//
// A page reports its progress by attributes of its root element (Progress). Nothing is concluded
// from an idle network. What is measured is left to package qoe to interpret.
package browser

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// names are the names of the browser's program, in the order of preference.
var names = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// Find returns the path of the browser's program. The error is a *feature.Error without one.
func Find() (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &feature.Error{
		Feature: "a browser", Reason: "none of " + strings.Join(names, ", ") + " is in PATH", Remedy: "install Chromium (on Debian: apt-get install chromium)",
	}
}

// Options are the parameters of Start.
type Options struct {
	// Program is the path of the browser; by default that of Find.
	Program string
	// Command returns the command that runs argv, for example in a network namespace. The process
	// must become argv and keep descriptors 3 and 4. By default it runs in that of the caller.
	Command func(argv []string) (*exec.Cmd, error)
	// Trust are certificates that are accepted whatever their issuer: the Base64 encoded SHA-256 of
	// the subject's public key information.
	Trust []string
	// HTTP1 disables HTTP/2.
	HTTP1 bool
	// HTTP3 makes all requests over HTTP/3 alone, which else is disabled.
	HTTP3 bool
	// TempDir is where the profile is created; by default os.TempDir.
	TempDir string
}

const (
	// startTimeout bounds the start of a browser until its first reply.
	startTimeout = 30 * time.Second
	// killTimeout bounds the time until a killed process group is gone.
	killTimeout = 5 * time.Second
)

// Browser is a running browser. It is safe for concurrent use.
type Browser struct {
	connection *connection
	cmd        *exec.Cmd
	profile    profile
	pipes      []*os.File
	output     *tail
	version    string
	close      func() error
}

// flags are the browser's arguments. Nothing in the background may use the network or the
// processor.
var flags = []string{
	"--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
	"--disable-component-update", "--disable-component-extensions-with-background-pages", "--disable-default-apps", "--disable-extensions",
	"--disable-sync", "--disable-gpu", "--disable-breakpad", "--disable-crash-reporter", "--disable-dev-shm-usage",
	"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
	"--disable-features=Translate,OptimizationHints,MediaRouter,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
	"--force-color-profile=srgb", "--metrics-recording-only", "--mute-audio", "--no-proxy-server", "--no-service-autorun", "--password-store=basic",
}

// Start starts a browser with a profile of its own. It lives until Close, or until the calling
// process ends: it exits when its pipe is closed.
func Start(ctx context.Context, o Options) (_ *Browser, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start browser: %w", err)
		}
	}()
	if o.Program == "" {
		if o.Program, err = Find(); err != nil {
			return nil, err
		}
	}
	if o.Command == nil {
		o.Command = func(argv []string) (*exec.Cmd, error) { return exec.Command(argv[0], argv[1:]...), nil }
	}
	b := &Browser{output: &tail{}}
	if b.profile, err = newProfile(cmp.Or(o.TempDir, os.TempDir())); err != nil {
		return nil, err
	}
	b.close = sync.OnceValue(b.kill)
	defer func() {
		if err == nil {
			return
		}
		closed := b.Close() // all of its output has been read then
		if said := b.output.String(); said != "" {
			err = fmt.Errorf("%w (its last output: %s)", err, said)
		}
		err = errors.Join(err, closed)
	}()
	argv := append([]string{o.Program}, flags...)
	argv = append(argv, "--user-data-dir="+b.profile.dir)
	if os.Geteuid() == 0 {
		argv = append(argv, "--no-sandbox") // its sandbox refuses to run as root
	}
	if len(o.Trust) > 0 {
		argv = append(argv, "--ignore-certificate-errors-spki-list="+strings.Join(o.Trust, ","))
	}
	if o.HTTP1 {
		argv = append(argv, "--disable-http2")
	}
	if o.HTTP3 {
		argv = append(argv, "--enable-quic", "--origin-to-force-quic-on=*")
	} else {
		argv = append(argv, "--disable-quic")
	}
	cmd, err := o.Command(append(argv, "about:blank"))
	if err != nil {
		return nil, err
	}
	toBrowser, commands, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	replies, fromBrowser, err := os.Pipe()
	if err != nil {
		toBrowser.Close()
		commands.Close()
		return nil, err
	}
	b.pipes = []*os.File{commands, replies}
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4
	cmd.Stdout, cmd.Stderr = b.output, b.output
	cmd.Env = append(cmd.Environ(), "HOME="+b.profile.dir, "XDG_CONFIG_HOME="+b.profile.dir, "XDG_CACHE_HOME="+b.profile.dir, "DBUS_SESSION_BUS_ADDRESS=disabled:")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = killTimeout
	err = cmd.Start()
	toBrowser.Close()
	fromBrowser.Close()
	if err != nil {
		return nil, err
	}
	b.cmd, b.connection = cmd, newConnection(replies, commands)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no reply after %s", startTimeout))
	defer cancel()
	var v struct {
		Product string `json:"product"`
	}
	if err := b.connection.call(ctx, "", "Browser.getVersion", nil, &v); err != nil {
		return nil, err
	}
	b.version = v.Product
	return b, nil
}

// Version returns the browser's name and version, such as HeadlessChrome/141.0.7390.54.
func (b *Browser) Version() string { return b.version }

// Ended returns why the browser no longer runs, or nil while it does.
func (b *Browser) Ended() error { return b.connection.ended() }

// Close kills the browser with all of its processes and removes its profile.
func (b *Browser) Close() error {
	if err := b.close(); err != nil {
		return fmt.Errorf("close browser: %w", err)
	}
	return nil
}

func (b *Browser) kill() error {
	var errs []error
	if b.cmd != nil {
		errs = append(errs, killGroup(b.cmd.Process.Pid))
		_ = b.cmd.Wait() // killed
		errs = append(errs, waitGroup(b.cmd.Process.Pid))
	}
	for _, p := range b.pipes {
		errs = append(errs, p.Close())
	}
	if b.connection != nil {
		<-b.connection.done
	}
	return errors.Join(append(errs, b.profile.remove())...)
}

// killGroup kills the processes of a group.
func killGroup(group int) error {
	// ESRCH: all have exited.
	if err := unix.Kill(-group, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", group, err)
	}
	return nil
}

// waitGroup waits until no process of a killed group is left.
func waitGroup(group int) error {
	for end := time.Now().Add(killTimeout); unix.Kill(-group, 0) == nil; time.Sleep(2 * time.Millisecond) {
		// One that its new parent has not reaped, such as a container's init that reaps none, is a
		// zombie.
		left, err := running(group)
		switch {
		case err != nil:
			return err
		case left == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d processes of group %d still run after %s", left, group, killTimeout)
		}
	}
	return nil
}

// running counts the processes of a group that are not zombies.
func running(group int) (n int, _ error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		data, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // not a process, or it has exited
		}
		// PID (command) state ppid pgrp; the command may have any character.
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			n++
		}
	}
	return n, nil
}

// tail keeps the end of what a browser prints. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// maxTail is how much a tail keeps, in bytes.
const maxTail = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(p)
	t.text.Next(max(0, t.text.Len()-maxTail))
	return len(p), nil
}

// String returns the text on one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(t.text.String()), " ")
}
