package bgp

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/tabane/tabane/internal/netns/netnstest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if half := os.Getenv(dialler); half != "" {
		fmt.Fprintln(os.Stderr, dial(half))
		os.Exit(1)
	}
	addresses := []string{"fe80::1/128", "fe80::2/128"}
	for i := 1; i < 32; i++ {
		addresses = append(addresses, fmt.Sprintf("fd00::%x/128", i))
	}
	os.Exit(netnstest.Isolate(m, addresses...))
}
