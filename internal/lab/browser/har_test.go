package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/har"
	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var keep = flag.String("keep", "", "also write the HAR document of the tests to this directory, for a validator")

// made are the events of a page: a redirect, an image on the same connection, one that fails, one
// that is not complete, and one that is not over HTTP.
var made = []struct{ method, params string }{
	{"Network.requestWillBeSent", `{"requestId":"1","timestamp":100,"wallTime":1700000000.25,"request":{"url":"https://server/?a=1&a=2","method":"GET","headers":{"B":"2","A":"1"}}}`},
	{"Network.requestWillBeSent", `{"requestId":"1","timestamp":100.05,"wallTime":1700000000.3,"request":{"url":"https://server/map/","method":"GET"},
		"redirectResponse":{"status":303,"statusText":"See Other","headers":{"location":"/map/"},"mimeType":"","protocol":"http/1.1","encodedDataLength":120,
		"timing":{"requestTime":100.01,"dnsStart":0,"dnsEnd":1,"connectStart":1,"connectEnd":11,"sslStart":5,"sslEnd":11,"sendStart":11,"sendEnd":12,"receiveHeadersEnd":22}}}`},
	{"Network.responseReceived", `{"requestId":"1","response":{"status":200,"statusText":"OK","headers":{"Content-Type":"text/html"},"mimeType":"text/html","protocol":"http/1.1","connectionId":7,"remoteIPAddress":"[2001:db8::1]","encodedDataLength":200,
		"timing":{"requestTime":100.05,"dnsStart":-1,"dnsEnd":-1,"connectStart":-1,"connectEnd":-1,"sslStart":-1,"sslEnd":-1,"sendStart":1,"sendEnd":2,"receiveHeadersEnd":12}}}`},
	{"Network.dataReceived", `{"requestId":"1","dataLength":3000,"encodedDataLength":1000}`},
	{"Network.loadingFinished", `{"requestId":"1","timestamp":100.1,"encodedDataLength":1200}`},
	{"Network.requestWillBeSent", `{"requestId":"2","timestamp":100.11,"wallTime":1700000000.36,"request":{"url":"https://server/none.png","method":"GET","headers":{}}}`},
	{"Network.loadingFailed", `{"requestId":"2","timestamp":100.12,"errorText":"net::ERR_FAILED"}`},
	{"Network.requestWillBeSent", `{"requestId":"3","timestamp":100.13,"wallTime":1700000000.38,"request":{"url":"https://server/slow.png","method":"GET","headers":{}}}`},
	{"Network.requestWillBeSent", `{"requestId":"4","timestamp":100.14,"wallTime":1700000000.39,"request":{"url":"data:image/png;base64,","method":"GET","headers":{}}}`},
	{"Page.domContentEventFired", `{"timestamp":100.2}`},
	{"Page.loadEventFired", `{"timestamp":100.3}`},
	{"Network.loadingFinished", `{"requestId":"99","timestamp":1}`},
}

func archived(t *testing.T) *har.Log {
	t.Helper()
	var r requests
	for _, e := range made {
		if err := r.event(e.method, []byte(e.params)); err != nil {
			t.Fatal(err)
		}
	}
	return r.archive(&har.Creator{Name: "HeadlessChrome", Version: "1"}, "https://server/").Log
}

func TestArchive(t *testing.T) {
	log := archived(t)
	near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 })
	ms := func(v float64) *float64 { return &v }
	want := []*har.Page{{StartedDateTime: "2023-11-14T22:13:20.250Z", ID: firstPage, Title: "https://server/", PageTimings: &har.PageTimings{OnContentLoad: ms(200), OnLoad: ms(300)}}}
	if diff := cmp.Diff(want, log.Pages, near); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if len(log.Entries) != 4 {
		t.Fatalf("%d entries", len(log.Entries))
	}
	redirect, document, failed, slow := log.Entries[0], log.Entries[1], log.Entries[2], log.Entries[3]
	if redirect.Response.Status != 303 || redirect.Response.RedirectURL != "/map/" || len(redirect.Request.QueryString) != 2 || redirect.Request.Headers[0].Name != "A" {
		t.Errorf("redirect: %+v, %+v", redirect.Request, redirect.Response)
	}
	if diff := cmp.Diff(&har.Timings{Blocked: ms(10), DNS: ms(1), Connect: ms(10), Ssl: ms(6), Send: 1, Wait: 10, Receive: 18}, redirect.Timings, near); diff != "" {
		t.Errorf("timings of the redirect (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(50.0, redirect.Time, near); diff != "" { // TLS counts as a part of the connection
		t.Errorf("time of the redirect: %s", diff)
	}
	if r := document.Response; r.Status != 200 || r.HTTPVersion != "http/1.1" || r.Content.Size != 3000 || r.BodySize != 1000 || document.Connection != "7" || document.ServerIPAddress != "2001:db8::1" || document.Comment != "" {
		t.Errorf("document: %+v, %+v", document, r)
	}
	if diff := cmp.Diff(&har.Timings{Blocked: ms(1), DNS: ms(-1), Connect: ms(-1), Ssl: ms(-1), Send: 1, Wait: 10, Receive: 38}, document.Timings, near); diff != "" {
		t.Errorf("timings of the document (-want +got):\n%s", diff)
	}
	if failed.Comment != "failed: net::ERR_FAILED" || failed.Response.Status != 0 || slow.Comment == "" || slow.Time != 0 {
		t.Errorf("failed: %+v, not complete: %+v", failed, slow)
	}
	checkArchive(t, log)
}

