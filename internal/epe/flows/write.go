package flows

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// busiest returns the flows of the snapshot that carried packets or have ended: the top flows,
// busiest first, if there are more than top; all of them if top is 0.
func busiest(s *Snapshot, top int, into []*Flow) []*Flow {
	into = into[:0]
	for _, f := range s.Flows {
		if f.Delta.Packets > 0 || f.Ended {
			into = append(into, f)
		}
	}
	if top > 0 && len(into) > top {
		slices.SortStableFunc(into, func(a, b *Flow) int { return cmp.Compare(b.Delta.Bytes, a.Delta.Bytes) })
		into = into[:top]
	}
	return into
}

// JSON writes snapshots as JSON lines: one object for each flow that carried packets in the
// interval or has ended.
type JSON struct {
	w     io.Writer
	top   int
	flows []*Flow
	b     []byte
}

// NewJSON returns a JSON that writes at most top flows of each snapshot, or all of them if top is
// 0.
func NewJSON(w io.Writer, top int) *JSON { return &JSON{w: w, top: top} }

// Write writes the snapshot in one call, so that a reader receives whole intervals.
func (j *JSON) Write(s *Snapshot) error {
	j.flows = busiest(s, j.top, j.flows)
	j.b = j.b[:0]
	for _, f := range j.flows {
		if f.fixed == nil {
			f.fixed = fixedJSON(f)
		}
		b := append(j.b, `{"time":"`...)
		b = s.Time.AppendFormat(b, timeFormat)
		b = appendMilliseconds(append(b, `","interval_ms":`...), s.Elapsed)
		b = append(b, f.fixed...)
		b = number(b, `,"packets":`, f.Delta.Packets)
		b = number(b, `,"bytes":`, f.Delta.Bytes)
		b = number(b, `,"bits_per_second":`, uint64(f.BitsPerSecond(s.Elapsed)))
		b = strconv.AppendFloat(append(b, `,"share":`...), f.Share(), 'f', 4, 64)
		b = number(b, `,"total_packets":`, f.Total.Packets)
		b = number(b, `,"total_bytes":`, f.Total.Bytes)
		if f.Ended {
			b = append(b, `,"ended":true`...)
		}
		if host, far, ok := f.NAT(); ok {
			b = append(append(b, `,"nat_host":"`...), natEnd(host)...)
			b = append(append(append(b, `","nat_far":"`...), natEnd(far)...), '"')
		}
		if socket, at := f.Socket(); socket != nil {
			b = appendSocket(b, socket, s.Time.Sub(at))
		}
		if u := s.use(f); u.Policy != "" {
			b = append(b, `,"policy":"`+u.Policy+`","use":"`+u.Reason+`"`...)
		}
		j.b = append(b, '}', '\n')
	}
	if len(j.b) == 0 {
		return nil
	}
	_, err := j.w.Write(j.b)
	return err
}

// timeFormat is RFC 3339 with a fixed number of digits.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// fixedJSON returns the constant fields of a flow.
func fixedJSON(f *Flow) []byte {
	text := func(s string) []byte {
		b, err := json.Marshal(s)
		if err != nil {
			panic("BUG: a string is no JSON: " + err.Error())
		}
		return b
	}
	b := number(nil, `,"flow":`, f.ID)
	b = append(append(b, `,"interface":`...), text(f.Interface)...)
	b = append(b, `,"direction":"`+direction(f.Sent)+`","protocol":"`+f.Protocol+`","local":"`...)
	b = append(f.Local.AppendTo(b), `","remote":"`...)
	b = append(f.Remote.AppendTo(b), '"')
	if f.SID.IsValid() {
		b = append(f.SID.AppendTo(append(b, `,"sid":"`...)), '"')
	}
	if f.Peer != "" {
		b = append(append(b, `,"peer":`...), text(f.Peer)...)
	}
	if f.Path != "" {
		b = append(append(b, `,"path":`...), text(f.Path)...)
	}
	return b
}

