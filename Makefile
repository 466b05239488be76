# make demo     the main job on data that ships with scikit-learn
# make test     the tests
# make check    style and types
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/dross demo

test: $(VENV)/installed
	$(BIN)/python -m pytest

check: $(VENV)/installed
	$(BIN)/ruff check src tests benchmarks experiments
	$(BIN)/ruff format --check src tests benchmarks experiments
	$(BIN)/pyright

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
