package mptcp

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tabane/tabane/internal/base/feature"
)

// Manager is the path manager for new connections in a network namespace. Existing connections keep
// their path manager.
type Manager string

const (
	// KernelManager is the in-kernel path manager, configured by endpoints and limits.
	KernelManager Manager = "kernel"
	// UserManager is the user-space path manager, driven by Requests.
	UserManager Manager = "userspace"
)

// managerTypes are the values of the sysctl pm_type, which kernels before 6.15 use instead of
// names.
var managerTypes = map[Manager]string{KernelManager: "0", UserManager: "1"}

// CurrentManager returns the path manager of the namespace that the calling thread is in.
func CurrentManager() (Manager, error) { return currentManager(os.ReadFile) }

// currentManager reads path_manager (Linux 6.15) or pm_type (5.19). Older kernels have only the
// in-kernel path manager.
func currentManager(read func(file string) ([]byte, error)) (Manager, error) {
	b, err := read(sysctlDir + "path_manager")
	if err == nil {
		return Manager(strings.TrimSpace(string(b))), nil
	}
	if errors.Is(err, os.ErrNotExist) {
		b, err = read(sysctlDir + "pm_type")
	}
	if errors.Is(err, os.ErrNotExist) {
		return KernelManager, nil
	}
	if err != nil {
		return "", fmt.Errorf("read path manager: %w", err)
	}
	text := strings.TrimSpace(string(b))
	for m, number := range managerTypes {
		if number == text {
			return m, nil
		}
	}
	return Manager("type " + text), nil
}

// SetManager selects the path manager for new connections in the network namespace of the calling
// thread. It returns a *feature.Error if this kernel does not support it.
func SetManager(m Manager) error {
	file, value := sysctlDir+"path_manager", string(m)
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		number, ok := managerTypes[m]
		if !ok {
			return fmt.Errorf("set path manager %q: %w", m, missing("this kernel selects path managers by number", "use Linux 6.15 or newer"))
		}
		file, value = sysctlDir+"pm_type", number
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		if m == KernelManager {
			return nil
		}
		return fmt.Errorf("set path manager %q: %w", m, missing("this kernel has no user-space path manager", "use Linux 5.19 or newer"))
	}
	if err != nil {
		return fmt.Errorf("set path manager %q: %w", m, err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set path manager %q: %w", m, err)
	}
	return nil
}

// CheckKernelManager returns a *feature.Error when new connections do not use the kernel's path
// manager, so that endpoints have no effect on them.
func CheckKernelManager() error {
	m, err := CurrentManager()
	if err != nil {
		return err
	}
	if m == KernelManager {
		return nil
	}
	sysctl, _ := managerSysctl(KernelManager)
	return &feature.Error{
		Feature: "the kernel's MPTCP path manager",
		Reason:  fmt.Sprintf("net.mptcp.%s selects %q", sysctl, m),
		Remedy:  ManagerCommand(KernelManager),
	}
}

// managerSysctl returns the parameter below net.mptcp that selects path managers, and its value for
// one.
func managerSysctl(m Manager) (name, value string) {
	if _, err := os.Stat(sysctlDir + "path_manager"); err != nil {
		return "pm_type", managerTypes[m]
	}
	return "path_manager", string(m)
}

// ManagerCommand returns the command that selects a path manager.
func ManagerCommand(m Manager) string {
	name, value := managerSysctl(m)
	return fmt.Sprintf("sysctl -w net.mptcp.%s=%s", name, value)
}
