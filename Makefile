# make help says what there is.

SHELL   := /bin/bash
export GO ?= go
# Without the names of directories in what is compiled, all checkouts on a machine share the build cache.
export GOFLAGS := $(shell $(GO) env GOFLAGS 2>/dev/null) -trimpath
OUT     ?= out
VERSION := $(shell git describe --always --dirty --tags 2>/dev/null)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)

export CGO_ENABLED ?= 0

# Programs of another processor are in a directory of their own. ARCH is Debian's name of it.
BIN := bin$(addprefix /,$(ARCH))
PROCESSOR.amd64 := GOARCH=amd64
PROCESSOR.arm64 := GOARCH=arm64
PROCESSOR.armhf := GOARCH=arm GOARM=7
PROCESSOR.riscv64 := GOARCH=riscv64
# Debian's name of the processor that programs are built for.
HOST_ARCH = $(shell $(GO) env GOARCH)
DEBIAN.arm := armhf
DEBIAN_ARCH = $(or $(ARCH),$(DEBIAN.$(HOST_ARCH)),$(HOST_ARCH))
PROCESSOR := $(if $(ARCH),$(or $(PROCESSOR.$(ARCH)),$(error unknown ARCH=$(ARCH); use amd64, arm64, armhf or riscv64)))

.DEFAULT_GOAL := build
.PHONY: build demo test programs race bench bench-gateway bench-outages bench-forward bench-proxy bench-sites bench-short bench-starts bench-routes bench-networks bench-sim soak fuzz lint clean help FORCE

build: $(BIN)/tabane $(BIN)/tabane-lab ## build bin/tabane and bin/tabane-lab, or those of ARCH=arm64, armhf or riscv64 in bin/ARCH

# The go command knows what has changed; make does not.
$(BIN)/tabane $(BIN)/tabane-lab: FORCE
	@command -v $(GO) >/dev/null || { echo "make: there is no Go; install Go 1.26 or newer (https://go.dev/dl/)" >&2; exit 2; }
	$(PROCESSOR) $(GO) build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)" -o $@ ./cmd/$(@F)

demo: root build ## run the first experiment: content over every egress path (needs root)
	bin/tabane lab run epe-steady --quick --out $(OUT)/epe-steady

PKG ?= ./...
RUN ?= .

# How many packages are tested at a time: labs often wait.
PACKAGES = $(shell echo $$(($$(nproc) + 1)))

# What is checked beside the tests, whose labs often wait, at the lowest priority. Of a part of the tests, nothing.
BESIDE ?= $(if $(filter ./...,$(PKG)),analyze)

test: programs format ## run all tests, or those of PKG=./internal/... that match RUN=TestX; as root also those in network namespaces, none of which may be skipped then
	@$(GO) test -count=1 ./.ci/test
	@[ "$$(id -u)" != 0 ] || export TABANE_LAB=require; \
	$(GO) run ./.ci/test $(if $(BESIDE),-beside='$(MAKE) --no-print-directory $(BESIDE)') -p=$(PACKAGES) -count=1 -timeout=20m -run='$(RUN)' $(PKG)

race: ## run all tests, or those of PKG that match RUN, with the race detector (needs a C compiler)
	@CGO_ENABLED=1 $(GO) run ./.ci/test -race -count=1 -timeout=30m -run='$(RUN)' $(PKG)

.PHONY: measure-nine
measure-nine: root build ## measure nine client networks in a lab, and write docs/measured/measure-nine (root, 10 minutes)
	scenarios/measure-nine/measure $(OUT)/measure-nine docs/measured/measure-nine
NAME ?= epe-steady epe-change

.PHONY: measured
measured: root build ## measure scenarios in labs and write docs/measured: NAME="epe-steady epe-change" (root, 9 minutes; docs/measured/measure has all names)
	docs/measured/measure $(NAME)
.PHONY: bench-measure
bench-measure: root build ## compare tabane measure with iperf3 over a veth, in turns (root, 3 minutes)
	scenarios/measure-nine/iperf3

SOAK      ?= 20m
SEQUENCES ?= 1000

soak: ## disturb a network at random and load a proxy for SOAK (default 20m), then run SEQUENCES of changes (1000, 10 minutes); SEED repeats a run (root)
	TABANE_LAB=require TABANE_SOAK=$(SOAK) TABANE_SEQUENCES=$(SEQUENCES) TABANE_SEED=$(SEED) \
	$(GO) test -count=1 -timeout 24h -v -run 'TestSoak|TestNoPacketLeavesUnannounced' ./internal/acceptance