// natEnd returns an end of a connection with NAT as text, ":80" if only its port is known.
func natEnd(a netip.AddrPort) string {
	if !a.Addr().IsValid() {
		return ":" + strconv.Itoa(int(a.Port()))
	}
	return a.String()
}

func appendSocket(b []byte, s *mptcp.Socket, age time.Duration) []byte {
	if s.Token != 0 {
		b = append(b, `,"token":"`+token(s.Token)+`"`...)
		b = number(b, `,"local_id":`, uint64(s.LocalID))
		b = number(b, `,"remote_id":`, uint64(s.RemoteID))
		b = strconv.AppendBool(append(b, `,"backup":`...), s.BackupHere || s.BackupThere)
	}
	b = append(b, `,"tcp":{"state":"`...)
	b = append(append(b, s.State.String()...), '"')
	// The kernel permits any name for a congestion control.
	b = append(b, `,"congestion":"`+plainName(s.Congestion)+`"`...)
	b = appendMilliseconds(append(b, `,"srtt_ms":`...), s.RTT)
	b = appendMilliseconds(append(b, `,"rttvar_ms":`...), s.Deviation)
	b = number(b, `,"cwnd":`, uint64(s.Window))
	b = number(b, `,"mss":`, uint64(s.SegmentSize))
	b = number(b, `,"in_flight":`, uint64(s.InFlight))
	b = number(b, `,"delivery_bits_per_second":`, s.DeliveryRate*8)
	b = number(b, `,"bytes_acked":`, s.Acked)
	b = number(b, `,"retransmitted":`, uint64(s.Retransmitted))
	b = number(b, `,"reordering":`, uint64(s.Reordering))
	b = number(b, `,"reordered":`, uint64(s.Reordered))
	b = appendMilliseconds(append(b, `,"min_rtt_ms":`...), s.MinRTT)
	b = number(b, `,"not_sent":`, uint64(s.NotSent))
	b = number(b, `,"send_window":`, uint64(s.SendWindow))
	b = number(b, `,"pacing_bits_per_second":`, pacing(s))
	b = strconv.AppendBool(append(b, `,"app_limited":`...), s.AppLimited)
	b = appendMilliseconds(append(b, `,"busy_ms":`...), s.Busy)
	b = appendMilliseconds(append(b, `,"window_limited_ms":`...), s.WindowLimited)
	b = appendMilliseconds(append(b, `,"buffer_limited_ms":`...), s.BufferLimited)
	b = appendMilliseconds(append(b, `,"age_ms":`...), age)
	return append(b, '}')
}

// pacing returns the pacing rate in bit/s, 0 for none.
func pacing(s *mptcp.Socket) uint64 {
	if s.PacingRate > math.MaxUint64/8 {
		return 0
	}
	return s.PacingRate * 8
}

// plainName replaces characters that would have to be escaped in JSON, CSV or on a terminal.
func plainName(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || r == '"' || r == ',' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

func number(b []byte, name string, v uint64) []byte {
	return strconv.AppendUint(append(b, name...), v, 10)
}

func appendMilliseconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d.Nanoseconds())/1e6, 'f', 3, 64)
}

func token(t uint32) string { return fmt.Sprintf("%08x", t) }

// CSV writes snapshots as comma-separated values, one line for each flow that JSON would write.
type CSV struct {
	w      io.Writer
	top    int
	headed bool
	flows  []*Flow
	b      []byte
}

// NewCSV returns a CSV that writes at most top flows of each snapshot, or all of them if top is 0.
func NewCSV(w io.Writer, top int) *CSV { return &CSV{w: w, top: top} }

const csvHeader = "time,interval_ms,flow,interface,direction,protocol,local,remote,sid,peer,token,local_id,remote_id,backup," +
	"packets,bytes,bits_per_second,share,total_packets,total_bytes,ended," +
	"state,congestion,srtt_ms,rttvar_ms,cwnd,mss,in_flight,delivery_bits_per_second,bytes_acked,retransmitted,reordering,reordered,age_ms," +
	"min_rtt_ms,not_sent,send_window,pacing_bits_per_second,app_limited,busy_ms,window_limited_ms,buffer_limited_ms,path,nat_host,nat_far,policy,use\n"

