# Entry points for development. Each target performs its own setup once.

PYTHON      ?= python3
TORCH       ?= torch==2.13.0
# Without an NVIDIA driver, install torch without CUDA (a tenth of the download size). `make TORCH_INDEX=` uses only PyPI.
TORCH_INDEX ?= $(if $(wildcard /proc/driver/nvidia/version),,https://download.pytorch.org/whl/cpu)
ARGS        ?=
FUZZ_SECONDS ?= 60
# Test files run in parallel: most tests wait for child processes, so 4 files occupy two cores. `make test JOBS=0` runs them sequentially.
JOBS        ?= 4

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
DEMO  := $(VENV)/.holdfast-demo
READY := $(VENV)/.holdfast-dev
PAGES := $(VENV)/.holdfast-docs
# Otherwise the first jobs use the Python recorder.
COMPILE = for module in recorder.build training.packing_extension; do $(BIN)/python -m holdfast.$$module >/dev/null; done

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test matrix versions wheel man changelog golden chaos fuzz lint fix summaries docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(or $(wildcard $(READY)),$(DEMO))  ## run a job of 4 processes in which rank 2 hangs: diagnosis, restart, completion (CPU, one minute)
	@checkpoints=$$(mktemp -d) && trap 'rm -rf "$$checkpoints"' EXIT && \
	$(BIN)/holdfast run --standalone --nproc-per-node 4 --max-restarts 2 --act-after 5s \
	    --inject 'hang@rank=2,step=30' $(ARGS) \
	    examples/rvq/train.py --max-steps 120 --checkpoint-dir "$$checkpoints" --resume

test: $(READY)  ## run all tests except GPU tests and the matrices (ARGS="-k word" selects)
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(BIN)/python -m pytest -m 'not gpu and not matrix' -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

matrix: $(READY)  ## run the matrices: long repetitions of one test
	@$(BIN)/python -m pytest -m matrix $(ARGS)

versions: $(READY)  ## test with other versions of torch and Python, 6 GB each: docs/compatibility.md (ARGS="2.6.0 2.9.1@3.12")
	@$(BIN)/python -m release.versions $(ARGS)

wheel: $(READY)  ## build a wheel with the compiled extensions in dist/, for the torch of .venv or of `make versions` (ARGS="2.6.0")
	@$(BIN)/python -m release.wheel $(ARGS)

man: $(READY)  ## write the man pages of all commands into dist/man (`man dist/man/holdfast-run.1` shows one)
	@$(BIN)/python -m release.man_pages dist/man

changelog: $(READY)  ## move the fragments of changelog.d into CHANGELOG.md (ARGS=0.2.0 makes the section of a version)
	@$(BIN)/python -m release.changelog $(ARGS)

golden: $(READY)  ## generate the stored checkpoints again with the installed frameworks (ARGS="deepspeed_zero" chooses)
	@$(BIN)/python -m tests.golden.make_checkpoints $(ARGS)

chaos: $(READY)  ## run all fault-injection scenarios and write docs/reliability.md; resumes after an interruption (ARGS="sigkill-middle" chooses)
	@status=0; $(BIN)/holdfast chaos run --results docs/reliability.json $(or $(ARGS),--all --resume 12) || status=1; \
	$(BIN)/python docs/generate.py; exit $$status

fuzz: $(READY)  ## fuzz every parser with atheris, FUZZ_SECONDS each (60)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install --quiet -e '.[fuzz]'
	@status=0; for target in $$(PYTHONPATH=. $(BIN)/python -c 'from tests.fuzz.targets import TARGETS; print(*TARGETS)'); do \
	    echo "## $$target"; \
	    $(BIN)/python tests/fuzz/fuzz.py $$target .fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	    -rss_limit_mb=1024 -max_len=8192 -verbosity=0 -print_final_stats=1 $(ARGS) || status=1; done; exit $$status

lint: $(READY)  ## run ruff, mypy --strict, the import contracts, holdfast lint on our own sources, and the ban list
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy --strict src || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	$(BIN)/holdfast lint src examples --exclude 'examples/*/broken.py' || status=1; \
	$(BIN)/python tests/language.py || status=1; \
	exit $$status

fix: $(READY)  ## format, apply safe fixes, regenerate the generated pages
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet . ; $(BIN)/python docs/generate.py

summaries: $(READY)  ## derive again what functions of the installed libraries do, for `holdfast lint` (1 minute)
	@$(BIN)/python -m holdfast.lint.derive_summaries

docs: $(PAGES)  ## build the documentation in site/ (broken links are errors)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)  ## run the benchmarks (ARGS="recorder_cost" selects); docs/benchmarks.md explains the figures
	@$(BIN)/python -m benchmarks $(ARGS)

clean:  ## remove build output and caches (not the virtual environment)
	@rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

setup: $(READY)  ## create the virtual environment .venv with torch and all tools

# An existing environment is used as it is, and so is its torch.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "holdfast needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 | tail -n 1);" \
	         "choose another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot create a virtual environment (see above);" \
	         "on Debian and Ubuntu, it needs a package: apt install python3-venv" >&2; exit 1; }

# The extra index is used for torch only; if it is unreachable, pip falls back to PyPI.
$(DEMO): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH) ..."; \
	    $(PIP) install --quiet --no-deps --retries 0 '$(TORCH)' $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') \
	    && $(PIP) install --quiet '$(TORCH)'; }
	@echo "installing holdfast into $(VENV) ..."
	@$(PIP) install --quiet -e . 'scikit-learn>=1.4'   # contains the digits dataset of examples/rvq/train.py
	@$(BIN)/python -m holdfast.recorder.build >/dev/null   # otherwise the demo uses the Python recorder
	@touch $@

# The tools of development take longer to install than all of the above.
$(READY): pyproject.toml | $(if $(wildcard $(READY)),$(BIN)/python,$(DEMO))
	@echo "installing the tools of development into $(VENV) ..."
	@$(PIP) install --quiet -e '.[dev,frameworks]' || { \
	    echo "DeepSpeed or Accelerate cannot be installed; the tests of their examples are skipped"; \
	    $(PIP) install --quiet -e '.[dev]'; }
	@$(COMPILE)
	@touch $@

$(PAGES): $(READY)
	@$(PIP) install --quiet -e '.[docs]'
	@touch $@
