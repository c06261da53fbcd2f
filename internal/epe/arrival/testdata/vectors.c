/* Applies bpf/lib/spray.h and bpf/lib/backoff.h to vectors from standard input: see vectors_test.go. */
#include <stdio.h>

#include "spray.h"
#include "backoff.h"

struct vector {
	struct spray_path path, home;
	struct spray_watch watch;
	struct spray_turns turns;
	struct spray_queue queue[SPRAY_PATHS];
	struct spray_trial trial;
	struct backoff backoff;
	__u32 now, size, first, second, third;
	__u32 result[17];
};

int main(void)
{
	struct vector v;

	while (fread(&v, sizeof(v), 1, stdin) == 1) {
		__u32 arrival = v.first;

		v.result[0] = spray_arrival(&v.path, v.size);
		v.result[1] = spray_stalled(&v.path, &v.home, v.second % 3);
		v.result[2] = spray_better(&v.path, &v.home, v.size, &arrival);
		v.result[3] = arrival;
		spray_send(&v.path, v.now, v.size);
		spray_arrived(&v.path, v.home.rate, v.second, v.size, v.third);
		v.result[10] = spray_retransmitted(&v.path, v.first & 1, v.now);
		spray_found(&v.path, v.third & 1 ? v.result[10] : v.third % 3);
		v.result[4] = spray_loses(&v.path);
		v.result[5] = spray_harms(&v.path);
		v.result[6] = spray_worse(&v.watch, &v.home, v.now, v.first, v.second);
		v.result[7] = spray_queue_choose(&v.turns, v.queue, v.third % SPRAY_PATHS, (1 << SPRAY_PATHS) - 1, v.second, v.size, v.now);
		v.result[8] = spray_turn(&v.turns, v.queue[0].delay, v.now, v.size, v.second & 1);
		spray_share(v.queue, v.third % SPRAY_PATHS, v.first);
		v.result[11] = spray_dead(&v.home, v.now);
		v.result[12] = spray_tried(&v.trial, v.third, v.now);
		v.result[13] = spray_lossy_rate(&v.home, v.first, v.second);
		{
			struct spray_path both[SPRAY_PATHS] = { v.path, v.home };

			v.result[14] = spray_outage(both, v.third % 3, v.now);
		}
		v.result[15] = spray_answered(&v.home);
		v.result[16] = backoff_sent(&v.backoff, v.now, v.size);
		v.result[9] = spray_queued(&v.home);
		if (fwrite(&v, sizeof(v), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