// checkArchive checks what HAR 1.2 requires.
func checkArchive(t *testing.T, log *har.Log) {
	t.Helper()
	data, err := json.Marshal(log)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte("null")) {
		t.Errorf("a list or an object is missing:\n%s", data)
	}
	if log.Version != "1.2" || log.Creator.Name == "" || len(log.Pages) != 1 {
		t.Errorf("log: %+v", log)
	}
	if !slices.IsSortedFunc(log.Entries, func(a, b *har.Entry) int { return strings.Compare(a.StartedDateTime, b.StartedDateTime) }) {
		t.Error("entries are not in the order of time")
	}
	for _, e := range log.Entries {
		if _, err := time.Parse(time.RFC3339, e.StartedDateTime); err != nil {
			t.Error(err)
		}
		x, sum := e.Timings, 0.0
		for _, part := range []float64{*x.Blocked, *x.DNS, *x.Connect, x.Send, x.Wait, x.Receive} {
			sum += max(0, part)
		}
		if x.Send < 0 || x.Wait < 0 || x.Receive < 0 || e.Time-sum > 1e-6 || sum-e.Time > 1e-6 || *x.Ssl > *x.Connect || e.Pageref != log.Pages[0].ID {
			t.Errorf("%s: %g ms, timings %+v", e.Request.URL, e.Time, x)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	var r requests
	for i := range maxRequests + 1 {
		err := r.event("Network.requestWillBeSent", []byte(`{"requestId":"`+strings.Repeat("x", i%7)+`"}`))
		if (err != nil) != (i == maxRequests) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

// checkRequests compares the requests of a page with what the page itself counts.
func checkRequests(ctx context.Context, t *testing.T, p *Page, url string) {
	t.Helper()
	must[Progress](t)(p.Navigate(ctx, url))
	m := must[Measures](t)(p.Measure(ctx))
	data := must[[]byte](t)(p.HAR("page"))
	if *keep != "" {
		if err := os.WriteFile(filepath.Join(*keep, "webpage.har"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var h har.HAR
	if err := json.Unmarshal(data, &h); err != nil {
		t.Fatal(err)
	}
	checkArchive(t, h.Log)
	if int64(len(h.Log.Entries)) != m.Requests {
		t.Errorf("%d entries, and the page counts %d requests", len(h.Log.Entries), m.Requests)
	}
	for _, e := range h.Log.Entries {
		if e.Response.Status != 200 || e.Response.Content.Size <= 0 || e.Response.HTTPVersion != m.Protocol || e.ServerIPAddress != "127.0.0.1" {
			t.Errorf("%s: status %d, %d bytes over %s from %s", e.Request.URL, e.Response.Status, e.Response.Content.Size, e.Response.HTTPVersion, e.ServerIPAddress)
		}
	}
	if x := h.Log.Pages[0].PageTimings; !(*x.OnContentLoad > 0 && *x.OnLoad >= *x.OnContentLoad) {
		t.Errorf("the page was loaded after %g and %g ms", *x.OnContentLoad, *x.OnLoad)
	}
}

// FuzzRequests: nothing that a browser sends makes a document that cannot be written.
func FuzzRequests(f *testing.F) {
	var all []byte
	for _, e := range made {
		all = fmt.Appendf(all, "%s %s\n", e.method, strings.ReplaceAll(e.params, "\n", ""))
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r requests
		for line := range bytes.Lines(data) {
			method, params, _ := bytes.Cut(line, []byte(" "))
			_ = r.event(string(method), params) // refused
		}
		log := r.archive(&har.Creator{Name: "x", Version: "1"}, "x").Log
		accessor.Call(t, log)
		if _, err := json.Marshal(log); err != nil {
			t.Fatal(err)
		}
		for _, e := range log.Entries {
			if e.Time < 0 || e.Timings.Send < 0 || e.Timings.Wait < 0 || e.Timings.Receive < 0 || e.Response.BodySize < -1 || e.Response.Content.Size < 0 {
				t.Fatalf("%+v, timings %+v", e, e.Timings)
			}
		}
	})
}
