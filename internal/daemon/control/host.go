package control

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// hostsFile has the names that the administrator of this host gives to addresses (hosts(5)).
const hostsFile = "/etc/hosts"

// OwnHost answers requests for an address, localhost, this host's name, a name in /etc/hosts or one
// of the names by h, and refuses others with 403: a page of another site, whose name resolves to
// this host (DNS rebinding), gets nothing.
func OwnHost(h http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !own(r.Host, names) {
			http.Error(w, "this host has another name: use its address, or add the name to "+hostsFile, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// own reports whether the host of a request, with or without port, is this one.
func own(host string, names []string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	if name == "" {
		return false
	}
	same := func(n string) bool { return strings.EqualFold(n, name) }
	if h, err := os.Hostname(); err == nil && same(h) || slices.ContainsFunc(names, same) {
		return true
	}
	b, err := os.ReadFile(hostsFile)
	return err == nil && slices.ContainsFunc(namesOf(string(b)), same)
}

// namesOf returns the names in the text of a hosts file.
func namesOf(text string) (names []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 1 {
			names = append(names, fields[1:]...)
		}
	}
	return names
}
