package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/tabane/tabane/internal/scenario"
)

// Command returns a command that runs on a node: in its namespace, with every node's name resolving to its address. Any
// installed program works; argv[0] is looked up in PATH. The process is the program itself, so its exit code, signals and
// terminal are too. When ctx ends, it is killed.
func (l *Lab) Command(ctx context.Context, node string, argv []string) (*exec.Cmd, error) {
	n, err := l.checkCommand(node, argv)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, l.binary, l.enterArguments(n.netns, 0, argv)...), nil
}

// Exec turns the calling process into a command on a node, as Command does with a new one. It returns only when it could
// not.
func (l *Lab) Exec(node string, argv []string) error {
	n, err := l.checkCommand(node, argv)
	if err != nil {
		return err
	}
	return Enter(l.enterArguments(n.netns, 0, argv)[1:])
}

func (l *Lab) checkCommand(name string, argv []string) (*node, error) {
	if len(argv) == 0 {
		return nil, fmt.Errorf("run a command in lab %q: %w", l.name, errors.New("no command given"))
	}
	n, err := l.plan.node(name)
	if err != nil {
		return nil, fmt.Errorf("run %q in lab %q: %w", argv[0], l.name, err)
	}
	return n, nil
}

// SetLink changes what a link does, in both directions, while traffic runs.
func (l *Lab) SetLink(link string, s scenario.Shape) error {
	k, err := l.plan.link(link)
	if err != nil {
		return fmt.Errorf("set link in lab %q: %w", l.name, err)
	}
	if err := s.Check().Err(); err != nil {
		return fmt.Errorf("set link %q: %w", link, err)
	}
	if err := l.refresh(); err != nil {
		return fmt.Errorf("set link %q: %w", link, err)
	}
	if k.relay == nil && !s.Plain() {
		if err := l.interpose(context.Background(), k, s); err != nil {
			return fmt.Errorf("set link %q: emulate it: %w", link, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shapes[link] = s
	return k.setShape(s, l.holes)
}
