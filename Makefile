# watchproxy. `make demo` shows it, `make test` tests it; both need Go, git, gcc and make only.

SHELL := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# Releases have no symbols.
RELEASE_LDFLAGS := -s -w $(LDFLAGS)
# Releases carry the time of their commit, so that the same commit makes the same bytes.
EPOCH = $(shell git log -1 --format=%ct)
RELEASE := bin/release
IMAGE ?= ghcr.io/watchproxy/watchproxy
# kube-apiserver's version, which the test upstream reports as its own. The Go module does not tell the commit.
KUBE_VERSION := v1.36.3
KUBE_LDFLAGS := -s -w $(foreach pkg,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $(pkg).gitVersion=$(KUBE_VERSION) -X $(pkg).gitMajor=1 -X $(pkg).gitMinor=36 -X $(pkg).gitTreeState=archive -X $(pkg).gitCommit=unknown)
KUBE_SOURCES := $(shell find bench/kubeapi -name '*.go' -o -name 'go.*')
FUZZTIME ?= 30s
# What a proxy is made of.
PACKAGES = $(shell go list ./... | grep -v /bench/)
LINT := go tool -modfile=.tools/go.mod golangci-lint
LINT_ABOVE := go tool -modfile=$(CURDIR)/.tools/go.mod golangci-lint --config $(CURDIR)/.golangci.yml

.DEFAULT_GOAL := help
.PHONY: help build image image-test release screenshot always kubeapi kubectl lint fmt test chart rights tiers forms linearizability \
	demo bench bench-recent bench-growth bench-sync faults restarts kills extremes stalled soak hostile fuzz vuln clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/watchproxy
	CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)" -o bin/watchproxy ./cmd/watchproxy

kubeapi: bin/kubeapi ## bin/kubeapi: a real kube-apiserver and etcd in one process, for tests and the demo

kubectl: bin/kubectl ## bin/kubectl

bin/kubeapi bin/kubectl: bin/%: $(KUBE_SOURCES)
	@[ -e $@ ] || echo "building $@: the first build compiles Kubernetes, about ten minutes on two cores"
	cd bench/kubeapi && CGO_ENABLED=0 go build -buildvcs=false -ldflags "$(KUBE_LDFLAGS)" -o ../../$@ ./cmd/$*

# bench/kubeapi and bench/chart are vetted (by test, once they are built) and checked for format, but not linted: the linter
# would type-check all of Kubernetes, Helm and Prometheus.
lint: ## formatters and linters
	$(LINT) run
	cd bench/page && $(LINT_ABOVE) run
	cd .tools/image && $(LINT_ABOVE) run
	$(LINT) fmt --diff bench/kubeapi bench/chart

fmt: ## format everything
	$(LINT) fmt . bench/kubeapi bench/chart .tools/image

# Everything is compiled in parallel first, then run, two packages at a time: those with an apiserver, a proxy and hundreds
# of clients fill two cores by themselves now and then, and wait for half of their time. The one that takes longest begins.
# The race detector is in all proxies that run, and in the tests of what they are made of; in those that only talk to proxies
# it would cost half of the time. Allocations and bytes are counted without it.
test: lint kubeapi kubectl chart bin/chromium ## lint, then all tests, with the race detector; the apiserver runs as a process
	cd bench/kubeapi && CGO_ENABLED=0 go vet ./...
	go test -race -run '^$$' $(PACKAGES) >/dev/null && go test -run '^$$' ./bench/... >/dev/null
	WATCHPROXY_RACE=1 go test -shuffle=on -timeout 20m -p 3 ./bench/conformance ./bench/...
	go test -race -shuffle=on -timeout 15m -p 2 $(PACKAGES)
	go test -shuffle=on -run '^Test(AllocationBudgets|EventAllocatesNothing|UnreadWatchesHoldLittle|MemoryOfUnknownConnections)$$' ./proxy ./proxy/read ./proxy/watch
	cd bench/page && go test -timeout 5m .
	go test -shuffle=on -timeout 5m -run '^Test(Lists|PageWalks|Gets|Watches|LargeState|Methods|SchemaChange)$$' ./bench/conformance -tiers 2 -plain

chart: kubeapi ## the Helm chart: lint, all of its objects shown to a real apiserver, alerts, the proxy with its rights
	cd bench/chart && go vet ./... && go test -shuffle=on -timeout 5m ./...

rights: kubeapi kubectl ## the differential suite through a proxy with the rights that the chart gives it with cacheEverything
	cd bench/chart && go tool helm template watchproxy ../../charts/watchproxy --namespace watchproxy --kube-version $(KUBE_VERSION) \
		--set cacheEverything=true --show-only templates/serviceaccount.yaml --show-only templates/rbac.yaml >../../bin/rights.yaml
	go test -shuffle=on -timeout 15m -count 1 ./bench/conformance -rbac $(CURDIR)/bin/rights.yaml

tiers: kubeapi ## the whole differential suite through two proxies, one behind the other
	go test -shuffle=on -timeout 15m -count 1 ./bench/conformance -tiers 2

forms: kubeapi ## the differential suite, each row in every form: encodings, gzip, HTTP/2; half an hour
	go test -shuffle=on -timeout 60m -count 1 ./bench/conformance -all-forms

screenshot: kubeapi bin/chromium ## bench/results/page.png: the status page after half a minute of work
	cd bench/page && go test -count 1 -run TestPicture . -picture $(CURDIR)/bench/results/page.png

linearizability: kubeapi ## consistent reads against acknowledged writes, 90 s in each of nine settings: half a million
	go test -v -run TestLinearizable -timeout 25m -count 1 ./bench/clients/linearizability -linearize 90s

FAULTS = @mkdir -p bench/results; go test -v -count 1 -timeout 60m ./bench/faults -report $(CURDIR)/bench/results/$@.md

faults: kubeapi ## everything that can go wrong, 39 ways, with 500 watchers: bench/results/faults.md
	$(FAULTS) -run TestFaults -everything -watchers 500

restarts: kubeapi ## the proxy and the apiserver restart under 2,000 informers, the apiserver 20 times under 50 feeds: bench/results/restarts.md
	$(FAULTS) -run TestRestarts -everything -informers 2000

kills: kubeapi ## the proxy is killed 100 times at random moments, caches saved: bench/results/kills.md
	$(FAULTS) -run TestKills -kills 100

extremes: kubeapi ## an object of 1.5 MB, 100 resources with one object, one with 300,000: bench/results/extremes.md
	$(FAULTS) -run TestExtremes -kinds 100 -objects 300000

stalled: kubeapi ## what one stalled client does to 1,000 others, by turns: bench/results/stalled.md
	$(FAULTS) -run TestStalled -crowd 1000 -rounds 9 -round 15s

SOAK ?= 30m
soak: kubeapi ## churning clients under 200 events/s for SOAK (30m), and what the proxy holds: bench/results/soak.md
	$(FAULTS) -run 'TestSoak$$' -soak $(SOAK) -sample $(if $(filter 30m,$(SOAK)),1m,10s)

hostile: kubeapi ## what hostile clients do to the proxy and its other users, 10 s each: bench/results/hostile.md
	@mkdir -p bench/results; go test -v -count 1 -timeout 180m ./bench/hostile -length 10s -report $(CURDIR)/bench/results/$@.md

demo: build kubeapi kubectl ## 200 informers directly and through the proxy, what both cost, live figures; Ctrl-C ends it
	@go build -o bin/demo ./bench/demo
	@exec bin/demo

bench-sync: build kubeapi ## how long informers take to sync, at the apiserver, through the proxy, and in herds
	@go build -o bin/bench-sync ./bench/sync
	@exec bin/bench-sync

bench: build kubeapi bin/nginx ## what reads cost: the apiserver, the proxy and a floor side by side; half an hour
	@go build -o bin/bench-load ./bench/load
	@mkdir -p bench/results; bin/bench-load --results bench/results && exec bin/bench-load --ingest --pods 100000 --results bench/results

bench-recent: build kubeapi bin/nginx ## how long lists of the most recent state take while others write, beside the apiserver: bench/results/recent.txt
	@go build -o bin/bench-load ./bench/load
	@mkdir -p bench/results; bin/bench-load --recent --results bench/results && exec bin/bench-load --recent --no-ledger --results bench/results

bench-growth: build kubeapi bin/nginx ## what they cost at 1,000, 10,000 and 100,000 pods; a quarter of an hour
	@go build -o bin/bench-load ./bench/load
	@exec bin/bench-load --growth 1000,10000,100000

# Debian's, which need not be installed.
bin/nginx:
	@mkdir -p bin; if command -v nginx >/dev/null; then ln -sf "$$(command -v nginx)" $@; else \
		dir=$$(mktemp -d) && cd $$dir && { apt-get download -q nginx || { apt-get update -q && apt-get download -q nginx; }; } && \
		dpkg-deb -x nginx_*.deb . && mv usr/sbin/nginx $(CURDIR)/$@; rm -rf $$dir; fi

$(RELEASE)/%/watchproxy: always
	CGO_ENABLED=0 GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) \
		go build -buildvcs=false -trimpath -ldflags "$(RELEASE_LDFLAGS)" -o $@ ./cmd/watchproxy

