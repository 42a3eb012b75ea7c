# `make` lists the targets. Everything happens in a virtual environment, in the folder VENV.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help venv test chaos demo lint format types migrations package tox clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Make the virtual environment, from PYTHON (python3)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo; \
	  echo 'Python 3.10 or newer is needed, and $(PYTHON) is not that (or not there).'; \
	  echo 'Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)'; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); echo; \
	  echo 'No virtual environment could be made. Debian and Ubuntu have that part of Python'; \
	  echo 'in a package of its own: apt install python3-venv'; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[demo]' --group test
	@touch $@

$(DEVELOPMENT): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

test: $(INSTALLED) ## Run the tests on every database that answers (ARGS: pytest's, or --database NAME)
	$(BIN)/python -m tests $(ARGS)

chaos: $(INSTALLED) ## Kill workers and servers at random, and check every promise (ARGS: see --help)
	$(BIN)/python -m tests.chaos $(ARGS)

demo: $(INSTALLED) ## Import 28,000 airports before your eyes (ARGS: --broken and others, see --help)
	$(BIN)/python -m example_project.demo $(ARGS)

lint: $(DEVELOPMENT) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(DEVELOPMENT) ## Mend style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(DEVELOPMENT) ## Check types (Python 3.11 or newer)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'django-stubs needs Python 3.11 or newer: make VENV=.venv-types PYTHON=python3.12 types'; exit 1; }
	$(BIN)/mypy

migrations: $(INSTALLED) ## Check that the models have their migrations
	$(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings django_job_batches
	$(BIN)/python -m django makemigrations --check --dry-run --settings example_project.settings

package: $(DEVELOPMENT) ## Build the wheel into dist/, look into it, install it elsewhere and run a batch
	$(BIN)/python -m tests.packaging

tox: $(DEVELOPMENT) ## Test the wheel with each Python that is installed, on SQLite (ARGS: tox's)
	$(BIN)/tox run $(ARGS)

clean: ## Remove what the other targets made, the virtual environments too
	rm -rf .venv .venv-* .tox build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache *.egg-info example_project/var
