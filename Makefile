# watchproxy. `make demo` shows it, `make test` tests it; both need Go, git, gcc and make only.

SHELL := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# The tag removes a page of templates from gRPC. Without templates, the linker drops the methods that nothing
# calls, which are a third of the binary. Tests use the tag, too, so that nothing is compiled twice.
TAGS := -tags grpcnotrace
GO_BUILD := CGO_ENABLED=0 go build -trimpath $(TAGS)
# What a proxy is made of.
PACKAGES = $(shell go list ./... | grep -v /bench/)

.DEFAULT_GOAL := help
.PHONY: always $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
build: ## bin/watchproxy
	$(GO_BUILD) -ldflags "$(LDFLAGS)" -o bin/watchproxy ./cmd/watchproxy
kubeapi: bin/kubeapi ## bin/kubeapi: a real kube-apiserver and etcd in one process, for tests and the demo
kubectl: bin/kubectl ## bin/kubectl

# The minors that make compat tests, oldest first, each with the latest patch that the module proxy has. PREVIOUS
# is upgraded to KUBE_VERSION, which is the version in go.mod.
KUBE_VERSION := $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' bench/kubeapi/go.mod)
PREVIOUS := v1.36.5
COMPAT := v1.33.13 v1.34.12 v1.35.8 $(PREVIOUS) $(KUBE_VERSION)

