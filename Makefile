# `make serve` and `make test` do all the set-up they need; `make help` lists the rest.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
	command -v $(name) >/dev/null && $(name) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	2>/dev/null && echo $(name))))
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?= smollm2-135m
ARGS ?=
# Processes that share the files of the test suite.
JOBS ?= 2
PIP_ARGS ?=

export WYE_HOME ?= $(CURDIR)/.wye
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Idle OpenMP threads must not spin: tests and servers run more threads than a small machine has cores.
export OMP_WAIT_POLICY ?= passive
# Python keeps what it has compiled, whatever the surroundings say: tests start hundreds of processes of the same code.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --constraint constraints.txt $(PIP_ARGS)

NATIVE := engine/native
NATIVE_SOURCES := setup.py MANIFEST.in $(wildcard $(NATIVE)/src/* $(NATIVE)/building/*.py)

.PHONY: help serve test lint types imports pytest docs bench browser model clients sanitize wheel install dev format clean distclean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  PORT=8000 MODEL=smollm2-135m ARGS="--workers 2" pass through to `make serve`; PIP_ARGS= to pip.'

serve: install ## Install what is missing, fetch the model, start the server
	@$(BIN)/python scripts/foreground.py $(BIN)/wye serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

test: lint imports ## Everything CI checks
	@$(MAKE) --no-print-directory --jobs 2 types pytest  # types take one core a minute; the suite goes on far longer

lint: dev ## Style and format of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev ## Static types of code and tests
	$(BIN)/mypy

imports: dev ## Which package may import which
	$(BIN)/lint-imports

pytest: dev model browser ## The test suite, documented examples included
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

docs: dev ## Write the generated tables of docs/ anew
	$(BIN)/python -m docs.generate

bench: dev model ## Measure everything that docs/performance.md shows; takes about half an hour, longer the first time
	$(BIN)/python -m loadtests.compare --model $(MODEL) --json loadtests/results/compare.json
	$(BIN)/python -m loadtests.prefix --model $(MODEL) --json loadtests/results/prefix.json
	$(BIN)/python -m loadtests.pool --model $(MODEL) --json loadtests/results/pool.json
	$(BIN)/python -m loadtests.http_overhead --model $(MODEL) --json loadtests/results/http_overhead.json
	$(BIN)/python -m loadtests.idle_streams --model $(MODEL) --json loadtests/results/idle_streams.json
	$(BIN)/python -m loadtests.run --model $(MODEL) --json loadtests/results/run.json
	$(BIN)/python -m loadtests.offline --model $(MODEL) --json loadtests/results/offline.json
	$(BIN)/python -m loadtests.offline --model $(MODEL) --weights int8 --json loadtests/results/offline-int8.json
	$(BIN)/python -m loadtests.constrained --model $(MODEL) --json loadtests/results/constrained.json
	$(BIN)/python -m loadtests.constrained --model $(MODEL) --weights int8 --json loadtests/results/constrained-int8.json
	$(BIN)/python -m loadtests.speculation --model $(MODEL) --json loadtests/results/speculation.json
	$(BIN)/python -m loadtests.gateway_cost --model $(MODEL) --json loadtests/results/gateway_cost.json
	$(BIN)/python -m loadtests.busy --model $(MODEL) --json loadtests/results/busy.json
	$(BIN)/python -m loadtests.busy --model $(MODEL) --weights int8 --json loadtests/results/busy-int8.json
	@# Peers are an extra: where llama.cpp cannot be built it says so, and the rest is published.
	-$(BIN)/python -m loadtests.peers --model $(MODEL) --json loadtests/results/peers.json
	-$(BIN)/python -m loadtests.peers --http --model $(MODEL) --json loadtests/results/peers_http.json
	$(BIN)/python -m docs.generate

format: dev ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

browser: dev ## Chromium for the tests of the console, where root can install it
	@$(BIN)/python scripts/browser.py

model: install ## Fetch MODEL into the model store
	@$(BIN)/wye models pull $(MODEL)

clients: dev ## Install the client libraries that the tests try the server with
	$(BIN)/python -m tests.e2e.clients.installing

sanitize: ## Run the native step under the address, undefined-behaviour and thread sanitizers
	$(MAKE) --no-print-directory -C $(NATIVE)/sanitize

wheel: install ## A wheel with the native step, in dist/; WYE_NATIVE=0 makes one without
	rm -rf build
	WYE_NATIVE=$${WYE_NATIVE-1} $(BIN)/python -m pip wheel --no-deps $(PIP_ARGS) --wheel-dir dist .

install: .venv/.installed ## The server's dependencies and the native step, in .venv

dev: .venv/.installed-dev ## Also what tests and checks need

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo 'Wye needs Python 3.11, 3.12 or 3.13, and none of them is on the PATH.' >&2; \
		echo 'Install one, or name it: make serve PYTHON=/path/to/python3.12' >&2; exit 1; fi
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo 'Could not make .venv: is the venv module there (python3-venv on Debian)?' >&2; \
		rm -rf .venv; exit 1; }

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt $(NATIVE_SOURCES)
	@echo 'Installing Wye and its dependencies into .venv (torch is large: this can take some minutes)'
	$(BIN)/python -m pip install --quiet pip==25.3
	$(INSTALL) --editable .
	@$(BIN)/python -m engine.native
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(INSTALL) --group dev
	@touch $@

clean: ## Remove caches and build products
	rm -rf build dist *.egg-info $(NATIVE)/_native.abi3.so $(NATIVE)/_build.json .venv/.installed .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Also remove .venv and the models
	rm -rf .venv .wye
