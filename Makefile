# make demo     the main job on data that ships with scikit-learn
# make test     the tests, but for those that take long
# make test-slow  those that take long
# make check    style and types
# make fuzz     hostile inputs, kills at random moments and full disks, for about ten minutes
# make clusters Ray and Dask (300 MB), and the tests of sweeps over them
# make package  build the wheel and the sdist, and try both in fresh environments
# make oldest   the tests with the oldest versions that the metadata allow
# make docs     the site, into build/site: strict, and without the network once it is installed
# make docs-serve  the same, shown at http://127.0.0.1:8000 and built again at every change
# make paper    the paper's Table 1 and a small form of its Section 7.2, into runs/
# make tutorials   runs the tutorials and writes their output into their pages and notebooks, some minutes
# make reference   writes the lists at the top of the reference pages
# make browser  Chromium and axe-core for the tests of the page, where the machine allows it
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif

.PHONY: demo paper test test-slow check fuzz clusters package oldest docs docs-serve reference tutorials browser clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/dev-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/dross demo

paper: $(VENV)/installed
	$(BIN)/python -m experiments.table1
	$(BIN)/python -m experiments.cleansing --quick

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

check: $(VENV)/dev-installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

fuzz: $(VENV)/installed
	DROSS_FUZZ_SECONDS=45 DROSS_CRASH_MOMENTS=10 $(BIN)/python -m pytest -s tests/fuzz tests/crash/test_review_crash.py
	$(BIN)/python -W ignore tests/crash/kill_anytime.py --moments 10
	$(BIN)/python -W ignore tests/crash/full_disk.py --sizes 10
	$(BIN)/python -W ignore tests/crash/full_disk.py --sizes 3 --disk limit

clusters: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[clusters]'
	$(BIN)/python -m pytest tests/distributed/test_clusters.py

package: $(VENV)/dev-installed
	rm -rf build dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/packages/try_packages.py dist

# torch of the oldest version is large: `make oldest TORCH=2.13.0` takes another one.
TORCH ?= $(shell sed -n 's/^torch==//p' constraints-oldest.txt)
OLDEST := .venv-oldest
oldest:
	$(PYTHON) -m venv $(OLDEST)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints-oldest.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/pip install --quiet --constraint $(OLDEST)/constraints.txt '.[images,lightning,skorch]' pytest pytest-xdist hypothesis httpx
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal -W ignore::DeprecationWarning $(OLDEST_TESTS)
OLDEST_TESTS ?= tests/cleaning tests/engine tests/cli tests/data tests/influence tests/distributed/test_job_pool.py tests/record tests/replay tests/tape

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

reference: $(VENV)/installed
	$(BIN)/python docs/tools/reference.py

tutorials: $(VENV)/installed
	$(BIN)/python docs/tools/tutorials.py

browser: $(VENV)/installed
	@if command -v chromium >/dev/null; then echo 'Chromium is there.'; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq chromium >/dev/null; \
	else echo 'Install Chromium with your package manager; without it the tests of the page are skipped.'; fi
	@mkdir -p $(VENV)/axe-core && cd $(VENV)/axe-core && { [ -d package ] || { command -v npm >/dev/null && npm pack --silent axe-core@4 >/dev/null && tar xzf axe-core-*.tgz; } || echo 'No npm: the accessibility test is skipped.'; }

clean:
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .ruff_cache .hypothesis
