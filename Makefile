# grpo-bench. Every target sets up what it needs; setting up again costs nothing while nothing changed.
#
#   make run [PROFILE=laptop] [ARGS="--seed 1"]   one run
#   make test [ARGS="-k journal"] [JOBS=2]        all tests that one environment can run
#   make test-real [ARGS=...] [JOBS=0]            those that need vLLM, Megatron, OpenHands, sandboxes, Slurm
#   make lint                                     style, types, import rules
#   make bench [ARGS=...]                         speed, as ratios within one run
#   make setup                                    only set up: .venv/bin/grpo-bench
#   make check                                    lint, then test
#   make clean                                    remove what set-up made
#
# PYTHON names the interpreter to build .venv from (3.11 or newer), TORCH_INDEX a package index with CPU builds of torch.
# JOBS is how many processes the tests are dealt to, a file at a time (0: all in one, as --pdb needs it); those of test-real,
# which take much memory and have time-outs of others, run in one. Environments (docs/environments.md) and tasks that
# test-real needs are built when the first test needs them: they stay in the user's cache, 7 GB together. TOOLS are the
# programs it needs, each with the package that brings it: where one is missing, apt installs it for root. What needs
# ROOT_TOOLS needs root itself, and is left out for others. Nothing is byte-compiled before it is imported, which most of it
# never is: that would take minutes.

PYTHON ?= python3
PROFILE ?= laptop
ARGS ?=
JOBS ?= 2
TORCH_INDEX ?=
ROOT_TOOLS := slurmctld:slurm-wlm munged:munge ip:iproute2
TOOLS := bwrap:bubblewrap tmux:tmux git:git $(if $(filter 0,$(shell id -u)),$(ROOT_TOOLS))

VENV := .venv
BIN := $(VENV)/bin
PROJECTS := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
INSTALLED := $(VENV)/.installed
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install -qq --no-compile --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help setup run test test-real tools lint bench check clean

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(INSTALLED)

run: setup
	@$(BIN)/grpo-bench run --profile $(PROFILE) $(ARGS)

test: setup
	@$(PYTEST) $(ARGS)

test-real: JOBS = 0
test-real: setup tools
	@$(PYTEST) --real -m real --build $(if $(TORCH_INDEX),--build-index $(TORCH_INDEX)) $(ARGS)

tools:
	@packages=; \
	for tool in $(TOOLS); do \
	    command -v $${tool%:*} >/dev/null || packages="$$packages $${tool#*:}"; \
	done; \
	if [ -z "$$packages" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$packages"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$packages >/dev/null; \
	else \
	    echo "test-real needs$$packages; on Debian or Ubuntu: apt install$$packages" >&2; exit 1; \
	fi

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

check: lint test

clean:
	rm -rf $(VENV)

$(INSTALLED): $(BIN)/pip constraints.txt requirements-dev.txt core/hatch_build.py $(PROJECTS:%=%/pyproject.toml)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --requirement requirements-dev.txt $(PROJECTS:%=--editable %)
	@touch $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "grpo-bench needs Python 3.11 or newer; $(PYTHON) was not found (set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "grpo-bench needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1) (set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