# Tagged as the chart asks for it: releases without the v.
image: $(foreach arch,amd64 arm64,$(RELEASE)/linux-$(arch)/watchproxy) ## bin/release/image.tar: an OCI image for amd64 and arm64, and what is in it; prints its digest
	cd .tools/image && go run -buildvcs=false . -version "$(VERSION)" -commit "$(COMMIT)" -created "$$(date -u -d @$(EPOCH) +%FT%TZ)" \
		-name "$(IMAGE):$(VERSION:v%=%)" -output $(CURDIR)/$(RELEASE)/image.tar -sbom $(CURDIR)/$(RELEASE)/sbom.cdx.json \
		$(foreach arch,amd64 arm64,linux/$(arch)=$(CURDIR)/$(RELEASE)/linux-$(arch)/watchproxy)

image-test: image ## run the image's binary as the image's user in the image's root; compiles everything twice
	cd .tools/image && go vet . && go test -count 1 . -image $(CURDIR)/$(RELEASE)/image.tar

release: image $(foreach arch,amd64 arm64,$(RELEASE)/darwin-$(arch)/watchproxy) ## bin/release: archives for Linux and macOS, the image, checksums
	CGO_ENABLED=0 go build -trimpath -ldflags "$(RELEASE_LDFLAGS)" -o bin/watchproxy ./cmd/watchproxy
	@set -e; for platform in linux-amd64 linux-arm64 darwin-amd64 darwin-arm64; do \
		name=watchproxy-$(VERSION)-$$platform; dir=$(RELEASE)/$$name; rm -rf $$dir; mkdir -p $$dir/completions; \
		cp LICENSE README.md CHANGELOG.md $(RELEASE)/$$platform/watchproxy $$dir; \
		for shell in bash zsh fish powershell; do bin/watchproxy completion $$shell >$$dir/completions/watchproxy.$$shell; done; \
		tar -C $(RELEASE) --sort=name --mtime=@$(EPOCH) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c $$name | gzip -9n >$$dir.tar.gz; \
		rm -r $$dir; done
	cd $(RELEASE) && sha256sum watchproxy-$(VERSION)-*.tar.gz image.tar sbom.cdx.json >SHA256SUMS && cat SHA256SUMS

# Debian's, with all that it needs and that is not there, which need not be installed: bin/chromium.d/root. Where a Chromium
# is installed, that one.
bin/chromium:
	@mkdir -p bin; for name in chromium chromium-headless-shell google-chrome; do \
		if command -v $$name >/dev/null; then ln -sf "$$(command -v $$name)" $@; exit; fi; done; \
	rm -rf $@.d && mkdir -p $@.d/partial && cd $@.d && \
	get="apt-get install -qqy --no-install-recommends --download-only -o Debug::NoLocking=1 -o Dir::Cache::archives=$$PWD \
		chromium-headless-shell fontconfig-config fonts-dejavu-core" && { $$get || { apt-get update -q && $$get; }; } && \
	for package in *.deb; do dpkg-deb -x $$package root && rm $$package || exit; done && \
	printf '%s\n' '#!/bin/sh' 'root=$$(dirname "$$(readlink -f "$$0")")/chromium.d/root; lib=$$root/usr/lib/$$(uname -m)-linux-gnu' \
		'export LD_LIBRARY_PATH=$$lib:$$lib/pulseaudio:$$lib/nss:$$root/lib/$$(uname -m)-linux-gnu XDG_DATA_HOME=$$root/usr/share' \
		'[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_PATH=$$root/etc/fonts' \
		'exec $$root/usr/lib/chromium/chromium-headless-shell "$$@"' >../chromium.new && chmod +x ../chromium.new && mv ../chromium.new $(CURDIR)/$@

fuzz: ## every fuzz target for FUZZTIME (30s) each
	@set -e; for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep ^Fuzz || true); do \
			echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

# The database of known vulnerabilities is not on every machine's network: then nothing is checked, and nothing fails.
VULN_HOST ?= vuln.go.dev
vuln: ## known vulnerabilities in what the proxy uses, where https://vuln.go.dev can be reached
	@if ! timeout 5 bash -c '</dev/tcp/$(VULN_HOST)/443' 2>/dev/null; then \
		echo "vuln: NOT CHECKED: the vulnerability database at https://$(VULN_HOST) cannot be reached"; exit; fi; \
	timeout 5m go tool -modfile=.tools/go.mod govulncheck -db https://$(VULN_HOST) $(PACKAGES)

clean: ## remove bin/
	rm -rf bin