bench: ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./...

ROUTES ?= 10000,100000,1000000

bench-routes: programs ## measure tables of up to a million routes, beside FRR, and write docs/performance.md (root, 15 minutes)
	TABANE_LAB=require TABANE_ROUTES=$(ROUTES) $(GO) test -count=1 -timeout 60m -v -run 'TestScale$$' ./internal/acceptance

NETWORKS ?= 100000

bench-networks: ## deliver to NETWORKS client networks (default 100000) in each mode: memory, and how long packets leave to a peer that has gone; write the table of docs/delivery-measured.md (root, 7 minutes)
	TABANE_LAB=require $(GO) test -count=1 -timeout 20m -v -run 'TestNetworks$$' ./internal/acceptance -networks $(NETWORKS) -update

bench-gateway: ## measure the gateway's sealed plane, beside kernel forwarding and wireguard-go, under floods and with 1,008 paths, and write the tables of docs/gateway-measured.md (root, 7 minutes)
	TABANE_LAB=require $(GO) test -count=1 -timeout 20m -run '^$$' -bench 'Plane|Strangers|Floods|Ping|ManyPaths' -benchtime 3x ./internal/gateway/sealed -update

bench-outages: ## measure for how long a gateway loses packets by each of its failures, and write the table of docs/gateway-measured.md (root, 5 minutes)
	TABANE_LAB=require $(GO) test -count=1 -timeout 20m -run '^$$' -bench 'Outage$$' -benchtime 3x ./internal/gateway/sealed -update

bench-forward: BENCHMARKS := --benchmarks
bench-forward: programs ## measure the gateway's open plane, beside forwarding and masquerading by the kernel, and write its table of docs/gateway-measured.md (root, 6 minutes)
	TABANE_LAB=require TABANE_PROGRAMS=require $(GO) test -count=1 -timeout 10m -run '^$$' -bench 'Forward|Programs|Room|Flows' -benchtime 60x ./internal/gateway/openbpf -update

bench-proxy: BENCHMARKS := --benchmarks libnginx-mod-stream
bench-proxy: programs ## measure the proxy beside HAProxy and nginx: a download, short connections, first byte, memory, and write the table of docs/proxy.md (root, 4 minutes)
	TABANE_LAB=require TABANE_PROGRAMS=require $(GO) test -count=1 -timeout 10m -run '^$$' -bench Proxies -benchtime 1x ./internal/acceptance -update

bench-sites: ## compare proxies with gateways on the same two lines, and write the table of docs/proxy.md (root, 4 minutes)
	TABANE_LAB=require $(GO) test -count=1 -timeout 20m -run '^$$' -bench ProxySites -benchtime 1x ./internal/acceptance -update

CONNECTIONS ?= 100Mbit/s@100,100Mbit/s@500,1Gbit/s@1000,1Gbit/s@2000,1Gbit/s@5000

bench-short: ## measure short connections with TCP, with MPTCP, and with MPTCP while the edge is paused, in turns, at CONNECTIONS (RATE@PER SECOND,...), and write the table of ADR 19 (root, 4 minutes)
	TABANE_LAB=require $(GO) test -count=1 -timeout 20m -v -run 'TestShortTimes$$' ./internal/acceptance -connections $(CONNECTIONS) -update

STARTS ?= 20

PINNED = $(shell command -v taskset >/dev/null && echo taskset -c $$(($$(nproc) - 1)))

bench-starts: programs ## start two gateways with two lines of 20 Mbit/s each STARTS times (default 20), and measure a connection with cubic and with bbr, beside a single line of 40 Mbit/s (root, 22 minutes, nothing else running)
	TABANE_LAB=require TABANE_PROGRAMS=require $(GO) test -v -count=1 -timeout 40m -run '^$$' -bench Starts -benchtime 1x ./internal/acceptance -starts $(STARTS)

bench-sim: ## measure the simulator on one core, beside ns-2 where it is installed, and a grid on all cores
	@mkdir -p $(OUT)
	$(GO) test -c -o $(OUT)/sim.test ./internal/sim
	@cd internal/sim && bench="$(abspath $(OUT))/sim.test -test.run ^$$ -test.benchmem" && \
	$(PINNED) $$bench -test.bench 'Paper|Connections|Event' -test.benchtime 2s && \
	$(PINNED) $$bench -test.bench BesideNS2 -test.benchtime 9x && \
	$$bench -test.bench Sweep -test.benchtime 1x

