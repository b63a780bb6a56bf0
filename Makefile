# One command each; every target sets up what it needs in .venv.
#
#   make chat        open the chat on the starter model (without a terminal: a short scripted conversation)
#   make test-fast   lint, types and the tests that need no torch: under a minute
#   make test        lint, types and tests; PROCESSES=1 runs the tests one after the other
#   make test-slow   the tests that take minutes
#   make test-kill   kill a process of the stores 500 times and look at what is left (minutes)
#   make native      compile the native kernels, where there is a compiler and they have changed
#   make lint        lint and types only
#   make bench       measurements on this machine; SCENARIO="resume fork" picks some
#   make models      hold every causal-LM class to transformers and write docs/models.md (minutes)
#   make starter     train the starter model from nothing, evaluate it, make the examples in sessions/
#   make clean       remove what these commands made
#
# PYTHON=python3.12 chooses the interpreter the environment is made from, VENV=DIR where it lies.

SHELL := /bin/sh
PYTHON ?= python3
VENV ?= .venv
SCENARIO ?=
PROCESSES ?= 3

BIN := $(VENV)/bin
RUNTIME := $(VENV)/.kvchat-runtime
DEV := $(VENV)/.kvchat-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help chat demo native test-fast pure test pytest test-slow test-kill lint style types format bench models starter clean

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "kvchat needs Python 3.11 or newer, and there is no '$(PYTHON)' here." \
	  "Install it, or name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvchat needs Python 3.11 or newer;" \
	  "$(PYTHON) is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment." \
	  "Install its venv and pip packages (on Debian: apt install python3-venv)." >&2; exit 1; }

# The stamps are older than pyproject.toml when the requirements changed. Developers get the extra in the same
# environment, so a fresh DEV serves as RUNTIME too.
$(RUNTIME): pyproject.toml | $(BIN)/python
	@[ $(DEV) -nt pyproject.toml ] || { echo "installing kvchat into $(VENV); the first time takes some minutes"; \
	  $(PIP) install --quiet --editable .; }
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing kvchat and its development tools into $(VENV); the first time takes some minutes"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@

# Not needed: what cannot be compiled is computed by torch.
native: | $(BIN)/python
	@$(BIN)/python -m kvchat.engine.kernels.native.build || true

chat: $(RUNTIME) native
	@if [ -t 0 ] && [ -t 1 ] && [ -t 2 ]; then exec $(BIN)/kvchat; else exec $(MAKE) --no-print-directory demo; fi

# Each question is a process of its own: what it reuses comes from the disk.
demo: $(RUNTIME)
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && export KVCHAT_HOME="$$home" && \
	  say() { echo "you:    $$1"; printf 'kvchat: '; $(BIN)/kvchat ask $$2 "$$1" 2>&1 && echo; } && \
	  say "Hello! My name is Ana." "--new demo" && \
	  say "What is a KV cache?" "-s demo" && \
	  say "What is my name?" "-s demo" && \
	  $(BIN)/kvchat sessions list && $(BIN)/kvchat cache status

test-fast:
	@$(MAKE) --no-print-directory --jobs=2 style
	@$(MAKE) --no-print-directory --jobs=2 types pure

# The files are named: collecting all others would take longer than these tests.
pure: $(DEV)
	@env -u MAKEFLAGS -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --quiet --numprocesses=2 --dist=worksteal \
	  -m "pure and not long and not slow" \
	  $$(grep -rl 'mark.pure' tests --include='test_*.py' | xargs grep -L 'pytestmark.*mark.long')

# Tests wait for processes, files and windows of their own: more of them at once than there are cores, with the
# types checked beside them. The kernels are compiled while packages are installed. Whatever is imported is
# compiled once: some tests start many processes.
test:
	@$(MAKE) --no-print-directory --jobs=2 style native
	@$(MAKE) --no-print-directory --jobs=2 types pytest

pytest: $(DEV) native
	@env -u MAKEFLAGS -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=worksteal

test-slow: $(DEV) native
	@$(BIN)/python -m pytest -m slow

test-kill: $(DEV)
	@$(BIN)/python -m tests.kill_loop --times 500

lint: style types

style: $(DEV)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: $(DEV)
	@$(BIN)/mypy

format: $(DEV)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(RUNTIME) native
	@$(BIN)/python -m benchmarks $(SCENARIO)

models: $(RUNTIME)
	@$(BIN)/python -m benchmarks.models --write docs/models.md

starter: $(RUNTIME)
	@$(BIN)/python -m tools.starter.train
	@$(BIN)/python -m tools.starter.evaluate
	@$(BIN)/python -m tools.starter.examples

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find kvchat tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
