# The doors to this project. Each target does the set-up that it needs, from nothing, and only once.

PYTHON      ?= python3
TORCH       ?= torch==2.13.0
# Where no NVIDIA driver is loaded, torch without CUDA is a tenth of the download. `make TORCH_INDEX=` asks PyPI alone.
TORCH_INDEX ?= $(if $(wildcard /proc/driver/nvidia/version),,https://download.pytorch.org/whl/cpu)
ARGS        ?=
FUZZ_SECONDS ?= 60
# Tests at once: most of them wait for processes of their own. `make test JOBS=0` runs one after the other.
JOBS        ?= 3

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.holdfast-dev
PAGES := $(VENV)/.holdfast-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test matrix chaos fuzz lint fix docs bench clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## a real job of 4 processes: rank 2 hangs, is named, the job restarts and ends (CPU, a minute)
	@checkpoints=$$(mktemp -d) && trap 'rm -rf "$$checkpoints"' EXIT && \
	$(BIN)/holdfast run --standalone --nproc-per-node 4 --max-restarts 2 --inject 'hang@rank=2,step=30' $(ARGS) \
	    examples/rvq/train.py --max-steps 120 --checkpoint-dir "$$checkpoints" --resume

test: $(READY)  ## all tests but those for GPUs and the long matrices (ARGS="-k word" chooses)
	@$(BIN)/python -m pytest -m 'not gpu and not matrix' -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

matrix: $(READY)  ## the long matrices: one thing, many times
	@$(BIN)/python -m pytest -m matrix $(ARGS)

chaos: $(READY)  ## hurt a job in every way we know, and write docs/reliability.md; goes on after an interruption (ARGS="sigkill-middle" chooses)
	@status=0; $(BIN)/holdfast chaos run --results docs/reliability.json $(or $(ARGS),--all --go-on 12) || status=1; \
	$(BIN)/python docs/generate.py; exit $$status

fuzz: $(READY)  ## every parser against bytes that atheris makes up, FUZZ_SECONDS each (60)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install --quiet -e '.[fuzz]'
	@status=0; for target in $$(PYTHONPATH=. $(BIN)/python -c 'from tests.fuzz.targets import TARGETS; print(*TARGETS)'); do \
	    echo "## $$target"; \
	    $(BIN)/python tests/fuzz/fuzz.py $$target .fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	    -rss_limit_mb=1024 -max_len=8192 -verbosity=0 -print_final_stats=1 $(ARGS) || status=1; done; exit $$status

lint: $(READY)  ## ruff, mypy --strict, that imports point down, and holdfast lint of its own sources
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy --strict src || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	$(BIN)/holdfast lint src examples || status=1; \
	exit $$status

fix: $(READY)  ## format, make the safe corrections, write the generated pages again
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet . ; $(BIN)/python docs/generate.py

docs: $(PAGES)  ## the documentation, into site/ (broken links are errors)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)  ## measure, next to named peers; docs/benchmarks.md derives the figures
	@$(BIN)/python -m benchmarks $(ARGS)

clean:  ## remove what was built and cached (not the virtual environment)
	@rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

setup: $(READY)  ## the virtual environment in .venv, with torch and all tools

# An environment that was made some other way is used as it is, and so is a torch that is already in it.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "holdfast needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 | tail -n 1);" \
	         "name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make a virtual environment (see above);" \
	         "Debian and Ubuntu keep that in a package of its own: apt install python3-venv" >&2; exit 1; }

# The extra index is asked for torch alone; where it cannot be reached, pip goes on with PyPI.
$(READY): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH) ..."; \
	    $(PIP) install --quiet --no-deps --retries 0 '$(TORCH)' $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') \
	    && $(PIP) install --quiet '$(TORCH)'; }
	@echo "installing holdfast and its tools into $(VENV) ..."
	@$(PIP) install --quiet -e '.[dev,frameworks]' || { \
	    echo "DeepSpeed or Accelerate cannot be installed here: the tests of their examples are skipped"; \
	    $(PIP) install --quiet -e '.[dev]'; }
	@touch $@

$(PAGES): $(READY)
	@$(PIP) install --quiet -e '.[docs]'
	@touch $@
