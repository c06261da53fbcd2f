package papers

var paperA = []Figure{
	{
		ID: "A8", Title: "Fig. 8, goodput in the patterns 1.1 to 1.4",
		Published: "MPTCP EPE at least TCP everywhere; BI near the sum of both links in 1.3 and 1.4",
		Command:   "tabane lab run epe-steady",
		Ours: "BI: TCP 28.3, 28.3, 14.2, 14.2 Mbit/s, MPTCP EPE 55.2, 41.4, 41.2, 27.6, 98.9 to 99.5 % of the limit; CBR of 25 Mbit/s: TCP 25.0, 25.0, 14.2, 14.2, MPTCP EPE 25.0 in all " +
			"(medians of three trials of full length, 2026-11-22; [the figure](goodput.png))", Verdict: Reproduced,
		See: "../scenarios/epe-steady",
	},
	{
		ID: "A9", Title: "Fig. 9, goodput before and after a change",
		Published: "2.1: BI about 45 Mbit/s, then about 30, CBR holds 25; 2.3 and 2.4: near 45 after the change",
		Command:   "tabane lab run epe-change",
		Ours:      "2.1: BI 41.5 Mbit/s, then 27.7; CBR 24.4 to 24.9 in the worst second (28 runs of 2.1)", Verdict: Reproduced,
		Because: "The links carry 45 and 30 Mbit/s with all headers, 41.6 and 27.7 of payload.",
		See:     "../scenarios/epe-change",
	},
	{
		ID: "A10", Title: "Fig. 10, time from a change of policy to the routes",
		Published: "medians with FRR: EPE Route about 190 ms (3.1) and 310 ms (3.2), best path about equal",
		Command:   "tabane lab run epe-routes --routers embedded,frr",
		Ours:      "embedded routers 3 to 5 ms; FRR: EPE Route about 104 ms in both, best path about 104 ms (3.1) and 156 ms (3.2)", Verdict: Differs,
		Because: "Both follow a change at once, and sooner. With FRR each hop takes the 50 ms for which its bgpd delays updates; the paper names neither version nor timers of its FRR.",
		See:     "../scenarios/epe-routes",
	},
	{
		ID: "A12", Title: "Fig. 12 and 13, nine client ISPs",
		Published: "at least 10 % better in 6 of 9, at least 50 % in 4, about 8 % worse in 2",
		Command:   "make measure-nine",
		Ours:      "models of networks: at least 10 % better in 5 of 9, at least 50 % in 4; worse in 4, by 3, 8, 39 and 60 % (one run in a lab of one busy host, 2026-11-28)", Verdict: Differs,
		Because: "The paper's networks are real ones of which it gives no properties; ours are models.",
		See:     "measured/measure-nine/report.html",
	},
	{
		ID: "A14", Title: "Fig. 14, 1 to 12 parallel TCP connections",
		Published: "goodput falls with the number",
		Command:   "make measure-nine",
		Ours:      "rises, by 19 to 37 %, where the host's two processors are the limit; MPTCP falls by 39 % (the same run, isp-e)", Verdict: NotReproduced,
		Because: "What made parallel connections cost in the paper's network is not in the paper.",
		See:     "measured/measure-nine/report.html",
	},
	{
		ID: "As4", Title: "section 4, SRv6 Flow Stats",
		Published: "throughput of each subflow every 100 ms",
		Command:   "tabane flows",
		Ours:      "the same, and TCP's state", Verdict: Reproduced,
		See: "flows.md",
	},
}
