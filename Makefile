# Each target sets up what it needs by itself: Python 3.11+ and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-browser check format pages bench bench-rivals bench-scaling clean

demo: $(READY)  ## train three methods side by side on embedded data
	$(BIN)/fedstrata demo

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-browser: $(READY)  ## the report page in chromium, which is installed where that can be done
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || test "$$(id -u)" != 0 || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	FEDSTRATA_BROWSER=1 $(BIN)/python -m pytest tests/report/test_browser.py

check: $(READY)  ## format, lint, types, unused code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/vulture

format: $(READY)  ## make `check` happy where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: $(READY)  ## write docs/methods, docs/models.md and the table in docs/decisions.md from the code
	$(BIN)/python -m fedstrata.pages docs

bench: $(READY)  ## our own engines on a tenth of each workload, in a few minutes
	$(BIN)/python -m benchmarks.rivals --only ours --rounds 3 --repeat 1 --fraction 0.1 --out .bench/bench.json

bench-rivals: $(READY)  ## beside the naive and the tuned loop, Flower, pfl and FedJAX, each in its own environment
	$(BIN)/python -m benchmarks.rivals

bench-scaling: $(READY)  ## against the cohort, the model and the population
	$(BIN)/python -m benchmarks.scaling

clean:
	rm -rf $(VENV) .bench build dist runs .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
