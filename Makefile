# Every target sets up what it needs; no preparation is necessary.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
# What serves, and what the extras of pyproject.toml add for other targets.
READY := $(VENV)/.ready
TEST_READY := $(READY)-test
SPARK_READY := $(READY)-spark
FUZZ_READY := $(READY)-fuzz
RELEASE_READY := $(READY)-release
COMPILED := $(VENV)/.compiled
NODE_READY := tests/conformance/node_modules/.ready
CLIENT_READY := tests/official_clients/node_modules/.ready
DOCS_READY := $(READY)-docs
BROWSER_READY := tests/examples/node_modules/.ready examples/editor/node_modules/.ready \
    tests/console/node_modules/.ready
# What `make test-all` needs beyond the others. Without npm the tests that need it are skipped.
WITH_NPM := $(shell command -v npm)
ALL_READY := $(TEST_READY) $(SPARK_READY) $(RELEASE_READY) $(DOCS_READY) $(COMPILED) \
  $(if $(WITH_NPM),$(NODE_READY) $(CLIENT_READY) $(BROWSER_READY))
SIM_HEARTS := tests/raft/test_simulation.py tests/raft/test_planted_bugs.py
ARGS ?=
# The Python for the set-up; by default the first that is new enough.
PYTHON ?=
# How many processes share a run; by default more than cores, because tests that start, kill and
# stall servers wait much of their time; not many more, because each collects all tests, and fewer
# for the long tests, some of which measure time.
WORKERS ?=
# Where packages are built.
DIST ?= dist
TREE ?= build/tree
MORE := 2
# Tests of one file share their servers, so a file is seldom split: tests/support/scheduling.py.
PYTEST = $(BIN)/python -m pytest --dist loadfile -n $(or $(WORKERS),$(shell expr $$(nproc) + $(MORE)))
# Container images set it, and then every server of the tests would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

# The pure packages. Their tests are fast enough to run with the branches counted, except for the
# Raft simulation, which takes five times as long then and covers nothing of its own.
HEARTS := $(filter-out tests/raft/test_simulation.py,$(wildcard tests/raft/test_*.py)) \
  tests/auth tests/proofs tests/streams tests/state \
  tests/test_codec.py
COVERAGE := --cov --cov-report=term

# What depends on the calls of batch_io, whose twin in Python serves where there is no compiler.
DOOR := $(addprefix tests/http/test_,front_door.py reactor.py fairness.py malformed.py live.py)

# Begins a recipe that prints at its end what its runs of pytest skipped.
LIST_SKIPPED := export STREAMD_TEST_SKIPPED=$$(mktemp); status=0; \
  trap '$(BIN)/python -m tests.support.skipped; rm $$STREAMD_TEST_SKIPPED' EXIT;

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
  --constraint requirements.lock --editable

FUZZED := scopes authorization signed jwt head path header

.PHONY: help serve cluster test test-all hearts test-pythons conformance jepsen cold tears fuzz audit
.PHONY: audit-test sim verify fix docs bench bench-cluster wheels tree binary packages sbom release clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

serve: $(READY) ## Serve on 127.0.0.1:4437 from ./data (more flags: ARGS="--http hypercorn")
	@exec $(BIN)/streamd serve $(ARGS)

cluster: $(READY) ## Start three nodes on this machine; Ctrl-C stops them
	@set -m; config/cluster/start $(BIN) || exit # as a job: make gets no Ctrl-C and fails not by it

test: MORE := 4
test: $(COMPILED) $(if $(WITH_NPM),$(NODE_READY)) ## Run all tests but the long ones
	@$(BIN)/python -m tests.support.minio
	@$(BIN)/python -m tests.support.prometheus
	@$(LIST_SKIPPED) set -x; \
	$(PYTEST) -p no:schemathesis -m "not long" --durations=20 $(ARGS) || status=1; \
	{ set +x; } 2>/dev/null; echo "-- not run: the long tests, which make test-all runs too"; exit $$status

test-all: $(ALL_READY) ## Run all tests, with the branch coverage of the pure packages
	@$(BIN)/python -m tests.support.minio
	@$(BIN)/python -m tests.support.helm
	@$(BIN)/python -m tests.support.prometheus
	@$(LIST_SKIPPED) set -x; \
	$(PYTEST) $(HEARTS) $(COVERAGE) $(ARGS) || status=1; \
	$(PYTEST) $(HEARTS:%=--ignore=%) --durations=20 $(ARGS) || status=1; \
	STREAMD_PURE_PYTHON=1 $(PYTEST) $(DOOR) $(ARGS) || status=1; \
	{ set +x; } 2>/dev/null; exit $$status

hearts: $(TEST_READY) ## Run only the tests of the pure packages, with their branch coverage
	$(PYTEST) $(HEARTS) $(COVERAGE) $(ARGS)

test-pythons: ## Run all tests but Spark's on each installed Python
	@status=0; for version in 3.11 3.12 3.13 3.14; do \
	  python=""; \
	  for p in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	    $$p -c '' 2>/dev/null && python=$$p && break; \
	  done || { echo "Python $$version is not here"; continue; }; \
	  $(MAKE) --no-print-directory PYTHON=$$python VENV=.venv-$$version \
	    ARGS="--ignore=tests/spark $(ARGS)" test-all || status=1; \
	done; exit $$status

conformance: $(TEST_READY) $(NODE_READY) ## Run only the upstream conformance suite
	$(BIN)/python -m pytest tests/conformance -rA $(ARGS)

