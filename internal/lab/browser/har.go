package browser

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/cdproto/har"
)

const (
	// maxRequests bounds the requests of a page that are recorded, and maxHeaders the headers of a
	// message.
	maxRequests = 4000
	maxHeaders  = 200
)

// request is a request as the browser's events have it. Times are those of its monotonic clock, in
// s.
type request struct {
	sent      requestSent
	response  *response
	decoded   int64
	encoded   int64
	ended     float64 // 0: it has not
	errorText string
}

type requestSent struct {
	ID      string `json:"requestId"`
	Request struct {
		URL     string            `json:"url"`
		Method  string            `json:"method"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"postData"`
	} `json:"request"`
	Timestamp float64   `json:"timestamp"`
	Wall      float64   `json:"wallTime"`
	Redirect  *response `json:"redirectResponse"`
}

type response struct {
	Status     int64             `json:"status"`
	StatusText string            `json:"statusText"`
	Headers    map[string]string `json:"headers"`
	Type       string            `json:"mimeType"`
	Protocol   string            `json:"protocol"`
	Connection float64           `json:"connectionId"`
	Address    string            `json:"remoteIPAddress"`
	Encoded    float64           `json:"encodedDataLength"`
	Timing     *timing           `json:"timing"`
}

// timing is that of a request: times in ms since Start, which is in s, and -1 where there is none.
type timing struct {
	Start        float64 `json:"requestTime"`
	DNSStart     float64 `json:"dnsStart"`
	DNSEnd       float64 `json:"dnsEnd"`
	ConnectStart float64 `json:"connectStart"`
	ConnectEnd   float64 `json:"connectEnd"`
	TLSStart     float64 `json:"sslStart"`
	TLSEnd       float64 `json:"sslEnd"`
	SendStart    float64 `json:"sendStart"`
	SendEnd      float64 `json:"sendEnd"`
	HeadersEnd   float64 `json:"receiveHeadersEnd"`
}

// requests are those of a page, in the order in which they were sent.
type requests struct {
	list []*request
	byID map[string]*request
	// contentLoaded and loaded are the times of the document's events, 0 before.
	contentLoaded, loaded float64
}

// event adds an event of the domains Network and Page.
func (r *requests) event(method string, params []byte) error {
	decode := func(v any) error {
		if err := json.Unmarshal(params, v); err != nil {
			return fmt.Errorf("decode %q: %w", method, err)
		}
		return nil
	}
	switch method {
	case "Page.domContentEventFired", "Page.loadEventFired":
		var v struct {
			Timestamp float64 `json:"timestamp"`
		}
		if err := decode(&v); err != nil {
			return err
		}
		if method == "Page.loadEventFired" {
			r.loaded = v.Timestamp
		} else {
			r.contentLoaded = v.Timestamp
		}
	case "Network.requestWillBeSent":
		one := &request{}
		if err := decode(&one.sent); err != nil {
			return err
		}
		if before := r.byID[one.sent.ID]; before != nil { // a redirect
			before.response, before.ended = one.sent.Redirect, one.sent.Timestamp
			if before.response != nil {
				before.encoded = int64(before.response.Encoded)
			}
		}
		if len(r.list) >= maxRequests {
			return fmt.Errorf("the page has more than %d requests", maxRequests)
		}
		if r.byID == nil {
			r.byID = map[string]*request{}
		}
		r.list, r.byID[one.sent.ID] = append(r.list, one), one
	case "Network.responseReceived":
		var v struct {
			ID       string    `json:"requestId"`
			Response *response `json:"response"`
		}
		if err := decode(&v); err != nil {
			return err
		}
		if one := r.byID[v.ID]; one != nil {
			one.response = v.Response
		}
	case "Network.dataReceived":
		var v struct {
			ID      string `json:"requestId"`
			Decoded int64  `json:"dataLength"`
		}
		if err := decode(&v); err != nil {
			return err
		}
		if one := r.byID[v.ID]; one != nil && v.Decoded > 0 && one.decoded <= math.MaxInt64-v.Decoded {
			one.decoded += v.Decoded
		}
	case "Network.loadingFinished", "Network.loadingFailed":
		var v struct {
			ID        string  `json:"requestId"`
			Timestamp float64 `json:"timestamp"`
			Encoded   float64 `json:"encodedDataLength"`
			Error     string  `json:"errorText"`
		}
		if err := decode(&v); err != nil {
			return err
		}
		if one := r.byID[v.ID]; one != nil {
			one.ended, one.encoded, one.errorText = v.Timestamp, whole(v.Encoded), v.Error
		}
	}
	return nil
}

// whole converts a count that the browser sends as a number.
func whole(v float64) int64 {
	if !(v > 0 && v < 1<<53) {
		return 0
	}
	return int64(v)
}

