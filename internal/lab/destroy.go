package lab

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// destroyRequest is struct inet_diag_req_v2 of include/uapi/linux/inet_diag.h.
type destroyRequest [56]byte

func (r *destroyRequest) Len() int          { return len(r) }
func (r *destroyRequest) Serialize() []byte { return r[:] }

// destroy resets a TCP connection of the caller's namespace (SOCK_DESTROY, CONFIG_INET_DIAG_DESTROY); the library does so for
// IPv4 alone.
func destroy(s *netlink.Socket) error {
	var r destroyRequest
	r[0], r[1] = s.Family, unix.IPPROTO_TCP
	native := binary.NativeEndian
	native.PutUint32(r[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(r[8:], s.ID.SourcePort)
	binary.BigEndian.PutUint16(r[10:], s.ID.DestinationPort)
	source, destination := s.ID.Source, s.ID.Destination
	if s.Family == unix.AF_INET {
		source, destination = source.To4(), destination.To4()
	}
	copy(r[12:28], source)
	copy(r[28:44], destination)
	native.PutUint32(r[44:], s.ID.Interface)
	native.PutUint32(r[48:], s.ID.Cookie[0])
	native.PutUint32(r[52:], s.ID.Cookie[1])
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.AddData(&r)
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}