FUZZTIME ?= 10s
# n/m is every mth target, from the nth.
SHARE    ?= 1/1

# Up to Go 1.26 the end of the time can itself be reported as a failure, without an input (go.dev/issue/75804).
fuzz: ## run each fuzz target for FUZZTIME (default 10s), one on each core, or only a SHARE=n/m of the targets
	@grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' cmd internal | \
	sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)|./\1 \2|' | LC_ALL=C sort | \
	awk -v share='$(SHARE)' 'BEGIN { split(share, s, "/") } (NR - s[1]) % s[2] == 0' | \
	xargs -P "$$(nproc)" -L 1 sh -c 'out=$$($(GO) test -run "^\$$" -fuzz "^$$1\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s -parallel 1 $$0 2>&1) || \
		case $$out in *"Failing input"* | *panic:*) false ;; *"    context deadline exceeded"*) ;; *) false ;; esac || \
		{ echo "$$0 $$1 failed:"; echo "$$out"; exit 255; }; echo "ok  $$0 $$1"'

INSTALL ?= yes

programs: ## install the programs that tests use, as root on Debian; elsewhere, or with INSTALL=no, name them
	@INSTALL=$(INSTALL) bash .ci/install $(BENCHMARKS)

lint: format analyze ## check format, suspicious code, switches without a case, US spelling

.PHONY: format analyze
format:
	@wrong=$$(gofmt -l cmd internal scenarios .ci); [ -z "$$wrong" ] || { echo "not formatted by gofmt:"; echo "$$wrong"; exit 1; } >&2
	@$(GO) tool misspell -error -locale US .ci Makefile *.md bpf cmd docs examples internal scenarios

analyze:
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool exhaustive -default-signifies-exhaustive -ignore-enum-types '^reflect\.Kind$$' ./...

.PHONY: vulnerabilities
vulnerabilities: ## look for known vulnerabilities in what is called, in modules and the standard library
	@$(GO) run .ci/vulnerabilities.go

.PHONY: validate
validate: build ## write docs/validation.md: the simulator compared with theory, ns-2 (where installed) and the kernel
	bin/tabane sim validate $(addprefix --kernel ,$(wildcard docs/validation/*.json)) --out docs/validation.md

.PHONY: tables
tables: ## write the tables of figures in docs/ and scenarios/, or with TABLE=webqoe those of files with that in their path
	$(GO) test ./internal/sim/simrun -run TestPublishedTables -count 1 -timeout 60m -update -table '$(TABLE)'

.PHONY: papers
papers: ## simulate the figures of the papers and write docs/papers.md, with what is published of labs
	$(GO) test ./internal/cli/lab -run 'TestPapers$$' -count 1 -timeout 60m -update

.PHONY: generate
generate: ## recompile the eBPF programs (needs clang-14 and llvm-strip-14)
	$(GO) generate -run bpf2go ./internal/...

.PHONY: deb
deb: build ## build bin/tabane_VERSION_ARCH.deb and bin/tabane-lab_VERSION_ARCH.deb, of this processor or of ARCH (needs dpkg-deb)
	deploy/debian/build "$(VERSION)" $(BIN) bin $(ARCH)

.PHONY: image
image: build ## build the OCI image bin/tabane_VERSION_ARCH.oci.tar, of this processor or of ARCH, without a container engine
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(GO) run ./deploy/image "$(VERSION)" "$(DEBIAN_ARCH)" $(BIN) "bin/tabane_$(VERSION)_$(DEBIAN_ARCH).oci.tar"

# A router's own name of its processor, as `opkg print-architecture` shows it.
OPENWRT ?= $(OPENWRT.$(DEBIAN_ARCH))
OPENWRT.amd64 := x86_64
OPENWRT.arm64   := aarch64_generic
OPENWRT.armhf   := arm_cortex-a7
OPENWRT.riscv64 := riscv64_generic

.PHONY: ipk
ipk: build ## build bin/tabane_VERSION_OPENWRT.ipk for OpenWrt, of ARCH=arm64, armhf or riscv64 and OPENWRT=aarch64_cortex-a53 or so
	deploy/openwrt/build "$(VERSION)" "$(OPENWRT)" $(BIN)

clean: ## remove what was built and the results
	rm -rf bin $(OUT)

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

.PHONY: root
root:
	@[ "$$(id -u)" = 0 ] || { echo 'make: the demo makes network namespaces and needs root: sudo env "PATH=$$PATH" make demo' >&2; exit 2; }

FORCE:
