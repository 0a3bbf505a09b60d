# Two commands are enough: `make demo` and `make test`. Each creates .venv with what it needs, on a
# machine that has Python 3.11 or newer and make; a second call installs nothing.
#
#   PYTHON     the interpreter that .venv is made with (python3)
#   JOBS       worker processes of the tests (2)
#   ARGS       anything for pytest: make test ARGS="tests/solvers -k vcd"
#   PIP_ARGS   anything for pip, e.g. the index of torch's CPU builds: see README.md

PYTHON   ?= python3
JOBS     ?= 2
ARGS     ?=
PIP_ARGS ?=

VENV    := .venv
BIN     := $(VENV)/bin
STAMPS  := $(VENV)/stamps
INSTALL  = $(BIN)/python -m pip install --quiet --disable-pip-version-check \
           --constraint constraints.txt $(PIP_ARGS)
# Bytecode is kept even where the environment forbids it: pytest rewrites 200 files, and each process
# that a test starts compiles 240 modules.
PYTEST   = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
SOURCES := linops geometries sharding solvers
CHECKED := $(SOURCES) tests examples benchmarks

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint docs bench clean distclean

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(STAMPS)/demo  ## Scan a real CT slice, reconstruct it five ways, draw it
	$(BIN)/python examples/reconstruct_slice.py

test: lint $(STAMPS)/test  ## Lint, types, import contracts and every test
	$(PYTEST) $(ARGS)

quick: $(STAMPS)/test  ## The tests that take moments
	$(PYTEST) -m "not slow" $(ARGS)

lint: $(STAMPS)/test  ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy --strict linops geometries sharding solvers
	$(BIN)/lint-imports --no-cache

docs: $(STAMPS)/docs  ## Build the pages into build/docs
	$(BIN)/mkdocs build --strict --quiet --site-dir build/docs
	@echo "open build/docs/index.html"

bench: $(STAMPS)/bench  ## Every benchmark, ratios against other libraries in one run
	@for script in $(basename $(notdir $(wildcard benchmarks/*.py))); do \
	    echo "== $$script"; $(BIN)/python -m benchmarks.$$script || exit 1; done

clean:  ## Remove caches and built files
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## Remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "linops needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/demo: EXTRAS := demo
$(STAMPS)/test: EXTRAS := all,test
$(STAMPS)/docs: EXTRAS := docs
$(STAMPS)/bench: EXTRAS := bench

# A stamp is older than what it was made from when either file changes, and then pip looks again.
$(STAMPS)/%: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[$(EXTRAS)]'
	@mkdir -p $(STAMPS) && touch $@
