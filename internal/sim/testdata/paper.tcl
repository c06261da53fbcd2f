# The two disjoint paths of the experiments on resequencing, each with one TCP with SACK: what an MPTCP connection without coupling does
# to the network. Prints how many segments were acknowledged. Nothing is traced.
#
# usage: ns FILE SECONDS
set seconds [lindex $argv 0]
set ns [new Simulator]

Agent/TCP set window_ 40
Agent/TCP set windowInit_ 2
Agent/TCP set packetSize_ 1340
Agent/TCP set useHeaders_ true
Agent/TCP set tcpip_base_hdr_size_ 40
Agent/TCP set tcpTick_ 0.001
Agent/TCP set minrto_ 0.2

proc road {rate delay loss} {
	global ns
	set a [$ns node]
	set r [$ns node]
	set b [$ns node]
	$ns duplex-link $a $r $rate $delay DropTail
	$ns duplex-link $r $b 100Mb 10ms DropTail
	if {$loss > 0} {
		set variable [new RandomVariable/Uniform]
		$variable use-rng [new RNG]
		set errors [new ErrorModel]
		$errors unit pkt
		$errors set rate_ $loss
		$errors ranvar $variable
		$errors drop-target [new Agent/Null]
		$ns link-lossmodel $errors $a $r
	}
	set tcp [new Agent/TCP/Sack1]
	set sink [new Agent/TCPSink/Sack1]
	$ns attach-agent $a $tcp
	$ns attach-agent $b $sink
	$ns connect $tcp $sink
	set ftp [new Application/FTP]
	$ftp attach-agent $tcp
	$ns at 0.0 "$ftp start"
	return $tcp
}

set one [road 5Mb 20ms 0]
set two [road 10Mb 50ms 1e-3]
$ns at $seconds {
	puts [expr {[$one set ack_] + [$two set ack_]}]
	exit 0
}
$ns run
