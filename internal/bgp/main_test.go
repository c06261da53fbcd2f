package bgp

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) {
	bfd.Process()
	flag.Parse()
	if half := os.Getenv(dialler); half != "" {
		fmt.Fprintln(os.Stderr, dial(half))
		os.Exit(1)
	}
	if n, err := strconv.Atoi(os.Getenv(loader)); err == nil {
		if err := load(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	addresses := []string{"fe80::1/128", "fe80::2/128"}
	for i := 1; i < 96; i++ {
		addresses = append(addresses, fmt.Sprintf("fd00::%x/128", i))
	}
	os.Exit(netnstest.Isolate(m, addresses...))
}