// HAR returns the requests of a page that was opened with PageOptions.Requests, as a HAR 1.2
// document (https://w3c.github.io/web-performance/specs/HAR/Overview.html), which has no contents
// and no cookies. A page that failed has those until then.
func (p *Page) HAR(title string) ([]byte, error) {
	name, version, _ := strings.Cut(p.browser.version, "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	data, err := json.Marshal(p.requests.archive(&har.Creator{Name: name, Version: version}, title))
	if err != nil {
		return nil, fmt.Errorf("encode HAR: %w", err)
	}
	return append(data, '\n'), nil
}

// firstPage is the ID of the only page of a document.
const firstPage = "page_1"

// archive returns the requests over HTTP.
func (r *requests) archive(browser *har.Creator, title string) *har.HAR {
	log := &har.Log{Version: "1.2", Creator: &har.Creator{Name: "tabane", Version: "1"}, Browser: browser, Pages: []*har.Page{}, Entries: []*har.Entry{}}
	for _, one := range r.list {
		if u, err := url.Parse(one.sent.Request.URL); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			e := one.entry(u)
			if len(log.Pages) == 0 { // the first request is that of the document
				log.Pages = append(log.Pages, &har.Page{
					StartedDateTime: e.StartedDateTime, ID: firstPage, Title: title,
					PageTimings: &har.PageTimings{OnContentLoad: since(one.sent.Timestamp, r.contentLoaded), OnLoad: since(one.sent.Timestamp, r.loaded)},
				})
			}
			e.Pageref = firstPage
			log.Entries = append(log.Entries, e)
		}
	}
	slices.SortStableFunc(log.Entries, func(a, b *har.Entry) int { return cmp.Compare(a.StartedDateTime, b.StartedDateTime) })
	return &har.HAR{Log: log}
}

// dateTime formats a time since the epoch, as HAR has it.
func dateTime(at time.Duration) string {
	return time.Unix(0, int64(at.Round(time.Millisecond))).UTC().Format("2006-01-02T15:04:05.000Z")
}

// since returns the time between two readings of the browser's clock in ms, or -1 without the
// second.
func since(from, to float64) *float64 {
	v := 1000 * (to - from)
	if !(to > 0 && v >= 0 && v < maxTime) {
		v = -1
	}
	return &v
}

// entry returns the entry of a request.
func (r *request) entry(u *url.URL) *har.Entry {
	e := &har.Entry{
		StartedDateTime: dateTime(0), Cache: &har.Cache{},
		Request: &har.Request{
			Method: r.sent.Request.Method, URL: r.sent.Request.URL, HTTPVersion: "unknown", Cookies: []*har.Cookie{}, Headers: pairs(r.sent.Request.Headers), QueryString: []*har.NameValuePair{},
			HeadersSize: -1, BodySize: int64(len(r.sent.Request.Body)),
		},
		Response: &har.Response{HTTPVersion: "unknown", Cookies: []*har.Cookie{}, Headers: []*har.NameValuePair{}, Content: &har.Content{Size: r.decoded, MimeType: "x-unknown"}, HeadersSize: -1, BodySize: -1},
	}
	if w := r.sent.Wall; w > 0 && w < math.MaxInt64/float64(2*time.Second) {
		e.StartedDateTime = dateTime(time.Duration(w * float64(time.Second)))
	}
	query := u.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		for _, value := range query[name] {
			e.Request.QueryString = append(e.Request.QueryString, &har.NameValuePair{Name: name, Value: value})
		}
	}
	if s := r.response; s != nil {
		e.Request.HTTPVersion, e.Response.HTTPVersion = cmp.Or(s.Protocol, "unknown"), cmp.Or(s.Protocol, "unknown")
		e.Response.Status, e.Response.StatusText, e.Response.Headers = s.Status, s.StatusText, pairs(s.Headers)
		e.Response.Content.MimeType = cmp.Or(s.Type, "x-unknown")
		for name, value := range s.Headers {
			if strings.EqualFold(name, "location") {
				e.Response.RedirectURL = value
			}
		}
		if s.Connection > 0 {
			e.Connection = fmt.Sprint(whole(s.Connection))
		}
		e.ServerIPAddress = strings.Trim(s.Address, "[]")
		e.Response.BodySize = max(0, r.encoded-whole(s.Encoded))
	}
	switch {
	case r.errorText != "":
		e.Comment = "failed: " + r.errorText
	case r.ended == 0:
		e.Comment = "was not complete when the task ended"
	}
	e.Timings = r.timings()
	e.Time = e.Timings.Send + e.Timings.Wait + e.Timings.Receive
	// TLS is a part of Connect.
	for _, part := range []*float64{e.Timings.Blocked, e.Timings.DNS, e.Timings.Connect} {
		e.Time += max(0, *part)
	}
	return e
}

// timings returns the phases of a request, in ms. Blocked is the time before the first of them.
func (r *request) timings() *har.Timings {
	none := -1.0
	t := &har.Timings{Blocked: since(r.sent.Timestamp, r.ended), DNS: &none, Connect: &none, Ssl: &none}
	if r.response == nil || r.response.Timing == nil {
		return t
	}
	span := func(from, to float64) *float64 {
		if !(from >= 0 && to >= from && to < maxTime) {
			return &none
		}
		v := to - from
		return &v
	}
	x := r.response.Timing
	t.DNS, t.Connect, t.Ssl = span(x.DNSStart, x.DNSEnd), span(x.ConnectStart, x.ConnectEnd), span(x.TLSStart, x.TLSEnd)
	t.Send, t.Wait = max(0, *span(x.SendStart, x.SendEnd)), max(0, *span(x.SendEnd, x.HeadersEnd))
	first := x.SendStart
	for _, at := range []float64{x.DNSStart, x.ConnectStart} {
		if at >= 0 {
			first = min(first, at)
		}
	}
	t.Blocked = since(r.sent.Timestamp, x.Start+first/1000)
	t.Receive = max(0, *since(x.Start+x.HeadersEnd/1000, r.ended))
	return t
}

// pairs returns headers in the order of their names.
func pairs(headers map[string]string) []*har.NameValuePair {
	list := []*har.NameValuePair{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if len(list) < maxHeaders {
			list = append(list, &har.NameValuePair{Name: name, Value: headers[name]})
		}
	}
	return list
}
