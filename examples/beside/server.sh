# The way to the SIDs, where no IGP has it; then, in the table of each peer, everything through its SID.
ip -6 route add fc00:1:1::/128 via 2001:db8:1::1 dev lan
ip -6 route add fc00:2:1::/128 via 2001:db8:1::2 dev lan
ip -6 route add default encap seg6 mode encap.red segs fc00:1:1:: dev lan table 101
ip -6 route add default encap seg6 mode encap.red segs fc00:2:1:: dev lan table 102