.SECONDEXPANSION:
bin/kubeapi bin/kubectl bin/kubenode: bin/%: $$(wildcard bench/kubeapi/cmd/$$*/*.go bench/kubeapi/go.*)
	bench/kubeapi/build $* $(KUBE_VERSION) $@
bin/kubeapi-$(KUBE_VERSION): bin/kubeapi
	ln -sf kubeapi $@
bin/kubeapi-v%: bench/kubeapi/build $(wildcard bench/kubeapi/cmd/kubeapi/*.go)
	bench/kubeapi/build kubeapi v$* $@
bin/kwok: bench/kwok/go.mod
	cd bench/kwok && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$@ sigs.k8s.io/kwok/cmd/kwok
bin/chromium bin/axe.min.js bin/python-client bin/node-client:
	@.tools/fetch $@

# bench/kubeapi and bench/chart are vetted (by test, once they are built) and checked for format, but not linted:
# the linter would type-check all of Kubernetes, Helm and Prometheus. Likewise bench/programs, by make clients.
LINT := go tool -modfile=$(CURDIR)/.tools/go.mod golangci-lint
lint: ## formatters and linters
	$(LINT) run
	cd bench/page && $(LINT) --config $(CURDIR)/.golangci.yml run
	cd bench/scale && $(LINT) --config $(CURDIR)/.golangci.yml run
	cd .tools/image && $(LINT) --config $(CURDIR)/.golangci.yml run
	$(LINT) fmt --diff bench/kubeapi bench/chart bench/programs
	go tool -modfile=.tools/image/go.mod actionlint
fmt: ## format everything
	$(LINT) fmt . bench/kubeapi bench/chart .tools/image

test: ## the gate: lint, then all tests that judge values
	.ci/gate lint test-units test-budgets test-servers test-modules

gate = $(CURDIR)/.ci/tests $(1) '$(2)' $(TAGS) $(3)
# Proxies that run as processes have the race detector, and so do the tests of what they are made of. Without this
# setting, each test binary with the race detector takes a second longer to end.
test-units: export GORACE = atexit_sleep_ms=0
test-units:
	@$(call gate,units,$(PACKAGES),-race)

# The race detector allocates, and makes pools forget. So tests that count allocations are in files without it.
BUDGETS = $(shell grep -rl --include='*_test.go' '^//go:build !race' watchcache proxy cmd config)
names = -run '^($(subst $() ,|,$(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' $(1))))$$'
folders = $(sort $(dir $(1:%=./%)))
test-budgets:
	@$(call gate,budgets,$(call folders,$(BUDGETS)),$(call names,$(BUDGETS)))

# These have whole suites of their own in make verify. Two packages run at a time, because each waits for its
# kube-apiserver for a third of its time.
RIGS := faults hostile demo clients/linearizability clients/outage clients/kubelets
test-servers: export WATCHPROXY_RACE = 1
test-servers: kubeapi kubectl
	cd bench/kubeapi && CGO_ENABLED=0 go vet ./cmd/kubeapi ./cmd/kubectl
	@$(call gate,servers,$(filter-out $(addprefix %/bench/,$(RIGS)),$(shell go list ./bench/...)),-p 2)
test-modules: kubeapi bin/chromium
	@$(MAKE) --no-print-directory -j 2 --output-sync test-chart test-page test-scale test-image
CHECK_CHART := cd bench/chart && go vet ./... && go tool helm lint --strict --quiet ../../charts/watchproxy
test-chart:
	@$(CHECK_CHART) && $(call gate,chart,./...)
test-page:
	@cd bench/page && $(call gate,page,.)
test-scale:
	@cd bench/scale && $(call gate,scale,.)
test-image:
	@cd .tools/image && $(call gate,image,.)

# The suites of make verify, in this order. Each is a target. Tests that judge time run alone. The other tests of
# the product run again from a new seed, those of bench/conformance in forms, and those of bench/access in matrix.
VERIFIED := go test -tags grpcnotrace,verify -count=1 -shuffle=on -p 1 -timeout 30m
SUITES := verify-product verify-servers verify-modules $(RIGS:%=verify-%) tiers scopes rights forms matrix fuzz
verify: ## what judges time, memory and luck, from a new seed: bench/results/verify.md; SUITES='tiers fuzz' selects
	.ci/verify $(SUITES)
UNRACED = $(shell grep -rl --include='*_test.go' '^//go:build .*!race' watchcache proxy cmd config)
TIMED = $(shell grep -rl --include='*_test.go' '^//go:build .*verify' watchcache proxy cmd config)
verify-product:
	$(VERIFIED) -p 2 -race $(subst -run,-skip,$(call names,$(TIMED))) $(PACKAGES)
	$(VERIFIED) -race $(call names,$(TIMED)) $(call folders,$(TIMED))
	$(VERIFIED) $(call names,$(UNRACED)) $(call folders,$(UNRACED))
verify-servers: kubeapi kubectl
	WATCHPROXY_RACE=1 $(VERIFIED) \
		$(filter-out $(addprefix %/bench/,$(RIGS) conformance access),$(shell go list ./bench/...))
verify-modules: kubeapi bin/python-client bin/node-client bin/chromium bin/axe.min.js
	cd bench/chart && $(VERIFIED) ./...
	cd bench/page && $(VERIFIED) .
	$(MAKE) scale SCALE=0.005
verify-clients/kubelets: bin/kubenode
$(RIGS:%=verify-%): verify-%: kubeapi kubectl
	WATCHPROXY_RACE=1 $(VERIFIED) ./bench/$*

chart: kubeapi ## the Helm chart: lint, its objects at a real apiserver, alerts, the proxy with its rights
	$(CHECK_CHART) && go test -shuffle=on -timeout 10m ./...
CONFORMANCE := go test $(TAGS) -shuffle=on -count 1 ./bench/conformance
rights: kubeapi kubectl ## the differential suite with the rights that the chart grants for cacheEverything
	cd bench/chart && go tool helm template watchproxy ../../charts/watchproxy -n watchproxy --set cacheEverything=true \
		--kube-version $(KUBE_VERSION) -s templates/serviceaccount.yaml -s templates/rbac.yaml >../../bin/rights.yaml
	$(CONFORMANCE) -timeout 15m -rbac $(CURDIR)/bin/rights.yaml
scopes: kubeapi kubectl ## the differential suite through a proxy for some namespaces, and through a node's proxy
	$(CONFORMANCE) -timeout 20m -scoped -rbac testdata/namespaces.yaml
	$(CONFORMANCE) -timeout 20m -scoped
tiers: kubeapi ## the differential suite through two proxies, one behind the other; some rows, as in test
	$(CONFORMANCE) -timeout 15m -tiers 2
forms: kubeapi ## the whole differential suite, each row in every encoding, plain and gzip; ten minutes
	$(VERIFIED) -timeout 60m ./bench/conformance -all-forms
matrix: kubeapi kubectl ## tests of access with the whole matrix: all callers, all reads; test asks about an eighth
	$(VERIFIED) -timeout 20m ./bench/access -everything
compat: bin/kubeapi-$(PREVIOUS) kubeapi kubectl $(COMPAT:%=bin/kubeapi-%)
compat: ## the differential suite against five minors of kube-apiserver: bench/results/compat.md
	WATCHPROXY_KUBEAPI=$(CURDIR)/bin/kubeapi-$(PREVIOUS) WATCHPROXY_KUBEAPI_NEXT=$(CURDIR)/bin/kubeapi \
		go test $(TAGS) -count 1 -timeout 5m -run '^TestRollingUpgrade$$' ./bench/clients/outage
	go run ./bench/compat $(COMPAT:%=--versions %) --report bench/results/compat.md

# The controllers, the scheduler and the kubelet take some six minutes to compile, so this is no part of make test.
KUBELETS ?= 8
RUN := go test -v -count 1 -timeout
REPORT = -report $(CURDIR)/bench/results/$@
kubelets: kubeapi bin/kubenode ## a Deployment on KUBELETS kubelets, directly and by proxies: bench/results/kubelets.txt
	cd bench/kubeapi && CGO_ENABLED=0 go vet ./cmd/kubenode
	$(RUN) 20m -run TestKubelets ./bench/clients/kubelets -kubelets $(KUBELETS) $(REPORT).txt
linearizability: kubeapi ## consistent reads against acknowledged writes, 90 s in each of seven settings
	$(RUN) 25m -run TestLinearizable ./bench/clients/linearizability -linearize 90s
faults: kubeapi ## everything that can go wrong, 27 ways, with 500 watchers, and restarts under 2,000 informers: bench/results/faults.md
	$(RUN) 60m -run 'TestFaults|TestRestarts' ./bench/faults -everything -watchers 500 -informers 2000 $(REPORT).md
hostile: kubeapi ## what hostile clients do to the proxy and its other users, 10 s each: bench/results/hostile.md
	$(RUN) 180m ./bench/hostile -length 10s $(REPORT).md

demo: build kubeapi kubectl ## 200 informers directly and through the proxy, what both cost; Ctrl-C ends it
	@go build -o bin/demo ./bench/demo
	@exec bin/demo
bench: build kubeapi ## what reads cost at apiserver, proxy and a floor; BEFORE=BINARY adds a proxy, ONLY=REGEXP selects
	@go build -o bin/bench-load ./bench/load
	@set -o pipefail; bin/bench-load --only '$(ONLY)' --before '$(BEFORE)' | \
		tee $(if $(ONLY)$(BEFORE),,bench/results/bench.txt)
# The programs of make clients that are built here.
PROGRAMS := k9s stern helm cache.test kubectl-v1.35.8 kubectl-$(PREVIOUS) kubectl-$(KUBE_VERSION)
bin/programs/k9s bin/programs/stern bin/programs/cache.test: bin/programs/%: Makefile
bin/programs/k9s:
	cd / && GOBIN=$(CURDIR)/bin/programs go install github.com/derailed/k9s@v0.50.16
bin/programs/stern:
	cd / && GOBIN=$(CURDIR)/bin/programs go install github.com/stern/stern@v1.34.0
bin/programs/cache.test: # the suite of controller-runtime's package cache
	go test -C $$(cd / && go mod download -json sigs.k8s.io/controller-runtime@v0.25.2 | sed -n 's/^\t"Dir": "\(.*\)",/\1/p') \
		-c -o $(CURDIR)/$@ ./pkg/cache
bin/programs/helm: bench/chart/go.mod
	cd bench/chart && go build -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm
bin/programs/kubectl-v%: bench/kubeapi/build
	bench/kubeapi/build kubectl v$* $@
clients: build kubeapi bin/python-client bin/node-client $(PROGRAMS:%=bin/programs/%)
clients: ## programs that people use, at 30,000 pods, directly and through the proxy: bench/results/clients.md
	cd bench/programs && go vet . && go build -o ../../bin/bench-programs .
	bin/bench-programs --report bench/results/clients.md

# The crowd has a connection for each client. Its results stay only at full size.
SCALE ?= 1
scale: build kubeapi kubectl bin/kwok ## 5,000 nodes and 150,000 pods, directly and by proxies: bench/results/scale; SCALE=0.1 is a tenth
	cd bench/scale && go build -o ../../bin/bench-scale .
	ulimit -n $$(ulimit -Hn) && bin/bench-scale --scale $(SCALE) --out $(if $(filter 1,$(SCALE)),bench/results/scale,bin/scale)
# The picture shows the version that the chart has.
screenshot: kubeapi bin/chromium ## bench/results/page.png: the status page after two minutes of work
	$(GO_BUILD) -ldflags "-X main.version=v$$(sed -n 's/^version: //p' charts/watchproxy/Chart.yaml)" \
		-o bin/watchproxy-picture ./cmd/watchproxy
	cd bench/page && go test -tags verify -count 1 -run TestPicture . \
		-picture $(CURDIR)/bench/results/page.png -proxy $(CURDIR)/bin/watchproxy-picture

# A release has no symbols. RELEASE has what is published, bin/build what it is made of.
RELEASE := bin/release
BINARIES := $(foreach platform,linux-amd64 linux-arm64 darwin-amd64 darwin-arm64,bin/build/$(platform)/watchproxy)
bin/build/%/watchproxy: always
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(GO_BUILD) -buildvcs=false \
		-ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/watchproxy
licenses: $(filter %-amd64/watchproxy,$(BINARIES)) ## bin/build/licenses: licence texts; refuses unknown licences
image: licenses $(BINARIES) ## bin/release/image.tar: an OCI image for amd64 and arm64; prints its digest
archives: licenses $(BINARIES)
chart-package: ## bin/release/watchproxy-VERSION.tgz: the chart
release: ## bin/release: all that is published: archives for Linux and macOS, image, chart, what is in them, checksums
reproducible: ## two releases of the last commit, made in two directories, are equal bit for bit
release-notes: ## the changelog's section of VERSION, or of what is unreleased
login: ## log in to REGISTRY as USERNAME with the password in $$TOKEN, for make push
push: ## push image and chart of bin/release to IMAGE and CHARTS; digests go to bin/build/image.digest and chart.digest
licenses image archives chart-package release reproducible release-notes login push:
	@VERSION="$(VERSION)" COMMIT="$(COMMIT)" RELEASE="$(RELEASE)" .tools/image/release $@
TEST_IMAGE := cd .tools/image && go vet . && go test -count 1 . -image $(CURDIR)/$(RELEASE)/image.tar
image-test: image ## run the image's binary as the image's user in the image's root; compiles everything twice
	$(TEST_IMAGE)
release-test: release ## the release is complete, its binary runs, and make push pushes what it has
	$(TEST_IMAGE) -release $(CURDIR)/$(RELEASE)

FUZZTIME ?= 10s
fuzz: ## every fuzz target for FUZZTIME (10s) each
	@grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' watchcache proxy cmd config bench | sort | \
	sed 's|/[^/]*:func||' | while read -r folder target; do \
		echo "== $$folder $$target"; \
		go test $(TAGS) -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$folder </dev/null || exit; done
VULN_HOST ?= vuln.go.dev
vuln: ## known vulnerabilities in what the proxy uses, if vuln.go.dev can be reached; VULN_REQUIRED=1 fails otherwise
	@timeout 5 bash -c '</dev/tcp/$(VULN_HOST)/443' 2>/dev/null || { \
		echo "vuln: NOT CHECKED: the vulnerability database at https://$(VULN_HOST) cannot be reached"; \
		exit $(if $(VULN_REQUIRED),1,0); }; \
	timeout 5m go tool -modfile=.tools/go.mod govulncheck -db https://$(VULN_HOST) $(PACKAGES)

clean: ## remove bin/
	rm -rf bin
