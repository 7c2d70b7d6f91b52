PYTHON ?= python3
WORKERS ?= 2
TORTURE_DATA ?=
TORTURE_SEEDS ?= 50

BIN := .venv/bin
# Newer than pyproject.toml and constraints.txt when the environment holds what they ask for: what
# orthogp needs to run, and what its tests and pages need besides. Python compiles a module when it
# is first imported: compiling all modules of all packages would double the time of an install.
PACKAGE := .venv/.package
INSTALLED := .venv/.installed
BROWSER := .venv/.browser

.DEFAULT_GOAL := help
.PHONY: help test demo docs lint format mutants torture clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(PACKAGE): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -e . -c constraints.txt
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -e '.[dev,docs]' -c constraints.txt
	@touch $(PACKAGE) $@

# The pages are tried in a browser. Without one, and without the right to install it, those tests
# are skipped.
$(BROWSER): | $(BIN)/python
	@command -v chromium >/dev/null \
	    || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	    || echo "chromium is not here and could not be installed: the tests of the HTML pages are skipped"
	@touch $@

# One thread a worker: torch would otherwise start as many as there are cores in each.
test: lint $(BROWSER) ## check style, types and layers, and run the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

demo: $(PACKAGE) ## run the demonstration on built-in data
	$(BIN)/python -m orthogp demo

docs: $(INSTALLED) ## run the quick examples and build the documentation into site/
	OMP_NUM_THREADS=$(WORKERS) $(BIN)/python tools/build_docs.py

lint: $(INSTALLED) ## check style, types and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads $(WORKERS)
	$(BIN)/lint-imports

format: $(INSTALLED) ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(INSTALLED) ## break the source on purpose and see the tests fail
	$(BIN)/python tools/mutants.py

# TORTURE_DATA is a folder of tables (TASK/NAME.npz); without it only synthetic ones are trained on.
torture: $(INSTALLED) ## mutated files, kills and hard numbers, in twenty minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torture/files.py --count 10000 --workers $(WORKERS) --keep build/torture/files
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/torture/kills.py --kills 50
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m torture
	$(BIN)/python benchmarks/torture/numerics.py --workers $(WORKERS) --data-dir "$(TORTURE_DATA)" \
	    --synthetic-seeds $(TORTURE_SEEDS)

clean: ## remove the environment, the caches and what was built
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist site
	find src tests tools -name __pycache__ -type d -exec rm -rf {} +
