package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Sysctl sets a kernel parameter in the namespace of the calling thread, so inside Do in that one.
// The key is written as sysctl(8) takes it: `net.ipv6.conf.all.forwarding`, or with slashes. A dot
// in an interface name needs no escape: `net.ipv6.conf.eth0.100.forwarding` is understood, because
// the parameters below conf and neigh have none. A parameter this kernel does not have is an error
// that matches fs.ErrNotExist.
func Sysctl(key, value string) error {
	path, err := sysctlPath(key)
	if err != nil {
		return fmt.Errorf("set sysctl %q: %w", key, err)
	}
	// No O_CREATE and no O_TRUNC: the tree is the kernel's.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set sysctl %q: %w", key, err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set sysctl %q to %q: %w", key, value, err)
	}
	return nil
}

// ReadSysctl returns a kernel parameter of the namespace of the calling thread, without the final
// newline. Keys and errors are as for Sysctl.
func ReadSysctl(key string) (string, error) {
	path, err := sysctlPath(key)
	if err != nil {
		return "", fmt.Errorf("read sysctl %q: %w", key, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl %q: %w", key, err)
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// sysctlPath maps a key to its file. The first separator decides which of dot and slash separates
// and which belongs to a name, as in sysctl(8).
func sysctlPath(key string) (string, error) {
	var parts []string
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '/' {
		parts = strings.Split(key, "/")
	} else {
		parts = strings.Split(key, ".")
		// net.ipv6.conf.NAME.LEAF: all between conf and the leaf is one interface name.
		if len(parts) > 5 && parts[0] == "net" && (parts[2] == "conf" || parts[2] == "neigh") {
			name := strings.Join(parts[3:len(parts)-1], ".")
			parts = slices.Concat(parts[:3], []string{name}, parts[len(parts)-1:])
		}
		for i := range parts {
			parts[i] = strings.ReplaceAll(parts[i], "/", ".")
		}
	}
	if len(parts) < 2 {
		return "", errors.New("key has no separator")
	}
	for _, p := range parts {
		if p == "" || p == "." || p == ".." || strings.ContainsRune(p, 0) {
			return "", fmt.Errorf("key has a part %q", p)
		}
	}
	return filepath.Join(append([]string{"/proc/sys"}, parts...)...), nil
}
