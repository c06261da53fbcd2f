package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// vty is a connection to an FRR daemon, with vtysh's protocol: a command ends with a zero byte, a
// response with three zero bytes and the status. Starting vtysh for each command would take longer
// than the changes that are measured.
type vty struct{ conn net.Conn }

// maxAnswer bounds an answer of FRR, in bytes.
const maxAnswer = 16 << 20

// dialVTY connects to a daemon's socket and enables privileged commands.
func dialVTY(path string) (*vty, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	v := &vty{conn}
	if _, err := v.do("enable"); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *vty) close() error { return v.conn.Close() }

// do runs a command and returns what it prints. A command that FRR rejects is an error.
func (v *vty) do(command string) (string, error) {
	if err := v.conn.SetDeadline(time.Now().Add(askFor)); err != nil {
		return "", err
	}
	if _, err := v.conn.Write(append([]byte(command), 0)); err != nil {
		return "", fmt.Errorf("send %q to FRR: %w", command, err)
	}
	var answer []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := v.conn.Read(buffer)
		if err != nil {
			return "", fmt.Errorf("read FRR's answer to %q: %w", command, err)
		}
		answer = append(answer, buffer[:n]...)
		if text, status, done := cutAnswer(answer); done {
			if status != 0 {
				return "", fmt.Errorf("FRR rejects %q (status %d): %s", command, status, strings.TrimSpace(text))
			}
			return text, nil
		}
		if len(answer) > maxAnswer {
			return "", fmt.Errorf("FRR's answer to %q is longer than %d bytes", command, maxAnswer)
		}
	}
}

// cutAnswer splits a complete response into its text and status.
func cutAnswer(b []byte) (text string, status byte, done bool) {
	i := bytes.Index(b, []byte{0, 0, 0})
	if i < 0 || len(b) < i+4 {
		return "", 0, false
	}
	return string(b[:i]), b[i+3], true
}
