package iproute

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

// Attributes of nexthop objects (linux/nexthop.h), and that of a route that refers to one.
const (
	nhaID        = 1
	nhaBlackhole = 4
	nhaLink      = 5
	nhaGateway   = 6
	nhaEncapType = 7
	nhaEncap     = 8

	// Kinds of lightweight tunnels (linux/lwtunnel.h).
	lwtSeg6, lwtSeg6Local = 5, 7

	rtaNexthopID = 30

	// Attributes of an SRv6 endpoint behavior (linux/seg6_local.h).
	localAction, localTable, localNH4, localNH6 = 1, 3, 4, 5
)

var (
	seg6Modes    = map[int]string{0: "inline", 1: "encap", 2: "l2encap", 3: "encap.red", 4: "l2encap.red"}
	localActions = map[int]string{1: "End", 5: "End.DX6", 6: "End.DX4", 7: "End.DT6"}
	kinds        = map[int]string{unix.RTN_UNREACHABLE: "unreachable", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_LOCAL: "local",
		unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast", unix.RTN_THROW: "throw"}
	protocols = map[int]string{unix.RTPROT_KERNEL: "kernel", unix.RTPROT_BOOT: "boot", unix.RTPROT_STATIC: "static", unix.RTPROT_RA: "ra",
		unix.RTPROT_ZEBRA: "zebra", unix.RTPROT_BIRD: "bird", unix.RTPROT_BGP: "bgp"}
	tables = map[int]string{253: "default", 254: "main", 255: "local"}
)

// keyOf is the key of a value that must be in the map.
func keyOf(a *arguments, m map[int]string, what, name string) int {
	for k, v := range m {
		if v == name {
			return k
		}
	}
	a.fail("%s %q is unknown", what, name)
	return 0
}

func nameOf(m map[int]string, n int) string {
	if name, ok := m[n]; ok {
		return name
	}
	return strconv.Itoa(n)
}

func protocolOf(a *arguments, keys ...string) int {
	text := a.value(keys...)
	for n, name := range protocols {
		if name == text {
			return n
		}
	}
	if text != "" {
		a.words = append(a.words, keys[0], text)
	}
	return a.number(keys[0])
}

// attributes are netlink's of one object, which has each kind at most once.
type attributes map[uint16][]byte

func parse(b []byte) (attributes, error) {
	list, err := nl.ParseRouteAttr(b)
	m := attributes{}
	for _, x := range list {
		m[x.Attr.Type&^uint16(unix.NLA_F_NESTED)] = x.Value
	}
	return m, err
}

func (m attributes) number(kind uint16) int {
	if len(m[kind]) < 4 {
		return 0
	}
	return int(native.Uint32(m[kind]))
}

func (m attributes) address(kind uint16) netip.Addr {
	a, _ := netip.AddrFromSlice(m[kind])
	return a
}

// ask sends a request and returns the payloads of the answers.
func ask(kind, flags int, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	r := nl.NewNetlinkRequest(kind, flags)
	for _, d := range data {
		r.AddData(d)
	}
	return r.Execute(unix.NETLINK_ROUTE, answer)
}

// raw is a fixed header.
type raw []byte

func (r raw) Len() int          { return len(r) }
func (r raw) Serialize() []byte { return r }

func linkName(index int) string {
	if index == 0 {
		return ""
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return "if" + strconv.Itoa(index)
	}
	return l.Attrs().Name
}

// encapText is the lightweight tunnel of a route or nexthop.
func encapText(kind int, b []byte) string {
	switch m, err := parse(b); {
	case err != nil || kind == 0:
		return ""
	case kind == lwtSeg6:
		mode, segments, err := nl.DecodeSEG6Encap(m[1])
		if err != nil {
			return " encap seg6 " + err.Error()
		}
		// The kernel keeps the segments in the order of the wire, the last first.
		var list []string
		for _, s := range slices.Backward(segments) {
			list = append(list, s.String())
		}
		return fmt.Sprintf(" encap seg6 mode %s segs %d [ %s ]", nameOf(seg6Modes, mode), len(list), strings.Join(list, " "))
	case kind == lwtSeg6Local:
		text := " encap seg6local action " + nameOf(localActions, m.number(localAction))
		if n := m.number(localTable); n != 0 {
			text += " table " + nameOf(tables, n)
		}
		if a := m.address(localNH4); a.IsValid() {
			text += " nh4 " + a.String()
		}
		if a := m.address(localNH6); a.IsValid() {
			text += " nh6 " + a.String()
		}
		return text
	default:
		return fmt.Sprintf(" encap %d", kind)
	}
}

// route is one as the kernel shows it.
type route struct {
	kind, protocol, table int
	family, bits          uint8
	cloned                bool
	attributes
}

func decodeRoute(b []byte) (route, error) {
	if len(b) < unix.SizeofRtMsg {
		return route{}, fmt.Errorf("a route of %d bytes", len(b))
	}
	m, err := parse(b[unix.SizeofRtMsg:])
	r := route{family: b[0], bits: b[1], table: int(b[4]), protocol: int(b[5]), kind: int(b[7]), attributes: m}
	r.cloned = native.Uint32(b[8:])&unix.RTM_F_CLONED != 0
	if t := m.number(unix.RTA_TABLE); t != 0 {
		r.table = t
	}
	return r, err
}

func (r route) dst() netip.Prefix {
	a := r.address(unix.RTA_DST)
	if !a.IsValid() {
		a = netip.IPv6Unspecified()
		if r.family == unix.AF_INET {
			a = netip.IPv4Unspecified()
		}
	}
	return netip.PrefixFrom(a, int(r.bits))
}

// text is the route as `ip route` prints it. The table is named when it is not the one that is
// shown; zero shows all.
func (r route) text(shown int) string {
	var b strings.Builder
	if name, ok := kinds[r.kind]; ok {
		b.WriteString(name + " ")
	}
	switch p := r.dst(); {
	case p.Bits() == 0:
		b.WriteString("default")
	case p.IsSingleIP():
		b.WriteString(p.Addr().String())
	default:
		b.WriteString(p.String())
	}
	if id := r.number(rtaNexthopID); id != 0 {
		fmt.Fprintf(&b, " nhid %d", id)
	}
	b.WriteString(r.encap())
	if via := r.address(unix.RTA_GATEWAY); via.IsValid() {
		b.WriteString(" via " + via.String())
	}
	if via := r.attributes[unix.RTA_VIA]; len(via) == 2+16 {
		b.WriteString(" via inet6 " + netip.AddrFrom16([16]byte(via[2:])).String())
	}
	if dev := linkName(r.number(unix.RTA_OIF)); dev != "" {
		b.WriteString(" dev " + dev)
	}
	if r.table != cmp.Or(shown, unix.RT_TABLE_MAIN) {
		b.WriteString(" table " + nameOf(tables, r.table))
	}
	if r.protocol > unix.RTPROT_BOOT || r.protocol == unix.RTPROT_KERNEL {
		b.WriteString(" proto " + nameOf(protocols, r.protocol))
	}
	if src := r.address(unix.RTA_PREFSRC); src.IsValid() {
		b.WriteString(" src " + src.String())
	}
	if _, ok := r.attributes[unix.RTA_PRIORITY]; ok {
		fmt.Fprintf(&b, " metric %d", r.number(unix.RTA_PRIORITY))
	}
	b.WriteString(r.metrics())
	b.WriteString(r.siblings())
	return b.String()
}

func (r route) encap() string {
	kind := r.attributes[unix.RTA_ENCAP_TYPE]
	if len(kind) < 2 {
		return ""
	}
	return encapText(int(native.Uint16(kind)), r.attributes[unix.RTA_ENCAP])
}

var metricNames = map[uint16]string{
	unix.RTAX_MTU: "mtu", unix.RTAX_WINDOW: "window", unix.RTAX_CWND: "cwnd", unix.RTAX_ADVMSS: "advmss", unix.RTAX_HOPLIMIT: "hoplimit",
	unix.RTAX_INITCWND: "initcwnd", unix.RTAX_INITRWND: "initrwnd", unix.RTAX_QUICKACK: "quickack",
}

func (r route) metrics() string {
	m, err := parse(r.attributes[unix.RTA_METRICS])
	if err != nil {
		return " " + err.Error()
	}
	text := ""
	locked := m.number(unix.RTAX_LOCK)
	for _, kind := range slices.Sorted(maps.Keys(metricNames)) {
		n := m.number(kind)
		if n == 0 {
			continue
		}
		text += " " + metricNames[kind]
		if locked&(1<<kind) != 0 {
			text += " lock"
		}
		text += fmt.Sprintf(" %d", n)
	}
	return text
}

// siblings are the next hops of a multipath route.
func (r route) siblings() string {
	text := ""
	for b := r.attributes[unix.RTA_MULTIPATH]; len(b) >= unix.SizeofRtNexthop; {
		n := int(native.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			return text + " truncated"
		}
		m, err := parse(b[unix.SizeofRtNexthop:n])
		if err != nil {
			return text + " " + err.Error()
		}
		text += "\n\tnexthop"
		if kind := m[unix.RTA_ENCAP_TYPE]; len(kind) >= 2 {
			text += encapText(int(native.Uint16(kind)), m[unix.RTA_ENCAP])
		}
		if via := m.address(unix.RTA_GATEWAY); via.IsValid() {
			text += " via " + via.String()
		}
		text += fmt.Sprintf(" dev %s weight %d", linkName(int(native.Uint32(b[4:]))), b[3]+1)
		b = b[min(len(b), (n+3)&^3):]
	}
	return text
}

func showRoutes(a *arguments) (string, error) {
	text, protocol := a.value("table"), protocolOf(a, "proto", "protocol")
	table := unix.RT_TABLE_MAIN
	switch text {
	case "":
	case "all":
		table = 0
	default:
		table = a.tableNumber(text)
	}
	var want netip.Prefix
	if len(a.words) > 0 {
		want = prefix(a)
	}
	if err := a.end(); err != nil {
		return "", err
	}
	header := make(raw, unix.SizeofRtMsg)
	header[0] = a.family
	found, err := ask(unix.RTM_GETROUTE, unix.NLM_F_DUMP, unix.RTM_NEWROUTE, header)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, b := range found {
		r, err := decodeRoute(b)
		if err != nil {
			return "", err
		}
		if r.cloned || table != 0 && r.table != table || protocol != 0 && r.protocol != protocol || want.IsValid() && r.dst() != want {
			continue
		}
		if protocol != 0 {
			r.protocol = unix.RTPROT_UNSPEC // iproute2 does not repeat it
		}
		out.WriteString(r.text(table) + "\n")
	}
	return out.String(), nil
}

// getRoute says which route a packet would take.
func getRoute(a *arguments) (string, error) {
	dst, from := address(a, a.next()), a.value("from")
	header := make(raw, unix.SizeofRtMsg)
	source := "::"
	header[0], header[1] = unix.AF_INET6, uint8(dst.BitLen())
	if dst.Is4() {
		header[0], source = unix.AF_INET, "0.0.0.0"
	}
	data := []nl.NetlinkRequestData{header, nl.NewRtAttr(unix.RTA_DST, dst.AsSlice())}
	if from != "" {
		header[2] = uint8(dst.BitLen())
		data = append(data, nl.NewRtAttr(unix.RTA_SRC, address(a, from).AsSlice()))
	}
	if err := a.end(); err != nil {
		return "", err
	}
	found, err := ask(unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, data...)
	if err != nil {
		return "", err
	}
	r, err := decodeRoute(found[0])
	return strings.Replace(r.text(0), dst.String(), dst.String()+" from "+cmp.Or(from, source), 1) + "\n", err
}

func address(a *arguments, text string) netip.Addr {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		a.fail("%q is no address", text)
	}
	return ip
}

