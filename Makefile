# Each target does its own set-up on a bare clone. `make demo` and `make test` are what a newcomer needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP_OPTIONS := --disable-pip-version-check -q -c constraints.txt

# nnU-Net asks for torchvision, by way of timm. Without either, these are enough for its trainer.
NNUNET := nnunetv2 acvl-utils batchgenerators batchgeneratorsv2 blosc2 dynamic-network-architectures einops httpx \
	imagecodecs lazy-loader ndindex numexpr scikit-image seaborn tifffile

# The core's tests need torch and pytest alone: no numpy, no imaging, no command line.
QUICK_BIN := .venv-quick/bin
QUICK_INSTALLED := .venv-quick/.installed
CORE := batches.py measurement.py weighting probing training sampling
CORE_TESTS := tests/test_batches.py tests/test_public_api.py tests/weighting tests/probing \
	tests/training tests/sampling tests/contract tests/golden tests/parity tests/learning $(addprefix src/steelyard/,$(CORE))

.PHONY: demo check format quick test frameworks evidence fuzz docs snapshots same-bits

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(PIP_OPTIONS) torch
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[test]'
	$(BIN)/pip install $(PIP_OPTIONS) --no-deps $(NNUNET)
	touch $@

$(QUICK_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-quick
	$(QUICK_BIN)/pip install $(PIP_OPTIONS) torch pytest
	$(QUICK_BIN)/pip install $(PIP_OPTIONS) --no-deps -e .
	touch $@

demo: $(INSTALLED)
	$(BIN)/steelyard demo demo

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In under two minutes: what a change of the core could have broken.
quick: $(QUICK_INSTALLED)
	OMP_NUM_THREADS=1 $(QUICK_BIN)/python -m pytest -q $(CORE_TESTS)

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term-missing:skip-covered

# Frameworks from their own command lines: longer than the default tests, and run on each change as well.
frameworks: $(INSTALLED)
	$(BIN)/python -m pytest -q -m framework tests/integrations

evidence: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# Hostile files, kills and random uses of the library, from a seed. For example: make fuzz FUZZ="--minutes 5 --only kills"
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

docs: $(INSTALLED)
	$(BIN)/python docs/build.py build/docs

# Write anew what tests/test_public_api.py compares with: after a change of the public interface that is meant.
snapshots: $(INSTALLED)
	$(BIN)/python tests/public_api.py

# Train the same small networks with an earlier revision and compare every number. For example: make same-bits BASE=HEAD~1
same-bits: $(INSTALLED)
	$(BIN)/python tests/parity/same_bits.py $(BASE)
