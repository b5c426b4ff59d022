# `make demo` and `make test` do all the set-up themselves; a second run installs nothing.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench

.PHONY: demo test lint types imports pytest audit bench clean

demo: $(INSTALLED)
	$(BIN)/sfumato demo

test: lint types imports pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

pytest: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal  # tests of a file share what is made for all of them

audit: $(INSTALLED)
	$(BIN)/python -m benchmarks.audits

bench: $(INSTALLED_BENCH)
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	@command -v $(PYTHON) > /dev/null && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)

$(INSTALLED): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev]"
	touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev,bench]"
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
