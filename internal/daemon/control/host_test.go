package control

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestOwnHost(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	h := OwnHost(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "dash.example")
	for host, want := range map[string]int{
		"[::1]:9116": 200, "::1": 200, "127.0.0.1": 200, "192.0.2.1:9116": 200, "[fe80::1%25eth0]:9116": 200,
		"localhost:9116": 200, "LOCALHOST": 200, "Dash.example:9116": 200, strings.ToUpper(name): 200, name + ":9116": 200,
		"evil.example": 403, "localhost.evil.example:9116": 403, name + ".evil.example": 403, "": 403, ":9116": 403,
		"127.0.0.1.evil.example": 403, "[::1].evil.example": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/status", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
	}
	if got := namesOf("127.0.0.1 localhost\n\n# 192.0.2.9 no\n192.0.2.1\tasbr1.example asbr1 # main\n192.0.2.2\n"); !slices.Equal(got, []string{"localhost", "asbr1.example", "asbr1"}) {
		t.Errorf("names %q", got)
	}
}