jepsen: $(TEST_READY) ## Break clusters of real processes for longer (JEPSEN_S=30 for each stretch)
	JEPSEN_S=$${JEPSEN_S:-15} $(BIN)/python -m pytest tests/jepsen_like $(ARGS)

cold: $(TEST_READY) ## Kill servers at every step of their work in a real MinIO, and break its answers
	@$(BIN)/python -m tests.support.minio
	COLD_STEPS=all $(BIN)/python -m pytest tests/objectstore/nodes $(ARGS)

tears: $(TEST_READY) ## Cut the power at every page of every write (TEARS=20000 SEED=5)
	TEARS=$${TEARS:-5000} $(BIN)/python -m pytest tests/crash/test_tears.py $(ARGS)

fuzz: $(TEST_READY) $(FUZZ_READY) ## Fuzz peers (FUZZ_EXAMPLES=300 scenes), then parsers of what strangers send (FUZZ_S=60 each)
	FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-300} $(BIN)/python -m pytest tests/hostile $(ARGS)
	for target in $(FUZZED); do \
	  $(BIN)/python -m tests.fuzz $$target -max_total_time=$${FUZZ_S:-60} || exit; \
	done

audit: $(SPARK_READY) ## Audit a cold store (ARGS="--store s3://BUCKET/PREFIX --out DIR")
	@$(BIN)/python spark/audit.py $(ARGS)

audit-test: $(TEST_READY) $(SPARK_READY) ## Run all tests of the audit and of Spark, the long ones included
	@$(BIN)/python -m tests.support.minio
	AUDIT_TESTS=all $(BIN)/python -m pytest tests/spark $(ARGS)

sim: $(TEST_READY) ## Run only the simulations and their planted bugs (SEEDS=8000: a long run; SEED=17: one)
	@export SEEDS=$${SEEDS:-300}; $(BIN)/python -m pytest $(SIM_HEARTS) $(ARGS) & hearts=$$!; \
	$(BIN)/python -m pytest tests/sim $(ARGS) || nodes=$$?; \
	wait $$hearts && exit $${nodes:-0}

verify: $(TEST_READY) $(SPARK_READY) ## Check style and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m pytest -q tests/test_tidy.py

fix: $(TEST_READY) ## Generate the blocking client, the dashboards, docs/reference and docs/figures, and repair what can be repaired automatically
	$(BIN)/python -m tests.client.unasync
	$(BIN)/python -m tests.monitoring.dashboards
	$(BIN)/python -m tests.docs.reference
	$(BIN)/python -m tests.docs.figures
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The theme would print each time until when it is kept: CONTRIBUTING.md, "The documentation".
docs: $(DOCS_READY) ## Build the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open build/site/index.html"

bench: $(TEST_READY) $(SPARK_READY) ## Measure beside other servers (needs wrk)
	$(BIN)/python -m bench $(ARGS)

bench-cluster: $(TEST_READY) ## Compare three nodes with one, and measure the cost of failures (needs wrk)
	$(BIN)/python -m bench.cluster $(ARGS)

wheels: $(RELEASE_READY) ## Build the wheels of the server and of the client, and the sources, into dist
	@rm -f $(DIST)/durable_streamd*
	$(BIN)/python -m build --no-isolation --outdir $(DIST) .
	$(BIN)/python -m build --no-isolation --outdir $(DIST) --wheel packaging/client

tree: wheels
	@rm -rf $(TREE)
	$(BIN)/python packaging/tree.py $(DIST)/durable_streamd-*.whl $(TREE)

binary: tree ## Build dist/streamd, a file that runs without a Python
	$(BIN)/python packaging/binary.py $(TREE) $(DIST)/streamd

packages: tree ## Build the packages for Debian and Red Hat, into dist
	@rm -f $(DIST)/streamd[_-]*.deb $(DIST)/streamd[_-]*.rpm
	$(BIN)/python packaging/packages.py $(TREE) $(DIST)

sbom: tree ## Write what dist/streamd and the packages contain: dist/streamd.cdx.json
	$(BIN)/python packaging/sbom.py $(TREE) $(DIST)/streamd.cdx.json

release: $(RELEASE_READY) ## Build all of a release from its tagged commit, twice, and compare
	$(BIN)/python packaging/release.py check
	rm -rf $(DIST) build/again
	$(MAKE) --no-print-directory binary packages sbom
	$(MAKE) --no-print-directory binary packages sbom DIST=build/again/dist TREE=build/again/tree
	$(BIN)/python packaging/release.py compare $(DIST) build/again/dist

clean: ## Remove everything that was set up or built
	rm -rf $(VENV) .venv-* tests/*/node_modules examples/*/node_modules bench/node/node_modules
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml requirements.lock hatch_build.py src/streamd/http/sockets/_batch_io.c
	@python=$$(for p in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    command -v $$p >/dev/null && \
	    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; \
	  done || true); \
	if [ -z "$$python" ]; then echo "streamd needs Python 3.11 or newer" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(READY)-%: $(READY)
	$(INSTALL) '.[$*]'
	@touch $@

# Pytest compiles the tests itself. In a first run each of its processes would compile all of them.
$(COMPILED): $(TEST_READY)
	@echo "compiling the tests"; $(BIN)/python -m pytest --collect-only -qq -p no:schemathesis >/dev/null
	@touch $@

$(NODE_READY) $(CLIENT_READY) $(BROWSER_READY): %/node_modules/.ready: \
    %/package.json %/package-lock.json
	@command -v npm >/dev/null || { echo "the tests need Node 20 or newer" >&2; exit 1; }
	cd $* && npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@
