package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

// Command returns a command that runs on a node: in its namespace, with the names of all nodes
// resolving to their addresses. argv[0] is looked up in PATH. The process is the program itself,
// with its exit code, signals and terminal. When ctx ends, it is killed.
func (l *Lab) Command(ctx context.Context, node string, argv []string) (*exec.Cmd, error) {
	n, err := l.checkCommand(node, argv)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, l.daemons.launcher.self, l.daemons.launcher.arguments(n.netns, asCommand, argv)...), nil
}

// Exec replaces the calling process by a command on a node, with the same environment as Command.
// It returns only on failure.
func (l *Lab) Exec(node string, argv []string) error {
	n, err := l.checkCommand(node, argv)
	if err != nil {
		return err
	}
	return Enter(l.daemons.launcher.arguments(n.netns, asCommand, argv)[1:])
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
