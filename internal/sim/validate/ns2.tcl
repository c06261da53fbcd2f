# One TCP with SACK over a link that loses packets at random, several times with other streams of random numbers. The runs share
# nothing but the process. Prints the bytes of payload that each had acknowledged at the end.
#
# usage: ns FILE RUNS SECONDS RATE DELAY LOSS SEGMENT HEADER WINDOW INITIAL ACCESS
#   RATE in bit/s; DELAY of the link and ACCESS before it in s; LOSS from 0 to 1; WINDOW and INITIAL in segments
foreach {runs seconds rate delay loss segment header window initial access} $argv {}

set ns [new Simulator]

# FullTcp goes both ways and counts bytes. What is set here is what the standards say today where ns-2 has an older default: an initial
# window of ten, a sample of the round trip time from each acknowledgement, fine timers. Acknowledgements are not delayed.
Agent/TCP set window_ $window
Agent/TCP set windowInit_ $initial
Agent/TCP set tcpip_base_hdr_size_ $header
Agent/TCP set timestamps_ true
Agent/TCP set ts_option_size_ 0
Agent/TCP set tcpTick_ 0.001
Agent/TCP set minrto_ 0.2
Agent/TCP/FullTcp set segsize_ $segment
Agent/TCP/FullTcp set segsperack_ 1

set senders {}
for {set i 0} {$i < $runs} {incr i} {
	set a [$ns node]
	set r [$ns node]
	set b [$ns node]
	$ns duplex-link $a $r 1000Mb $access DropTail
	$ns duplex-link $r $b $rate $delay DropTail
	$ns queue-limit $a $r 100000
	$ns queue-limit $r $b 100000

	# Each new RNG is a stream of its own. The packet is lost on the wire: it has used the rate.
	set variable [new RandomVariable/Uniform]
	$variable use-rng [new RNG]
	set errors [new ErrorModel]
	$errors unit pkt
	$errors set rate_ $loss
	$errors ranvar $variable
	$errors drop-target [new Agent/Null]
	$ns link-lossmodel $errors $r $b

	set tcp [new Agent/TCP/FullTcp/Sack]
	set sink [new Agent/TCP/FullTcp/Sack]
	$ns attach-agent $a $tcp
	$ns attach-agent $b $sink
	$ns connect $tcp $sink
	$sink listen
	set ftp [new Application/FTP]
	$ftp attach-agent $tcp
	$ns at 0.0 "$ftp start"
	lappend senders $tcp
}
# The time of the transfer begins when the handshake is over, a round trip time after the start, and what is delivered in it is acknowledged half
# of one later.
$ns at [expr {$seconds + 3 * ($delay + $access)}] {
	foreach tcp $senders {
		puts [$tcp set ack_]
	}
	exit 0
}
$ns run