// socketColumns is the number of columns that are empty if a flow has no socket.
const socketColumns = 21

// Write writes the snapshot.
func (c *CSV) Write(s *Snapshot) error {
	c.flows = busiest(s, c.top, c.flows)
	b := c.b[:0]
	if !c.headed {
		b = append(b, csvHeader...)
		c.headed = true
	}
	for _, f := range c.flows {
		b = s.Time.AppendFormat(b, timeFormat)
		b = appendMilliseconds(append(b, ','), s.Elapsed)
		b = number(b, ",", f.ID)
		b = append(b, ","+field(f.Interface)+","+direction(f.Sent)+","+f.Protocol+","...)
		b = append(f.Local.AppendTo(b), ',')
		b = append(f.Remote.AppendTo(b), ',')
		if f.SID.IsValid() {
			b = f.SID.AppendTo(b)
		}
		b = append(b, ","+field(f.Peer)+","...)
		socket, at := f.Socket()
		if socket != nil && socket.Token != 0 {
			b = append(b, token(socket.Token)...)
			b = number(b, ",", uint64(socket.LocalID))
			b = number(b, ",", uint64(socket.RemoteID))
			b = strconv.AppendBool(append(b, ','), socket.BackupHere || socket.BackupThere)
		} else {
			b = append(b, ",,,"...)
		}
		b = number(b, ",", f.Delta.Packets)
		b = number(b, ",", f.Delta.Bytes)
		b = number(b, ",", uint64(f.BitsPerSecond(s.Elapsed)))
		b = strconv.AppendFloat(append(b, ','), f.Share(), 'f', 4, 64)
		b = number(b, ",", f.Total.Packets)
		b = number(b, ",", f.Total.Bytes)
		b = strconv.AppendBool(append(b, ','), f.Ended)
		if socket == nil {
			b = appendNAT(append(b, strings.Repeat(",", socketColumns)...), f)
			b = append(b, ",,\n"...)
			continue
		}
		b = append(b, ","+socket.State.String()+","+plainName(socket.Congestion)+","...)
		b = appendMilliseconds(b, socket.RTT)
		b = appendMilliseconds(append(b, ','), socket.Deviation)
		for _, v := range []uint64{
			uint64(socket.Window), uint64(socket.SegmentSize), uint64(socket.InFlight), socket.DeliveryRate * 8, socket.Acked,
			uint64(socket.Retransmitted), uint64(socket.Reordering), uint64(socket.Reordered),
		} {
			b = number(b, ",", v)
		}
		b = appendMilliseconds(append(b, ','), s.Time.Sub(at))
		b = appendMilliseconds(append(b, ','), socket.MinRTT)
		b = number(b, ",", uint64(socket.NotSent))
		b = number(b, ",", uint64(socket.SendWindow))
		b = number(b, ",", pacing(socket))
		b = strconv.AppendBool(append(b, ','), socket.AppLimited)
		for _, d := range []time.Duration{socket.Busy, socket.WindowLimited, socket.BufferLimited} {
			b = appendMilliseconds(append(b, ','), d)
		}
		b = appendNAT(b, f)
		u := s.use(f)
		b = append(b, ","+u.Policy+","+u.Reason+"\n"...)
	}
	c.b = b
	if len(b) == 0 {
		return nil
	}
	_, err := c.w.Write(b)
	return err
}

// appendNAT appends the last columns of a line, and its end.
func appendNAT(b []byte, f *Flow) []byte {
	b = append(b, ","+field(f.Path)+","...)
	if host, far, ok := f.NAT(); ok {
		return append(b, natEnd(host)+","+natEnd(far)...)
	}
	return append(b, ',')
}

// field quotes a field if it contains special characters of CSV (RFC 4180).
func field(s string) string {
	if !strings.ContainsAny(s, ",\"\r\n") {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
