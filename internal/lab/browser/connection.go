package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
)

var errClosed = errors.New("the browser closed the connection")

// maxMessage bounds a message of the browser, in bytes. The largest are frames of a page.
const maxMessage = 16 << 20

// message is a message of the Chrome DevTools Protocol: a reply has an ID, an event a Method.
type message struct {
	ID      int64           `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    string `json:"data"`
	} `json:"error,omitempty"`
}

// decodeMessage decodes a message without the NUL that ends it.
func decodeMessage(data []byte) (message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("decode DevTools message: %w", err)
	}
	if (m.ID == 0) == (m.Method == "") || m.ID < 0 {
		return message{}, errors.New("decode DevTools message: must be a reply or an event")
	}
	return m, nil
}

// connection is a DevTools connection over two pipes, on which each message ends in NUL. It is safe
// for concurrent use.
type connection struct {
	out io.WriteCloser

	mu       sync.Mutex
	lastID   int64
	waiting  map[int64]chan message
	handlers map[string]func(method string, params json.RawMessage) // by session
	// err is why the connection ended; done is closed then.
	err  error
	done chan struct{}
}

func newConnection(in io.Reader, out io.WriteCloser) *connection {
	c := &connection{
		out: out, waiting: map[int64]chan message{}, handlers: map[string]func(string, json.RawMessage){}, done: make(chan struct{}),
	}
	go c.read(in)
	return c
}

// read reads messages until the browser closes its end or sends what is not a message.
func (c *connection) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxMessage)
	lines.Split(untilNUL)
	err := errClosed
	for lines.Scan() {
		m, failed := decodeMessage(lines.Bytes())
		if failed != nil {
			err = failed
			break
		}
		c.mu.Lock()
		reply, handler := c.waiting[m.ID], c.handlers[m.Session]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		switch {
		case reply != nil:
			reply <- m // buffered
		case m.Method != "" && handler != nil:
			handler(m.Method, m.Params)
		}
	}
	if failed := lines.Err(); failed != nil {
		err = fmt.Errorf("read from the browser: %w", failed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	close(c.done)
}

// untilNUL is a bufio.SplitFunc.
func untilNUL(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// handle sets the function that is called for each event of a session, "" for those of the browser
// itself, and none with nil. It must not block.
func (c *connection) handle(session string, f func(method string, params json.RawMessage)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		delete(c.handlers, session)
	} else {
		c.handlers[session] = f
	}
}

// send sends a command and returns the channel of its reply.
func (c *connection) send(session, method string, params any) (int64, <-chan message, error) {
	encoded, err := json.Marshal(params)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", method, err)
	}
	if params == nil {
		encoded = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	id, reply := c.lastID, make(chan message, 1)
	data, err := json.Marshal(message{ID: id, Session: session, Method: method, Params: encoded})
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", method, err)
	}
	c.waiting[id] = reply
	if _, err := c.out.Write(append(data, 0)); err != nil {
		delete(c.waiting, id)
		if errors.Is(err, syscall.EPIPE) { // the write is sometimes first to find it
			err = errClosed
		}
		return 0, nil, fmt.Errorf("%s: %w", method, err)
	}
	return id, reply, nil
}

// call sends a command, waits for its reply and decodes the result into result, unless that is nil.
func (c *connection) call(ctx context.Context, session, method string, params, result any) error {
	id, reply, err := c.send(session, method, params)
	if err != nil {
		return err
	}
	select {
	case m := <-reply:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("%s: decode reply: %w", method, err)
		}
		return nil
	case <-c.done:
		return fmt.Errorf("%s: %w", method, c.ended())
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	}
}

// ended returns why the connection ended, or nil.
func (c *connection) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
