package ccbpf

import (
	"os"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(loadIn); dir != "" {
		if err := load(dir); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString(loaded)
		return
	}
	netnstest.Main(m)
}