// prefix takes the next word, which is a prefix, an address or "default".
func prefix(a *arguments) netip.Prefix {
	text := a.next()
	switch {
	case text == "default" && a.family == unix.AF_INET:
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	case text == "default":
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return p
	}
	ip := address(a, text)
	return netip.PrefixFrom(ip, ip.BitLen())
}

// encapAttributes takes "encap ..." and returns the kind of the tunnel and its attributes; zero
// when there is none.
func encapAttributes(a *arguments) (uint16, []byte) {
	kind, with := a.group("encap", "mode", "segs", "action", "table", "nh4", "nh6")
	switch kind {
	case "":
		return 0, nil
	case "seg6":
		mode := keyOf(a, seg6Modes, "mode", with["mode"])
		var segments []byte
		for _, s := range slices.Backward(strings.Split(with["segs"], ",")) {
			segments = append(segments, address(a, s).AsSlice()...)
		}
		if mode == 0 { // the kernel puts the destination into the last place
			segments = append(make([]byte, 16), segments...)
		}
		count := len(segments) / 16
		b := native.AppendUint32(nil, uint32(mode))
		b = append(b, 0, byte(2*count), 4, byte(count-1), byte(count-1), 0, 0, 0)
		return lwtSeg6, nl.NewRtAttr(1, append(b, segments...)).Serialize()
	case "seg6local":
		b := nl.NewRtAttr(localAction, nl.Uint32Attr(uint32(keyOf(a, localActions, "action", with["action"])))).Serialize()
		if text := with["table"]; text != "" {
			b = append(b, nl.NewRtAttr(localTable, nl.Uint32Attr(uint32(a.tableNumber(text)))).Serialize()...)
		}
		if text := with["nh4"]; text != "" {
			b = append(b, nl.NewRtAttr(localNH4, address(a, text).AsSlice()).Serialize()...)
		}
		if text := with["nh6"]; text != "" {
			b = append(b, nl.NewRtAttr(localNH6, address(a, text).AsSlice()).Serialize()...)
		}
		return lwtSeg6Local, b
	default:
		a.fail("encap %q is unknown", kind)
		return 0, nil
	}
}

