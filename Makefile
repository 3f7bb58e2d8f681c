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
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

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

.PHONY: check
check: format-check lint vet generated ## Format, lint, vet, generated files clean

.PHONY: format
format: ## Format the code
	gofmt -w $(GOFILES)

.PHONY: format-check
format-check:
	@unformatted=$$(gofmt -l $(GOFILES)); if [ -n "$$unformatted" ]; then echo "not formatted (make format):"; echo "$$unformatted"; exit 1; fi

.PHONY: lint
lint: ## Lint, import rules included
	$(TOOL) golangci-lint run ./...

.PHONY: vet
vet: ## Vet the code
	$(GO) vet ./...

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
