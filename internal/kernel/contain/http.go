package contain

import (
	"log/slog"
	"net/http"
)

// Handler returns a handler that contains the panics of h: the connection of the request is closed,
// and the server goes on. What follows a panic in h is not sent, so that the client takes a part of
// an answer for what it is.
func Handler(log *slog.Logger, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			value := recover()
			if value == nil {
				return
			}
			if value != http.ErrAbortHandler {
				_ = Caught(value, Request, log, []byte(r.Method+" "+r.URL.RequestURI())) // it is logged
			}
			panic(http.ErrAbortHandler)
		}()
		Point(Request, []byte(r.URL.Path))
		h.ServeHTTP(w, r)
	})
}
