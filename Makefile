# watchproxy. `make demo` shows it, `make test` tests it; both need Go, git, gcc and make only.

SHELL := /bin/bash
comma := ,
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# Releases have no symbols.
RELEASE_LDFLAGS := -s -w $(LDFLAGS)
# The tag removes a page of templates from gRPC. Without templates, the linker drops the methods that nothing calls, which are a
# third of the binary. Tests use the tag, too, so that nothing is compiled twice.
TAGS := -tags grpcnotrace
GO_BUILD := CGO_ENABLED=0 go build -trimpath $(TAGS)
# Releases carry the time of their commit, so that the same commit makes the same bytes.
EPOCH = $(shell git log -1 --format=%ct)
# RELEASE has what is published, BUILD what it is made of.
RELEASE := bin/release
BUILD := bin/build
IMAGE ?= ghcr.io/watchproxy/watchproxy
CHARTS ?= oci://ghcr.io/watchproxy/charts
# A chart's version must be SemVer. Charts of commits that are no releases sort below all releases.
RELEASED := $(shell grep -Ex 'v[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?' <<<'$(VERSION)')
CHART_VERSION = $(if $(RELEASED),$(VERSION:v%=%),0.0.0-g$(VERSION))
# kube-apiserver's version, which the test upstream reports as its own. The Go module does not tell the commit.
KUBE_VERSION := v1.37.2
kube_ldflags = -s -w $(foreach pkg,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $(pkg).gitVersion=$(1) -X $(pkg).gitMajor=1 -X $(pkg).gitMinor=$(word 2,$(subst ., ,$(1))) -X $(pkg).gitTreeState=archive -X $(pkg).gitCommit=unknown)
FUZZTIME ?= 10s
# What a proxy is made of.
PACKAGES = $(shell go list ./... | grep -v /bench/)
LINT := go tool -modfile=.tools/go.mod golangci-lint
LINT_ABOVE := go tool -modfile=$(CURDIR)/.tools/go.mod golangci-lint --config $(CURDIR)/.golangci.yml

.DEFAULT_GOAL := help
.PHONY: help build licenses image image-test chart-package archives release release-test reproducible release-notes login push screenshot always kubeapi kubectl lint fmt test test-units test-budgets test-servers test-modules test-chart test-page test-image verify verify-product verify-servers verify-modules chart rights scopes kubelets tiers compat forms matrix linearizability \
	demo bench faults restarts extremes hostile fuzz vuln clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/watchproxy
	$(GO_BUILD) -ldflags "$(LDFLAGS)" -o bin/watchproxy ./cmd/watchproxy

kubeapi: bin/kubeapi ## bin/kubeapi: a real kube-apiserver and etcd in one process, for tests and the demo

kubectl: bin/kubectl ## bin/kubectl

.SECONDEXPANSION:
bin/kubeapi bin/kubectl bin/kubenode: bin/%: $$(wildcard bench/kubeapi/cmd/$$*/*.go) bench/kubeapi/go.mod bench/kubeapi/go.sum
	@[ -e $@ ] || echo "building $@: the first build compiles Kubernetes, about ten minutes on two cores"
	cd bench/kubeapi && CGO_ENABLED=0 go build -buildvcs=false -ldflags "$(call kube_ldflags,$(KUBE_VERSION))" -o ../../$@ ./cmd/$*

# The minors that make compat tests, oldest first, each with the latest patch that the module proxy has. PREVIOUS is upgraded to
# KUBE_VERSION.
PREVIOUS := v1.36.5
COMPAT := v1.33.13 v1.34.12 v1.35.8 $(PREVIOUS) $(KUBE_VERSION)

bin/kubeapi-$(KUBE_VERSION): bin/kubeapi
	ln -sf kubeapi $@

bin/kubeapi-v%: bench/kubeapi/modfile $(wildcard bench/kubeapi/cmd/kubeapi/*.go)
	@rm -rf $(BUILD)/kubeapi-v$* && mkdir -p $(BUILD)/kubeapi-v$*/cmd && cp -r bench/kubeapi/cmd/kubeapi $(BUILD)/kubeapi-v$*/cmd
	bench/kubeapi/modfile v$* >$(BUILD)/kubeapi-v$*/go.mod
	cd $(BUILD)/kubeapi-v$* && go mod tidy && CGO_ENABLED=0 go build -buildvcs=false -ldflags "$(call kube_ldflags,v$*)" -o $(CURDIR)/$@ ./cmd/kubeapi

# bench/kubeapi and bench/chart are vetted (by test, once they are built) and checked for format, but not linted: the linter
# would type-check all of Kubernetes, Helm and Prometheus.
lint: ## formatters and linters
	$(LINT) run
	cd bench/page && $(LINT_ABOVE) run
	cd .tools/image && $(LINT_ABOVE) run
	$(LINT) fmt --diff bench/kubeapi bench/chart
	go tool -modfile=.tools/image/go.mod actionlint

fmt: ## format everything
	$(LINT) fmt . bench/kubeapi bench/chart .tools/image

# The gate judges values, never time, memory or luck, so red means a bug. It begins with what is cheapest. Proxies that run as
# processes have the race detector, and so do the tests of what they are made of. A test that fails, and passes when it runs
# again alone, is no failure, but the last lines name it: mend it, or move it to make verify.
SEED := $(or $(WATCHPROXY_SEED),1)
test: export WATCHPROXY_SEED = $(SEED)
test: ## the gate: lint, then all tests that judge values
	@rm -rf bin/gate; mkdir -p bin/gate; began=$$SECONDS; code=0; \
	for step in lint test-units test-budgets test-servers test-modules; do \
		at=$$SECONDS; $(MAKE) --no-print-directory -j 1 $$step || code=$$?; echo "gate: $$step took $$((SECONDS - at)) seconds"; [ $$code = 0 ] || break; done; \
	echo "gate: $$([ $$code = 0 ] && echo passed || echo failed) after $$((SECONDS - began)) seconds"; \
	cat bin/gate/*.flaky 2>/dev/null | sed -n '/: \([0-9]*\) runs, \1 failures/d; s/^\(.*\): [0-9]* runs.*/FLAKY \1 $(SEED)/p'; exit $$code

# gate runs the packages $(2) with the flags $(3), and remembers in bin/gate/$(1).flaky what failed once. The linters have
# vetted already what it compiles.
GOTESTSUM := go tool -modfile=$(CURDIR)/.tools/go.mod gotestsum
gate = mkdir -p $(CURDIR)/bin/gate && $(GOTESTSUM) --format pkgname --format-hide-empty-pkg --rerun-fails=1 --rerun-fails-max-failures=3 \
	--rerun-fails-report=$(CURDIR)/bin/gate/$(1).flaky --packages='$(2)' -- $(TAGS) -vet=off -count=1 -shuffle=$(SEED) -timeout 10m $(3)

# Without this setting, each test binary with the race detector takes a second longer to end.
test-units: export GORACE = atexit_sleep_ms=0
test-units:
	@$(call gate,units,$(PACKAGES),-race)

# The race detector allocates, and makes pools forget. So tests that count allocations are in files without it.
BUDGETS = $(shell grep -rl --include='*_test.go' '^//go:build !race' watchcache proxy cmd config)
names = -run '^($(subst $() ,|,$(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' $(1))))$$'
folders = $(sort $(dir $(1:%=./%)))
test-budgets:
	@$(call gate,budgets,$(call folders,$(BUDGETS)),$(call names,$(BUDGETS)))

# These have whole suites of their own in make verify. Two packages run at a time, because each waits
# for its kube-apiserver for a third of its time.
RIGS := faults hostile demo clients/linearizability clients/outage clients/kubelets
test-servers: export WATCHPROXY_RACE = 1
test-servers: kubeapi kubectl
	cd bench/kubeapi && CGO_ENABLED=0 go vet ./cmd/kubeapi ./cmd/kubectl
	@$(call gate,servers,$(filter-out $(addprefix %/bench/,$(RIGS)),$(shell go list ./bench/...)),-p 2)

test-modules: kubeapi bin/chromium
	@$(MAKE) --no-print-directory -j 2 --output-sync test-chart test-page test-image

test-chart:
	@cd bench/chart && go vet ./... && go tool helm lint --strict --quiet ../../charts/watchproxy && $(call gate,chart,./...)

test-page:
	@cd bench/page && $(call gate,page,.)

test-image:
	@cd .tools/image && $(call gate,image,.)

# The suites of make verify, in this order. Each is a target. Tests that judge time run alone. The other tests of the product
# run again from a new seed, those of bench/conformance in forms, and those of bench/access in matrix.
VERIFIED := go test -tags grpcnotrace$(comma)verify -count=1 -shuffle=on -p 1 -timeout 30m
SUITES := verify-product verify-servers verify-modules $(RIGS:%=verify-%) tiers scopes rights forms matrix fuzz
verify: ## what judges time, memory and luck, from a new seed, one suite after another: bench/results/verify.md; SUITES='tiers fuzz' runs only these
	.ci/verify $(SUITES)

UNRACED = $(shell grep -rlE --include='*_test.go' '^//go:build .*!race' watchcache proxy cmd config)
TIMED = $(shell grep -rl --include='*_test.go' '^//go:build .*verify' watchcache proxy cmd config)
verify-product:
	$(VERIFIED) -p 2 -race $(subst -run,-skip,$(call names,$(TIMED))) $(PACKAGES)
	$(VERIFIED) -race $(call names,$(TIMED)) $(call folders,$(TIMED))
	$(VERIFIED) $(call names,$(UNRACED)) $(call folders,$(UNRACED))

verify-servers: kubeapi kubectl
	WATCHPROXY_RACE=1 $(VERIFIED) $(filter-out $(addprefix %/bench/,$(RIGS) conformance access),$(shell go list ./bench/...))

verify-modules: kubeapi bin/python-client bin/node-client bin/chromium bin/axe.min.js
	cd bench/chart && $(VERIFIED) ./...
	cd bench/page && $(VERIFIED) .

verify-clients/kubelets: bin/kubenode

$(RIGS:%=verify-%): verify-%: kubeapi kubectl
	WATCHPROXY_RACE=1 $(VERIFIED) ./bench/$*

chart: kubeapi ## the Helm chart: lint, all of its objects shown to a real apiserver, alerts, the proxy with its rights
	cd bench/chart && go vet ./... && go tool helm lint --strict --quiet ../../charts/watchproxy && go test -shuffle=on -timeout 10m ./...

rights: kubeapi kubectl ## the differential suite through a proxy with the rights that the chart gives it with cacheEverything
	cd bench/chart && go tool helm template watchproxy ../../charts/watchproxy --namespace watchproxy --kube-version $(KUBE_VERSION) \
		--set cacheEverything=true --show-only templates/serviceaccount.yaml --show-only templates/rbac.yaml >../../bin/rights.yaml
	go test $(TAGS) -shuffle=on -timeout 15m -count 1 ./bench/conformance -rbac $(CURDIR)/bin/rights.yaml

scopes: kubeapi kubectl ## the differential suite through a proxy that may read only some namespaces, and through a node's proxy
	go test $(TAGS) -shuffle=on -timeout 20m -count 1 ./bench/conformance -scoped -rbac testdata/namespaces.yaml
	go test $(TAGS) -shuffle=on -timeout 20m -count 1 ./bench/conformance -scoped

# The controllers, the scheduler and the kubelet take some six minutes to compile, so this is no part of make test.
KUBELETS ?= 8
kubelets: kubeapi bin/kubenode ## a Deployment's life on KUBELETS real kubelets without containers, directly and through proxies: bench/results/kubelets.txt
	cd bench/kubeapi && CGO_ENABLED=0 go vet ./cmd/kubenode
	go test -v -count 1 -timeout 20m -run TestKubelets ./bench/clients/kubelets -kubelets $(KUBELETS) -report $(CURDIR)/bench/results/kubelets.txt

tiers: kubeapi ## the differential suite through two proxies, one behind the other; of similar collections a third of the rows, as in test
	go test $(TAGS) -shuffle=on -timeout 15m -count 1 ./bench/conformance -tiers 2

compat: bin/kubeapi-$(PREVIOUS) kubeapi $(COMPAT:%=bin/kubeapi-%) kubectl ## the differential suite against five minors of kube-apiserver: bench/results/compat.md
	WATCHPROXY_KUBEAPI=$(CURDIR)/bin/kubeapi-$(PREVIOUS) WATCHPROXY_KUBEAPI_NEXT=$(CURDIR)/bin/kubeapi go test $(TAGS) -count 1 -timeout 5m -run '^TestRollingUpgrade$$' ./bench/clients/outage
	go run ./bench/compat --versions $(subst $() ,$(comma),$(strip $(COMPAT))) --report bench/results/compat.md

forms: kubeapi ## the whole differential suite: all rows, also of similar collections, each in every encoding, plain and gzip; ten minutes
	go test -tags grpcnotrace,verify -shuffle=on -timeout 60m -count 1 ./bench/conformance -all-forms

matrix: kubeapi kubectl ## tests of access, with the whole matrix: all callers, all reads; test asks about an eighth of them
	go test -tags grpcnotrace,verify -shuffle=on -timeout 20m -count 1 ./bench/access -everything

# The picture shows the version that the chart has.
screenshot: kubeapi bin/chromium ## bench/results/page.png: the status page after two minutes of work
	$(GO_BUILD) -ldflags "-X main.version=v$$(sed -n 's/^version: //p' charts/watchproxy/Chart.yaml)" -o bin/watchproxy-picture ./cmd/watchproxy
	cd bench/page && go test -tags verify -count 1 -run TestPicture . -picture $(CURDIR)/bench/results/page.png -proxy $(CURDIR)/bin/watchproxy-picture

linearizability: kubeapi ## consistent reads against acknowledged writes, 90 s in each of seven settings: at least 100,000
	go test -v -run TestLinearizable -timeout 25m -count 1 ./bench/clients/linearizability -linearize 90s

FAULTS = @mkdir -p bench/results; go test -v -count 1 -timeout 60m ./bench/faults -report $(CURDIR)/bench/results/$@.md

faults: kubeapi ## everything that can go wrong, 27 ways, with 500 watchers: bench/results/faults.md
	$(FAULTS) -run TestFaults -everything -watchers 500

restarts: kubeapi ## the proxy and the apiserver restart under 2,000 informers: bench/results/restarts.md
	$(FAULTS) -run TestRestarts -everything -informers 2000

extremes: kubeapi ## an object of 1.5 MB, 100 resources with one object, one with 300,000: bench/results/extremes.md
	$(FAULTS) -run TestExtremes -kinds 100 -objects 300000

hostile: kubeapi ## what hostile clients do to the proxy and its other users, 10 s each: bench/results/hostile.md
	@mkdir -p bench/results; go test -v -count 1 -timeout 180m ./bench/hostile -length 10s -report $(CURDIR)/bench/results/$@.md

demo: build kubeapi kubectl ## 200 informers directly and through the proxy, what both cost, live figures; Ctrl-C ends it
	@go build -o bin/demo ./bench/demo
	@exec bin/demo

bench: build kubeapi ## what reads cost: the apiserver, the proxy and a floor side by side; half an hour; BEFORE=BINARY runs another proxy too, ONLY=REGEXP less
	@go build -o bin/bench-load ./bench/load
	@mkdir -p bench/results; set -o pipefail; bin/bench-load --only '$(ONLY)' --before '$(BEFORE)' | tee $(if $(ONLY)$(BEFORE),,bench/results/bench.txt)

$(BUILD)/%/watchproxy: always
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(GO_BUILD) -buildvcs=false -ldflags "$(RELEASE_LDFLAGS)" -o $@ ./cmd/watchproxy

bin/go-licenses: .tools/go.mod
	cd .tools && go build -buildvcs=false -o ../$@ github.com/google/go-licenses/v2

# go-licenses reads the modules in Go's cache, where they are once the binaries are built. It also asks their hosts for links to
# the licences. Nothing here uses those, so it gets an HTTP proxy that answers nothing. A system may have modules of its own.
LICENSES_ALLOWED := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT
licenses: bin/go-licenses $(foreach os,linux darwin,$(BUILD)/$(os)-amd64/watchproxy) ## bin/build/licenses: the licence texts of all that a release consists of; refuses unknown licences
	@cd .tools/image && go build -buildvcs=false -o /dev/null .
	@set -eo pipefail; export LC_ALL=C CGO_ENABLED=0 HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9; \
	dir=$(CURDIR)/$(BUILD)/licenses; rm -rf $$dir; mkdir -p $$dir/std; cp "$$(go env GOROOT)/LICENSE" $$dir/std; echo std,BSD-3-Clause >$$dir.rows; \
	of() { $(CURDIR)/bin/go-licenses check $$1 --allowed_licenses=$(LICENSES_ALLOWED) 2>$$dir.log && \
		$(CURDIR)/bin/go-licenses save $$1 --save_path $$dir.new --force 2>>$$dir.log && cp -r $$dir.new/. $$dir && rm -r $$dir.new && \
		$(CURDIR)/bin/go-licenses report $$1 2>>$$dir.log | cut -d, -f1,3 >>$$dir.rows || { cat $$dir.log >&2; exit 1; }; }; \
	for os in linux darwin; do GOOS=$$os of ./cmd/watchproxy; done; \
	cd .tools/image && of golang.org/x/crypto/x509roots/fallback/bundle; sort -u $$dir.rows >$$dir/licenses.csv

# Tagged as the chart asks for it: releases without the v.
image: licenses $(foreach platform,linux-amd64 linux-arm64 darwin-amd64 darwin-arm64,$(BUILD)/$(platform)/watchproxy) ## bin/release/image.tar: an OCI image for amd64 and arm64, and what is in it; prints its digest
	@mkdir -p $(RELEASE)
	cd .tools/image && go run -buildvcs=false . -version "$(VERSION)" -commit "$(COMMIT)" -created "$$(date -u -d @$(EPOCH) +%FT%TZ)" \
		-name "$(IMAGE):$(VERSION:v%=%)" -output $(CURDIR)/$(RELEASE)/image.tar -sbom $(CURDIR)/$(RELEASE)/sbom.cdx.json -licenses $(CURDIR)/$(BUILD)/licenses \
		$(foreach os,linux darwin,$(foreach arch,amd64 arm64,$(os)/$(arch)=$(CURDIR)/$(BUILD)/$(os)-$(arch)/watchproxy))

image-test: image ## run the image's binary as the image's user in the image's root; compiles everything twice
	cd .tools/image && go vet . && go test -count 1 . -image $(CURDIR)/$(RELEASE)/image.tar

# The chart in the repository says that it is unreleased and a prerelease, and names an image. Releases are corrected. Their
# documents are read outside of a checkout, on Artifact Hub for example: they install from the registry, and their links are URLs.
SITE := https://github.com/watchproxy/watchproxy/blob
chart-package: ## bin/release/watchproxy-VERSION.tgz: the chart
	@set -e; dir=$(BUILD)/chart; rm -rf $$dir; mkdir -p $$dir $(RELEASE); cp -r charts/watchproxy LICENSE $$dir; mv $$dir/LICENSE $$dir/watchproxy; \
	sed -i 's|\(image: ghcr.io/watchproxy/watchproxy\):.*|\1:$(VERSION:v%=%)|' $$dir/watchproxy/Chart.yaml; \
	if [ "$(RELEASED)" ]; then sed -i '/^  watchproxy.dev\/unreleased:/d' $$dir/watchproxy/Chart.yaml; \
		[[ $(VERSION) == *-* ]] || sed -i '/^  artifacthub.io\/prerelease:/d' $$dir/watchproxy/Chart.yaml; \
		sed -i -e '/^<!-- unreleased -->$$/,/^<!-- released -->$$/d' -e '/^<!-- checkout -->$$/,/^<!-- end -->$$/d' $$dir/watchproxy/README.md; \
		sed -i -E -e 's#^(    helm [a-z]+ watchproxy) charts/watchproxy#\1 $(CHARTS)/watchproxy --version $(CHART_VERSION)#' \
			-e 's#\]\(\.\./\.\./#](@/#g' -e 's#\]\(([[:alnum:]_./-]+)([)\#])#](@/charts/watchproxy/\1\2#g' -e 's#\]\(@/#]($(SITE)/$(VERSION)/#g' $$dir/watchproxy/*.md; fi; \
	find $$dir -exec touch -d @$(EPOCH) {} +
	cd bench/chart && go tool helm package $(abspath $(BUILD))/chart/watchproxy --version "$(CHART_VERSION)" --app-version "$(VERSION:v%=%)" --destination $(abspath $(RELEASE))

archives: licenses $(foreach platform,linux-amd64 linux-arm64 darwin-amd64 darwin-arm64,$(BUILD)/$(platform)/watchproxy)
	@set -e; mkdir -p $(RELEASE); for platform in linux-amd64 linux-arm64 darwin-amd64 darwin-arm64; do \
		name=watchproxy-$(VERSION)-$$platform; dir=$(BUILD)/$$name; rm -rf $$dir; mkdir -p $$dir; \
		cp -r LICENSE README.md CHANGELOG.md $(BUILD)/licenses $(BUILD)/$$platform/watchproxy $$dir; \
		tar -C $(BUILD) --sort=name --mtime=@$(EPOCH) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c $$name | gzip -9n >$(RELEASE)/$$name.tar.gz; \
		rm -r $$dir; done

release: ## bin/release: all that a release publishes: archives for Linux and macOS, the image, the chart, what is in them, checksums
	rm -rf $(RELEASE)
	$(MAKE) --no-print-directory archives image chart-package
	cd $(RELEASE) && LC_ALL=C sha256sum *.tar.gz *.tgz image.tar sbom.cdx.json >SHA256SUMS && cat SHA256SUMS

release-test: release ## the release is complete, its binary runs, and what make push pushes to a registry on loopback is what it has
	cd .tools/image && go vet . && go test -count 1 . -image $(CURDIR)/$(RELEASE)/image.tar -release $(CURDIR)/$(RELEASE)

# Elsewhere, so that no path of this directory can be in it.
reproducible: ## two releases of the last commit, made in two directories, are equal bit for bit
	@[ -z "$$(git status --porcelain)" ] || { echo "reproducible: commit your changes first: the second release is made from a clone" >&2; exit 1; }
	$(MAKE) --no-print-directory release
	@set -e; dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; git clone -q . $$dir/clone; \
	$(MAKE) --no-print-directory -C $$dir/clone release VERSION="$(VERSION)" >$$dir/log || { cat $$dir/log; exit 1; }; \
	diff $(RELEASE)/SHA256SUMS $$dir/clone/$(RELEASE)/SHA256SUMS && echo "reproducible: both releases are equal"

CHANGELOG ?= CHANGELOG.md
release-notes: ## the changelog's section of VERSION, or of what is unreleased
	@awk -v want="$(if $(RELEASED),$(VERSION:v%=%),Unreleased)" '/^## / { name = $$2; gsub(/[][]/, "", name); on = name == want; next } on { text = text $$0 "\n" } \
		END { gsub(/^\n+|\n+$$/, "", text); if (text == "") { print "release-notes: $(CHANGELOG) has no section for " want > "/dev/stderr"; exit 1 } print text }' $(CHANGELOG)

bin/crane: .tools/image/go.mod
	cd .tools/image && go build -buildvcs=false -o ../../$@ github.com/google/go-containerregistry/cmd/crane

# crane stores the login where docker does. Helm, cosign and GitHub's attestations find it there.
login: bin/crane ## log in to REGISTRY as USERNAME with the password in $$TOKEN, for make push
	@printenv TOKEN | bin/crane auth login "$(REGISTRY)" --username "$(USERNAME)" --password-stdin

push: bin/crane ## push the image and the chart of bin/release to IMAGE and CHARTS; their digests go to bin/build/image.digest and chart.digest
	@set -eo pipefail; mkdir -p $(BUILD); dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; tar -xf $(RELEASE)/image.tar -C $$dir; \
	bin/crane push $$dir "$(IMAGE):$(VERSION:v%=%)" | tee /dev/stderr | sed 's/.*@//' >$(BUILD)/image.digest; \
	cd bench/chart; go tool helm push $(CURDIR)/$(RELEASE)/watchproxy-$(CHART_VERSION).tgz $(CHARTS) $(HELM_PUSH_FLAGS) 2>&1 | \
		tee /dev/stderr | sed -n 's/^Digest: //p' >$(CURDIR)/$(BUILD)/chart.digest; grep -q sha256: $(CURDIR)/$(BUILD)/chart.digest

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

# axe-core (MPL-2.0), which the test of the status page runs in the browser and nothing else contains. It comes by npm. Where
# npm or its registry cannot be reached, the test says so and checks the rest.
AXE := axe-core@4.14.1
AXE_SHA256 := 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
bin/axe.min.js:
	@mkdir -p bin; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	command -v npm >/dev/null || { echo "axe: NOT CHECKED: npm, which fetches $(AXE), is missing"; exit; }; \
	(cd "$$dir" && timeout 2m npm pack --silent $(AXE)) >/dev/null 2>&1 || { echo "axe: NOT CHECKED: npm cannot fetch $(AXE)"; exit; }; \
	tar -xzf "$$dir"/axe-core-*.tgz -C "$$dir" package/axe.min.js && \
	echo "$(AXE_SHA256)  $$dir/package/axe.min.js" | sha256sum --check --quiet && mv "$$dir/package/axe.min.js" $@

# Python's and Node's clients (Apache-2.0), which the test of the sidecar runs and nothing else contains: Debian's package with
# all that it needs and that is not there, and npm's. Where they cannot be fetched, the test says so and checks the rest.
bin/python-client:
	@mkdir -p bin/python-client.d/partial && cd bin/python-client.d && \
	get="apt-get install -qqy --no-install-recommends --download-only -o Debug::NoLocking=1 -o Dir::Cache::archives=$$PWD python3-kubernetes" && \
	{ { $$get || { apt-get update -q && $$get; }; } >/dev/null 2>&1 || { echo "Python: NOT CHECKED: python3-kubernetes cannot be fetched"; exit; }; } && \
	for package in *.deb; do [ ! -e "$$package" ] || { dpkg-deb -x $$package root && rm $$package; } || exit; done && \
	printf '%s\n' '#!/bin/sh' 'root=$$(dirname "$$(readlink -f "$$0")")/python-client.d/root' 'export PYTHONPATH=$$root/usr/lib/python3/dist-packages' \
		'[ -x /usr/bin/python3 ] && exec /usr/bin/python3 "$$@"' \
		'export PYTHONHOME=$$root/usr LD_LIBRARY_PATH=$$root/usr/lib/$$(uname -m)-linux-gnu:$$root/lib/$$(uname -m)-linux-gnu' \
		'exec $$root/usr/bin/python3 "$$@"' >../python-client.new && chmod +x ../python-client.new && mv ../python-client.new $(CURDIR)/$@

bin/node-client:
	@mkdir -p bin; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	command -v npm >/dev/null || { echo "Node: NOT CHECKED: npm is missing"; exit; }; \
	(cd "$$dir" && timeout 2m npm install --silent --no-audit --no-fund --ignore-scripts @kubernetes/client-node@1.4.0) >/dev/null 2>&1 || \
		{ echo "Node: NOT CHECKED: npm cannot fetch @kubernetes/client-node"; exit; }; \
	mv "$$dir" $@ && chmod 755 $@

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@set -e; for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' watchcache proxy cmd config bench | xargs -n 1 dirname | sort -u); do \
		list=$$(go test $(TAGS) -list '^Fuzz' ./$$pkg); \
		for target in $$(grep ^Fuzz <<<"$$list"); do \
			echo "== $$pkg $$target"; go test $(TAGS) -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$pkg; \
		done; \
	done

# The database of known vulnerabilities is not on every machine's network: then nothing is checked, and nothing fails.
VULN_HOST ?= vuln.go.dev
vuln: ## known vulnerabilities in what the proxy uses, where https://vuln.go.dev can be reached; VULN_REQUIRED=1 fails elsewhere
	@if ! timeout 5 bash -c '</dev/tcp/$(VULN_HOST)/443' 2>/dev/null; then \
		echo "vuln: NOT CHECKED: the vulnerability database at https://$(VULN_HOST) cannot be reached"; exit $(if $(VULN_REQUIRED),1,0); fi; \
	timeout 5m go tool -modfile=.tools/go.mod govulncheck -db https://$(VULN_HOST) $(PACKAGES)

clean: ## remove bin/
	rm -rf bin
