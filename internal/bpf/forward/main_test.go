package forward

import (
	"testing"

	"github.com/tabane/tabane/internal/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }
