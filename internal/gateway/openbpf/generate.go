package openbpf

// See internal/epe/flowcount/generate.go. The vectors are for tests.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type route -type reach -type setup -type policy -type rule -type plan -type plan_key -type sched_plan -type sched_path -type way -type bpf_redir_neigh -type peer -type receiver -type session_key -type session -type session_state -type wanted -type origin -type line -type counted -type left -type refusal -type marking -type sched_rule program ../../../bpf/gateway/open/forward.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types raw ../../../bpf/gateway/open/raw.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -output-suffix _test -type step -type memory -type sched_plan -type sched_flow vectors ../../../bpf/gateway/open/vectors.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
