# `make demo` and `make test` do all the set-up themselves; a second run installs nothing.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_DOCS := $(VENV)/.installed-docs

INSTALLED_DIST := $(VENV)/.installed-dist
OUTSIDE := dist/outside

.PHONY: demo test lint types imports pytest audit bench docs dist clean

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

docs: $(INSTALLED_DOCS)
	rm -rf docs/reference/generated
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html -c docs . build/docs
	@echo "build/docs/index.html"

# What users install: built, and tried outside of this folder, with its types.
dist: $(INSTALLED_DIST)
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m venv $(OUTSIDE)
	$(OUTSIDE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(OUTSIDE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rest.pth"
	cp tests/outside.py $(OUTSIDE)
	cd $(OUTSIDE) && bin/python outside.py && $(abspath $(BIN))/mypy --strict --python-executable bin/python outside.py

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

$(INSTALLED_DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev,docs]"
	touch $@

$(INSTALLED_DIST): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev,dist]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/reference/generated src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
