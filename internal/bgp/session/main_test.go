package session

import (
	"fmt"
	"os"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) {
	addresses := []string{"fe80::1/128", "fe80::2/128"}
	for i := 1; i < 0x80; i++ {
		addresses = append(addresses, fmt.Sprintf("fd00::%x/128", i))
	}
	os.Exit(netnstest.Isolate(m, addresses...))
}
