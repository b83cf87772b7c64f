# `make run` and `make test` install everything they need into .venv once.
PYTHON ?= python3
BIN := .venv/bin
FLOWER := .venv-flower/bin
LOWEST := .venv-lowest/bin
SITE := .venv-site/bin
COVERED := core algorithms wire engine stacked
SUITES := paper benchmarks docs
# Two processes; each keeps to neighbouring tests, which share fixtures, and takes over others when it is done.
SHARED := -n 2 --dist worksteal
# Tests start hundreds of processes. Where this variable is set, each of them would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-paper test-benchmarks test-docs test-all test-flower test-flower-all test-mqtt test-mqtt-all test-lowest soak docs site format clean

run: .venv/.core
	$(BIN)/tinyproto run configs/quickstart.yaml --overwrite

test: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(SHARED) $(SUITES:%=--ignore=tests/%) $(COVERED:%=--cov=tinyproto.%) --cov-report=
	@for layer in core algorithms wire; do $(BIN)/coverage report --skip-covered --fail-under=95 --include="*/tinyproto/$$layer/*" || exit 1; done
	$(BIN)/coverage report --skip-covered --fail-under=95 --include="*/tinyproto/engine/*,*/tinyproto/stacked/*"

# The suites that `make test` leaves out, one target each.
test-paper test-benchmarks test-docs: test-%: .venv/.dev
	$(BIN)/pytest $(SHARED) tests/$*

test-all: .venv/.dev
	$(BIN)/pytest $(SHARED) -m "slow or browser or gpu or not slow"

# Flower has an environment of its own, because it needs older releases of some packages.
test-flower: .venv-flower/.dev
	$(FLOWER)/mypy
	$(FLOWER)/pytest $(SHARED) -m "flower and not flower_slow"

# Mosquitto has to be installed: apt-get install mosquitto.
test-mqtt: .venv/.mqtt
	$(BIN)/pytest $(SHARED) tests/federation tests/benchmarks -m "mqtt and not mqtt_slow"

test-mqtt-all: .venv/.mqtt
	$(BIN)/pytest $(SHARED) tests/federation tests/benchmarks -m mqtt

test-flower-all: .venv-flower/.all
	$(FLOWER)/mypy
	$(FLOWER)/pytest $(SHARED) -m flower

# The command, a run and the tests with the oldest releases that pyproject.toml allows, torch aside.
test-lowest: .venv-lowest/.dev
	$(LOWEST)/python -m pip check
	$(LOWEST)/tinyproto --help
	$(LOWEST)/tinyproto run configs/quickstart.yaml train.rounds=2 --runs .venv-lowest/runs --overwrite
	$(LOWEST)/pytest $(SHARED) $(SUITES:%=--ignore=tests/%)

# At most 20 minutes on 2 cores, 5 of them with a broker that is away; without Mosquitto that part is skipped.
soak: .venv/.mqtt
	$(BIN)/python -m benchmarks soak

docs: .venv/.dev
	$(BIN)/python -X utf8 docs/configuration.py > docs/reference/configuration.md.new
	mv docs/reference/configuration.md.new docs/reference/configuration.md
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/pictures/flow.py
	$(BIN)/python -X utf8 -m paper docs

# docs/ as a static site in site/, with a search and an API reference; open site/index.html.
site: .venv-site/.site
	NO_MKDOCS_2_WARNING=1 $(SITE)/mkdocs build --quiet

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-flower .venv-lowest .venv-site site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

.venv/.pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinyproto needs Python 3.11 or newer; try make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@touch $@

.venv/.core: .venv/.pip pyproject.toml constraints.txt
	@echo "Setting up .venv (about a minute, once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

.venv/.dev: .venv/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv/.mqtt: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,mqtt]"
	@touch $@

.venv-flower/.dev: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinyproto needs Python 3.11 or newer; try make PYTHON=python3.11 ...")'
	@echo "Setting up .venv-flower (about two minutes, once)"
	$(PYTHON) -m venv .venv-flower
	$(FLOWER)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(FLOWER)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,flower,mqtt]"
	@touch $@

.venv-flower/.all: .venv-flower/.dev
	$(FLOWER)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,flower,flower-simulation]"
	@touch $@

.venv-site/.site: pyproject.toml
	@echo "Setting up .venv-site (half a minute, once)"
	$(PYTHON) -m venv .venv-site
	$(SITE)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(SITE)/python -m pip install --quiet --disable-pip-version-check --group site
	@touch $@

.venv-lowest/.dev: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the lower bounds are those of Python 3.11; try make PYTHON=python3.11 test-lowest")'
	@echo "Setting up .venv-lowest (about a minute, once)"
	$(PYTHON) -m venv --clear .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(LOWEST)/python tests/support_lowest.py > .venv-lowest/lowest.txt
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --constraint .venv-lowest/lowest.txt --editable . pytest pytest-cov pytest-xdist hypothesis
	@touch $@
