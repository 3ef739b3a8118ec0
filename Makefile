# make demo   environment, corpus, quickstart, report        make test   environment, all tests
# make smoke  the five-minute selection that the oldest Python runs       make check  lint and house rules
# Each suffices alone on a machine with Python (3.11 or newer), make and a package registry.

VENV ?= .venv
PYTHON ?= $(shell ./scripts/newest-python)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: env demo test smoke check corpus clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "environment with $(PYTHON), $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

corpus: $(STAMP)
	$(BIN)/smelt corpus build builtin

demo: corpus
	$(BIN)/smelt run quickstart
	$(BIN)/smelt fit quickstart
	$(BIN)/smelt report quickstart
	@echo; echo "Open runs/quickstart/report.html. The rows: smelt export quickstart --out rows.csv"

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

smoke: $(STAMP)
	$(BIN)/python -m pytest -m smoke

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest tests/test_house.py

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache
