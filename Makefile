# Every target sets up what it needs; nothing has to be installed by hand beside Python and Make.
# The system's Python, if it will do: distributions build it with optimisation, pyenv by default does not, and then
# everything takes a third longer (PYTHON=python3: the first on the PATH).
PYTHON_CHECK := import ensurepip, sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell /usr/bin/python3 -c '$(PYTHON_CHECK)' 2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.locked
NEWEST := .venv-newest
ONLY   ?=
DAYS   ?= 90
MINUTES ?= 10
SEED   ?= 1
GROUND ?= servers embedded
RUNS   ?= 5
HOURS  ?= 2
COUNT  ?= 1000
SHUFFLE ?=
PART   ?= all
ORDER  := --dist loadfile --no-loadscope-reorder
FOUND  := command -v chromium || command -v chromium-browser || command -v google-chrome

# Every process would read and rewrite all test modules by itself.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup ui browser collect code page lint audit check test stable demo demo-queue bench prove newest seeds chaos soak format clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create .venv with everything pinned by uv.lock

$(STAMP): pyproject.toml uv.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@VIRTUAL_ENV= UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON_DOWNLOADS=never $(BIN)/uv sync --frozen --quiet --inexact --compile-bytecode
	@$(BIN)/python -m qo.spark.engine.java >/dev/null 2>&1 || VIRTUAL_ENV= UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON_DOWNLOADS=never $(BIN)/uv sync --frozen --quiet --inexact --compile-bytecode --extra java
	@$(BIN)/python -m compileall -q src/qo
	@touch $(STAMP)

ui: setup ## Build the page of the dashboard, if it has changed
	@$(BIN)/python hatch_build.py build

browser: # For the tests of the dashboard. Where it cannot be had, they are skipped.
	@{ $(FOUND); } >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get && \
	    export DEBIAN_FRONTEND=noninteractive && APT="apt-get install -qq -y --no-install-recommends chromium" && \
	    { $$APT || { apt-get update -qq && $$APT; }; }; } >/dev/null 2>&1 || true
	@{ $(FOUND); } >/dev/null || echo "There is no browser: tests of the dashboard are skipped. Install Chromium (on" \
	  "Debian and Ubuntu: apt-get install --no-install-recommends chromium, on a Mac: brew install chromium)."

collect: setup # Modules of tests are rewritten once, not by each of the processes that start together.
	@ls tests/unit/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || \
	  $(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true # The tests show what cannot be collected.

code: setup
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports
	@$(BIN)/pyright --level error

page: ui
	@$(BIN)/python hatch_build.py typecheck
	@$(BIN)/python hatch_build.py lint
	@$(BIN)/python hatch_build.py test

lint: setup ## Format, lint, types, import contracts; the same of the dashboard's page, and its unit tests
	@$(MAKE) --no-print-directory -j 2 -O code page

audit: setup ## Known vulnerabilities of what this depends on, and the lists of that (dist/sbom.*.json)
	@$(BIN)/python audit.py

check: lint audit ## Both, and the fast tests
	@$(BIN)/python -m pytest -n 3 $(ORDER) -m "fast and not long"

test: setup ## The same, and all tests but the longest: a real S3 server, PostgreSQL, Spark, a browser (SHUFFLE=7: in another order)
	@PYTHONPATH=tests $(BIN)/python -m suite $(if $(SHUFFLE),--shuffle $(SHUFFLE))

stable: setup ## Every test file by itself, then all tests RUNS times as they come and as often in random orders
	@PYTHONPATH=tests $(BIN)/python -m suite --stable $(RUNS)

demo: setup ## A quarter of flights through a pipeline on Spark (DAYS=365: the year); again: only what changed
	-@$(BIN)/python hatch_build.py build # Without the page of the dashboard, all else is to be seen.
	@$(BIN)/python examples/flights/prepare.py $(DAYS)
	@$(BIN)/qo up examples/flights --once

demo-queue: setup ## A few hundred tasks, two workers, one of them killed with -9 midway
	@$(BIN)/python examples/kill9/run.py

bench: setup ## Run the benchmark suites (ONLY=queue for one)
	@$(BIN)/python -m bench $(ONLY)

prove: setup ui browser ## Longer runs: contention and fault schedules over many more seeds, models of three workers, clusters, s3a, all pages (PART=simulation, properties, processes, spark, newest or chaos)
	@PYTHONPATH=tests $(BIN)/python -m suite --prove $(PART)

newest: setup ui browser # The suite against the newest versions of everything that the ranges in pyproject.toml allow.
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	@VIRTUAL_ENV= $(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python --upgrade --group dev --editable .
	@$(BIN)/python -m qo.spark.engine.java >/dev/null 2>&1 || \
	  VIRTUAL_ENV= $(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python --upgrade --editable '.[java]'
	@PYTHONPATH=tests $(NEWEST)/bin/python -m suite

seeds: setup ## So many seeds of the simulation that were never played, of each part (COUNT=10000)
	@PYTHONPATH=tests $(BIN)/python -m simulation.engine.series $(COUNT)

chaos: setup ## Ten minutes of faults on real processes, servers and Spark, and a checker; as long without servers (MINUTES=2 SEED=7 GROUND=embedded)
	@failed=0; for ground in $(GROUND); do \
	  PYTHONPATH=tests:tests/apps $(BIN)/python -m chaos --ground $$ground --minutes $(MINUTES) --seed $(SEED) || failed=1; \
	done; exit $$failed

soak: setup ## Two hours of steady load on dispatcher, worker and scheduler: what they use must not grow (HOURS=0.5)
	@PYTHONPATH=tests $(BIN)/python -m soak --hours $(HOURS)

format: setup ## Rewrite the code as `make check` wants it
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

clean: ## Remove everything that make made
	@rm -rf $(VENV) $(NEWEST) .bench-venvs .client-venvs .qo .demo ui/node_modules src/qo/ui/static .pytest_cache .ruff_cache .hypothesis dist
