# Each target sets up what it needs by itself: Python 3.11+ and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-browser test-reproduce test-ray test-network check format pages docs figures bench \
	bench-rivals bench-scaling bench-ray dist test-dist changelog clean

demo: $(READY)  ## train three methods side by side on embedded data
	$(BIN)/fedstrata demo

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(READY)  ## those that take so long that `make test` leaves them out
	FEDSTRATA_SLOW=1 $(BIN)/python -m pytest -m slow -n auto --dist worksteal

test-browser: $(READY)  ## the report page in chromium, which is installed where that can be done
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || test "$$(id -u)" != 0 || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	FEDSTRATA_BROWSER=1 $(BIN)/python -m pytest tests/report/test_browser.py

test-reproduce: $(READY)  ## two published tables at the quick scale
	FEDSTRATA_QUICK=1 $(BIN)/python -m pytest tests/reproduce/test_quick.py

test-ray: $(READY)  ## the Ray engine on a cluster of this machine
	FEDSTRATA_RAY=1 $(BIN)/python -m pytest tests/runtimes/test_ray.py

test-network: $(READY)  ## a SuperLink, SuperNodes and nginx, which is installed where that can be done, on loopback
	@PATH=$$PATH:/usr/sbin command -v nginx >/dev/null || test "$$(id -u)" != 0 || \
		{ apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends nginx-light; }
	FEDSTRATA_NETWORK=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/network --durations=20

check: $(READY)  ## format, lint, types, unused code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/vulture

format: $(READY)  ## make `check` happy where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: $(READY)  ## write docs/methods, models.md, reproductions.md and the table in decisions.md from the code
	$(BIN)/python -m fedstrata.pages docs
	$(BIN)/python -m fedstrata.reproduce.pages docs
	$(BIN)/python -m benchmarks.choose --pages
	$(BIN)/python -m benchmarks.sizes

docs: $(READY)  ## the site, strictly and without a network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

figures: $(READY)  ## figures and tables of the docs that take minutes to make: the layer lens, how to choose a method
	$(BIN)/python -m benchmarks.lens
	$(BIN)/python -m benchmarks.choose

bench: $(READY)  ## our own engines on a tenth of each workload, in a few minutes
	$(BIN)/python -m benchmarks.rivals --only ours --rounds 3 --repeat 1 --fraction 0.1 --out .bench/bench.json

bench-rivals: $(READY)  ## beside the naive and the tuned loop, Flower, pfl and FedJAX, each in its own environment
	$(BIN)/python -m benchmarks.rivals

bench-scaling: $(READY)  ## against the cohort, the model and the population
	$(BIN)/python -m benchmarks.scaling

bench-ray: $(READY)  ## the Ray engine with one worker and two, beside the pool of processes
	$(BIN)/python -m benchmarks.cluster

PYTHONS ?= $(PYTHON)

dist: $(READY)  ## wheel and sdist
	rm -rf dist
	$(BIN)/python -m build --quiet

test-dist: $(READY)  ## the wheel in clean environments, core alone and with each extra, from outside the checkout
	test -d dist || $(MAKE) dist
	$(BIN)/python release/smoke.py dist --pythons $(PYTHONS)

changelog: $(READY)  ## gather changelog.d into CHANGELOG.md under the version of src/fedstrata/version.py
	$(BIN)/python release/changelog.py

clean:
	rm -rf $(VENV) .bench build dist site runs .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