func linkIndex(a *arguments, name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		a.fail("device %q: %w", name, err)
		return 0
	}
	return l.Attrs().Index
}

// requestOf is the netlink message of a verb.
func requestOf(verb string, add, del int) (kind, flags int) {
	switch verb {
	case "del":
		return del, unix.NLM_F_ACK
	case "replace", "change":
		return add, unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	case "append":
		return add, unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_APPEND
	default:
		return add, unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
}

func changeRoute(a *arguments) (string, error) {
	header := make(raw, unix.SizeofRtMsg)
	header[7] = unix.RTN_UNICAST
	for kind, name := range kinds {
		if len(a.words) > 0 && a.words[0] == name {
			header[7] = byte(kind)
			a.next()
		}
	}
	dst := prefix(a)
	header[0] = unix.AF_INET6
	if dst.Addr().Is4() {
		header[0] = unix.AF_INET
	}
	header[1] = byte(dst.Bits())
	// The kernel would put what has no table, protocol or scope elsewhere than iproute2 does.
	header[5] = unix.RTPROT_BOOT
	if p := protocolOf(a, "proto", "protocol"); p != 0 {
		header[5] = byte(p)
	}
	data := []nl.NetlinkRequestData{header}
	put := func(kind int, b []byte) { data = append(data, nl.NewRtAttr(kind, b)) }
	number := func(kind, n int) { put(kind, nl.Uint32Attr(uint32(n))) }
	if dst.Bits() > 0 {
		put(unix.RTA_DST, dst.Addr().AsSlice())
	}
	kind, encap := encapAttributes(a)
	number(unix.RTA_TABLE, cmp.Or(a.table("table"), unix.RT_TABLE_MAIN))
	if kind != 0 {
		put(unix.RTA_ENCAP, encap)
		put(unix.RTA_ENCAP_TYPE, native.AppendUint16(nil, kind))
	}
	direct := true
	if via := a.value("via"); via != "" {
		if gateway := address(a, via); gateway.Is6() && dst.Addr().Is4() {
			put(unix.RTA_VIA, append(native.AppendUint16(nil, unix.AF_INET6), gateway.AsSlice()...))
		} else {
			put(unix.RTA_GATEWAY, gateway.AsSlice())
		}
		direct = false
	}
	if id := a.number("nhid"); id != 0 {
		number(rtaNexthopID, id)
		direct = false
	}
	if dev := a.value("dev"); dev != "" {
		number(unix.RTA_OIF, linkIndex(a, dev))
	}
	if header[0] == unix.AF_INET && direct && kind == 0 {
		header[6] = unix.RT_SCOPE_LINK
	}
	if a.verb == "del" && header[5] == unix.RTPROT_BOOT {
		header[5], header[6], header[7] = 0, unix.RT_SCOPE_NOWHERE, 0
	}
	if src := a.value("src"); src != "" {
		put(unix.RTA_PREFSRC, address(a, src).AsSlice())
	}
	if metric := a.number("metric"); metric != 0 {
		number(unix.RTA_PRIORITY, metric)
	}
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	for kind, name := range metricNames {
		if n := a.number(name); n != 0 {
			metrics.AddRtAttr(int(kind), nl.Uint32Attr(uint32(n)))
			data = append(data[:len(data):len(data)], metrics)
		}
	}
	if err := a.end(); err != nil {
		return "", err
	}
	message, flags := requestOf(a.verb, unix.RTM_NEWROUTE, unix.RTM_DELROUTE)
	_, err := ask(message, flags, 0, data...)
	return "", err
}

const sizeofNhmsg = 8

// nexthopText is a nexthop object as `ip nexthop` prints it.
func nexthopText(b []byte) (string, error) {
	if len(b) < sizeofNhmsg {
		return "", fmt.Errorf("a nexthop of %d bytes", len(b))
	}
	m, err := parse(b[sizeofNhmsg:])
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("id %d", m.number(nhaID))
	if kind := m[nhaEncapType]; len(kind) >= 2 {
		text += encapText(int(native.Uint16(kind)), m[nhaEncap])
	}
	if via := m.address(nhaGateway); via.IsValid() {
		text += " via " + via.String()
	}
	if dev := linkName(m.number(nhaLink)); dev != "" {
		text += " dev " + dev
	}
	if _, ok := m[nhaBlackhole]; ok {
		text += " blackhole"
	}
	if b[2] != unix.RTPROT_UNSPEC {
		text += " proto " + nameOf(protocols, int(b[2]))
	}
	return text, nil
}

func showNexthops(a *arguments) (string, error) {
	if err := a.end(); err != nil {
		return "", err
	}
	found, err := ask(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP, unix.RTM_NEWNEXTHOP, make(raw, sizeofNhmsg))
	var out strings.Builder
	for _, b := range found {
		text, err := nexthopText(b)
		if err != nil {
			return "", err
		}
		out.WriteString(text + "\n")
	}
	return out.String(), err
}

func changeNexthop(a *arguments) (string, error) {
	header := make(raw, sizeofNhmsg)
	if a.verb != "del" {
		header[0] = unix.AF_INET6
	}
	header[2] = byte(protocolOf(a, "proto", "protocol"))
	data := []nl.NetlinkRequestData{header, nl.NewRtAttr(nhaID, nl.Uint32Attr(uint32(a.number("id"))))}
	if kind, encap := encapAttributes(a); kind != 0 {
		data = append(data, nl.NewRtAttr(nhaEncap|int(unix.NLA_F_NESTED), encap), nl.NewRtAttr(nhaEncapType, native.AppendUint16(nil, kind)))
	}
	if via := a.value("via"); via != "" {
		data = append(data, nl.NewRtAttr(nhaGateway, address(a, via).AsSlice()))
	}
	if dev := a.value("dev"); dev != "" {
		data = append(data, nl.NewRtAttr(nhaLink, nl.Uint32Attr(uint32(linkIndex(a, dev)))))
	}
	if err := a.end(); err != nil {
		return "", err
	}
	message, flags := requestOf(a.verb, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP)
	_, err := ask(message, flags, 0, data...)
	return "", err
}
