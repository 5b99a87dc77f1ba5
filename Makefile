# make demo | make test: each does its own set-up in .venv on a bare clone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test evidence fuzz check docs

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/steelyard demo demo

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term-missing:skip-covered

evidence: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# Hostile files, kills and random uses of the library, from a seed. For example: make fuzz FUZZ="--minutes 5 --only kills"
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

docs: $(INSTALLED)
	$(BIN)/python docs/build.py build/docs
