# Switchyard. `make help` lists the targets; CONTRIBUTING.md says what each is for.

GO    ?= go
SHELL := bash -o pipefail
# Versions are stamped below; Go's own stamp would link everything anew at each commit.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Programs panic when they start with a version that is none (component-base/metrics), such as a bare commit.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || echo v0.0.0-g$$(git describe --always --dirty 2>/dev/null || echo unknown))
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
# The commit's time, not now's: the same source gives the same bytes.
DATE    ?= $(shell TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
STAMP   := k8s.io/component-base/version
LDFLAGS := -s -w -X $(STAMP).gitVersion=$(VERSION) -X $(STAMP).gitCommit=$(COMMIT) -X $(STAMP).buildDate=$(DATE)

# Without x/net/trace, through which gRPC brings html/template along: a program with templates can call any method
# by name, so the linker keeps them all (58 MB instead of 38, and the node plugin's memory with it).
TAGS    := grpcnotrace

# The program that CDI specs of nvidia-container-toolkit have the container runtime call.
HOOK    := github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook

TOOLS    := build/tools
LINTER   := $(abspath $(TOOLS)/golangci-lint)
# Modules of the repository; the product is the first.
MODULES  := . test/localcluster test/tools
# Packages that take values and return values; see docs/design/layout.md.
PURE     := $(wildcard api/v1alpha1 pkg/device pkg/health pkg/topology pkg/topology/smi pkg/mig pkg/resourcemodel \
              pkg/placement pkg/fragmentation pkg/demand pkg/defrag pkg/gang \
              pkg/trace pkg/trace/cluster pkg/trace/packing pkg/trace/policy pkg/trace/replay)
COVERAGE := 90

##@ General

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET"} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: deps ## Build the programs into bin/
	$(GO) build -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/ ./cmd/... $(HOOK)
	$(GO) build -C test/localcluster -o ../../bin/localcluster .

.PHONY: clean
clean: ## Remove what was built, and the local cluster
	@if [ -x bin/localcluster ]; then bin/localcluster down; fi
	rm -rf bin build

##@ Try it

.PHONY: demo
demo: build ## Show the trap and the way out on a real cluster with simulated GPUs (KEEP=1 leaves it up)
	$(GO) run ./demo

.PHONY: demo-sharing
demo-sharing: build ## Show partitions, shares by MPS, and a sick GPU drained, on the same cluster (KEEP=1 leaves it up)
	$(GO) run ./demo sharing

.PHONY: cluster-up
cluster-up: build ## Start the local cluster: two nodes, no GPUs yet
	bin/localcluster up

.PHONY: cluster-down
cluster-down: build ## Remove the local cluster
	bin/localcluster down

##@ Check

.PHONY: test
test: lint verify test-unit test-integration test-e2e ## Run everything that CI runs

.PHONY: test-unit
test-unit: deps ## Run the unit tests; pure packages must be covered to 90 %
	@mkdir -p build
	$(GO) test -coverprofile=build/cover.out ./...
	$(GO) test -C test/localcluster ./...
	@awk -v minimum=$(COVERAGE) -v packages="$(PURE)" -f test/scripts/coverage.awk build/cover.out

.PHONY: test-integration
test-integration: cluster-programs ## Run the tests against a real API server
	$(GO) test -tags integration -timeout 20m -parallel 6 ./test/integration/...

.PHONY: test-e2e
test-e2e: cluster-programs ## Run the tests on a real cluster with simulated GPUs
	$(GO) build -tags '$(TAGS),crashpoints' -o build/crashpoints/ ./cmd/switchyard-sim
	GO='$(GO)' test/scripts/e2e.sh

.PHONY: lint
lint: deps $(LINTER) ## Check style, logging calls and the direction of imports
	$(LINTER) run ./...
	cd test/localcluster && $(LINTER) run --config ../../.golangci.yml ./...

.PHONY: format
format: $(LINTER) ## Format the Go code
	$(LINTER) fmt ./...
	cd test/localcluster && $(LINTER) fmt --config ../../.golangci.yml ./...

.PHONY: verify
verify: deps $(LINTER) ## Check generated files, modules, manifests, links, and the linter itself
	GO='$(GO)' test/scripts/verify-generated.sh
	@for module in $(MODULES); do echo "go mod tidy -diff in $$module"; $(GO) -C $$module mod tidy -diff || exit 1; done
	LINTER='$(LINTER)' $(GO) test -tags verify ./test/verify/...

.PHONY: bench
bench: cluster-programs ## Run the benchmarks into bench/results/latest.jsonl (BENCH=pattern selects)
	$(GO) run ./bench -run '$(BENCH)'

.PHONY: fuzz
fuzz: deps ## Fuzz every parser of foreign input for FUZZTIME each (10s)
	GO='$(GO)' test/scripts/fuzz.sh $(FUZZTIME)

##@ Maintain

.PHONY: generate
generate: deps $(TOOLS)/controller-gen $(TOOLS)/crd-ref-docs ## Write generated code, CRDs and reference documentation
	$(TOOLS)/controller-gen object:headerFile=test/tools/header.go.txt crd paths=./api/... \
		output:crd:dir=deployments/manifests
	$(TOOLS)/crd-ref-docs --source-path=api/v1alpha1 --config=test/tools/crd-ref-docs.yaml --renderer=markdown \
		--output-path=docs/reference/api.md --log-level=ERROR
	@# Of the rules for a list's items it would print one, as Go prints a struct.
	sed -i -E 's/items:XValidation: [^|]*(\\\|[^|]*)*<nil>\\\} <br \/>//' docs/reference/api.md
	$(GO) run ./internal/gendocs docs/reference

# Everything below serves the targets above.

# Ten minutes the first time: not to be counted against a test's time limit.
.PHONY: cluster-programs
cluster-programs: build
	bin/localcluster build

.PHONY: deps
deps:
	@test/scripts/deps.sh

# Slow only when test/tools/go.mod changes: Go caches the rest.
$(LINTER): test/tools/go.mod test/tools/go.sum $(wildcard test/tools/golangci-lint/*.go)
	$(GO) build -C test/tools -o $@ ./golangci-lint

$(TOOLS)/controller-gen $(TOOLS)/crd-ref-docs &: test/tools/go.mod test/tools/go.sum
	$(GO) build -C test/tools -o $(abspath $(TOOLS))/ \
		sigs.k8s.io/controller-tools/cmd/controller-gen github.com/elastic/crd-ref-docs
