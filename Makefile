# Every target sets up its own environment; the first run takes a minute.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
TESTS := tests bench
CHECK_PROCESSES := $(shell nproc)
TEST_PROCESSES := $(shell expr $$(nproc) + 1)
SOURCES := pyproject.toml setup.py $(wildcard native/*)

.PHONY: help demo check test faults fuzz cases lint format bench bench-scaling bench-micro wheel clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/ready  ## pull a generated image from a loopback registry and verify it; needs neither root nor a network
	$(RUN)/fastpull demo

check: lint  ## run lint and the fast unit tests, in under a minute on 2 cores
	$(RUN)/python -m pytest -q -n $(CHECK_PROCESSES) --dist worksteal -m "not slow" tests/unit bench/tests $(ARGS)

test: $(VENV)/ready-dev  ## run all tests; as root, install the programs to compare with (TESTS=tests/unit ARGS="-n 0 -k merge")
	@tests/peers.sh
	$(RUN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(TESTS) $(ARGS)

faults: $(VENV)/ready-dev  ## run fault campaigns: crashes, I/O errors, power cuts, bit rot (ARGS="crash --trials 50 --seed 7")
	@tests/peers.sh
	$(RUN)/python -m tests.campaigns $(ARGS)

fuzz: $(VENV)/ready-dev  ## fuzz the native extension under sanitizers, and the parsers (ARGS="--seconds 600")
	$(RUN)/python -m tests.fuzz $(ARGS)

cases: $(VENV)/ready-dev  ## write the table of cases in docs/registries.md from the tests' markers
	$(RUN)/python -m tests.support.cases

lint: $(VENV)/ready-dev  ## check style and types
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/mypy examples
	$(RUN)/stubtest fastpull.native._native --mypy-config-file pyproject.toml --allowlist .ci/stubtest-allowlist.txt
	PATH="$(CURDIR)/$(RUN):$$PATH" $(RUN)/cython-lint native

format: $(VENV)/ready-dev  ## format the code and apply automatic fixes
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

bench: $(VENV)/ready-dev  ## compare with other programs on a real image, as root (ARGS="--image small --rounds 2")
	@tests/peers.sh
	$(RUN)/python -m bench $(ARGS)

bench-scaling: $(VENV)/ready-dev  ## measure how a pull scales with entries, layers and bytes (ARGS="--dimensions entries")
	$(RUN)/python -m bench.scaling $(ARGS)

bench-micro: $(VENV)/ready-dev  ## time single stages
	$(RUN)/python -m pytest bench/micro --benchmark-enable --benchmark-columns=median,iqr,rounds $(ARGS)

wheel: $(VENV)/ready-dev  ## build a wheel into dist/
	rm -rf dist
	$(RUN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove the environment and all build products
	rm -rf $(VENV) build dist *.egg-info fastpull/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@.ci/python.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: $(VENV)/bin/python $(SOURCES)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/ready-dev: $(VENV)/bin/python $(SOURCES)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $(VENV)/ready $@
