package route

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// provided has the file descriptors of the programs of routes by number.
var provided sync.Map

// Provide makes a program (BPF_PROG_TYPE_LWT_XMIT) known that routes can have as Route.Program. The
// number is the kernel's of the program, so that no other program has had it since the start of the
// host. The file descriptor belongs to the caller, who calls Withdraw before closing it. Safe for
// concurrent use.
func Provide(number uint32, fd int) { provided.Store(number, fd) }

// Withdraw ends what Provide began. Routes that have the program keep it.
func Withdraw(number uint32) { provided.Delete(number) }

func programFD(number uint32) (uint32, error) {
	fd, ok := provided.Load(number)
	if !ok {
		return 0, fmt.Errorf("program %d is not one of this process", number)
	}
	return uint32(fd.(int)), nil
}

// programPrefix begins the names of the programs of routes, of which the kernel reports the name
// alone.
const programPrefix = "tabane-program-"

func programName(number uint32) string {
	return programPrefix + strconv.FormatUint(uint64(number), 10)
}

// programOf is the inverse of programName.
func programOf(name string) (number uint32, ok bool) {
	text, ok := strings.CutPrefix(name, programPrefix)
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), ok && err == nil && n != 0 && name == programName(uint32(n))
}
