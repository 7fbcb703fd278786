# make demo needs git, python3 and make; make test brings the rest into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The gates run one after the other, in the order in which `test` names them.
.NOTPARALLEL:
.PHONY: help demo check test quick lint types lit pytest test-oracles test-install docs sbom clean

# Left empty, the first of CANDIDATES that is 3.11 to 3.13 and can make environments.
PYTHON ?=
CANDIDATES := python3 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin
# Builds of torch without CUDA, some gigabytes smaller. Used where it can be reached.
TORCH_CPU := https://download.pytorch.org/whl/cpu
# What the tests start by name, mxc and filecheck, is of this environment.
lit quick pytest: export PATH := $(CURDIR)/$(BIN):$(PATH)

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/base.stamp ## Make a small gpt-oss checkpoint, compile it for this CPU, generate, report
	$(BIN)/mxc demo

# With nothing in its cache, mypy takes a minute longer for the tests than for the rest.
CHECKED := mxc benchmarks examples tests
check: CHECKED := mxc benchmarks examples
check: lint types lit quick demo ## What to run before a commit: the gates with the quick tests, and make demo

test: lint types lit pytest ## Every gate, as continuous integration runs it

lint: $(VENV)/test.stamp ## ruff and markdownlint: rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pymarkdown scan $$(git ls-files '*.md')

types: $(VENV)/test.stamp ## mypy --strict over packages, benchmarks, examples and tests
	$(BIN)/mypy --strict $(CHECKED)

lit: $(VENV)/test.stamp ## IR in, IR out
	$(BIN)/lit -v lit_tests

# Tests that compile little or nothing.
QUICK := tests/artifact tests/dialects tests/formats tests/kernels tests/runtime/engine \
  tests/runtime/completions tests/simulator/instructions tests/targets tests/test_architecture.py \
  tests/compiler/test_cache.py $(addprefix tests/passes/test_,base.py sanitizer.py spec.py)

quick: $(VENV)/test.stamp ## Numbers, the interpreter of kernels, the simulator's instructions
	$(BIN)/python -m pytest -q -n auto --dist loadfile $(QUICK)

# UNTIL=$$(( $$(date +%s) + 1800 )) leaves out the cases that have not begun by then (tests/rounds.py).
pytest: $(VENV)/test.stamp ## Behaviour and numbers
	@# A worker for each core; the tests of a file share what they compile.
	$(BIN)/python -m pytest -n auto --dist loadfile $(if $(UNTIL),-p tests.rounds --until $(UNTIL) \
	  --seed "$$(git rev-parse --short HEAD)")

# CHANGED=--changed leaves out what has not changed since it was compared.
test-oracles: $(VENV)/test.stamp ## Record vectors of Quark, modelopt and Kimi K3 again (network, minutes), and compare
	$(BIN)/python -m tests.oracles $(CHANGED)

test-install: $(VENV)/test.stamp ## Install the wheel for each supported Python that is found, and run it (network)
	$(BIN)/python -m tests.installs

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/docs.stamp ## The documentation as a site, in build/site
	$(BIN)/mkdocs build --quiet
	@echo "build/site/index.html is the first page. Its search works when it is served:"
	@echo "  $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8080"
	@echo "and then open http://127.0.0.1:8080/"

# The tool is in an environment of its own, so that it does not list itself.
sbom: $(VENV)/base.stamp ## The packages of an installation (CycloneDX), in build/sbom.json
	$(BIN)/python -m venv --clear build/sbom/package
	build/sbom/package/bin/python -m pip install --quiet --disable-pip-version-check .
	$(BIN)/python -m venv --clear build/sbom/tool
	build/sbom/tool/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	build/sbom/tool/bin/cyclonedx-py environment build/sbom/package/bin/python \
	  --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json
	rm -r build/sbom

clean: ## Remove the environment, caches and what demo wrote
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build demo *.egg-info

define CHECK_PYTHON
import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
endef

$(VENV)/base.stamp: pyproject.toml
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  for python in $(or $(PYTHON),$(CANDIDATES)); do \
	    if $$python -c '$(CHECK_PYTHON)' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "mxc needs Python 3.11, 3.12 or 3.13 with venv; tried: $(or $(PYTHON),$(CANDIDATES))." >&2; \
	    echo "Install one (Debian and Ubuntu: apt install python3 python3-venv), or name one:" >&2; \
	    echo "  make PYTHON=/path/to/python3.12 demo" >&2; \
	    exit 1; \
	  fi; \
	  echo "$$found -m venv $(VENV)"; \
	  $$found -m venv --clear $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp
	@index=; \
	if $(BIN)/python -c "import urllib.request as r; r.urlopen('$(TORCH_CPU)/torch/', timeout=5)" 2>/dev/null; \
	then index="--extra-index-url $(TORCH_CPU)"; fi; \
	set -x; $(BIN)/python -m pip install --quiet --disable-pip-version-check $$index --editable '.[test]'
	@touch $@

$(VENV)/docs.stamp: $(VENV)/base.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@
