# On a fresh machine: `make run` trains the default job, `make test` runs the tests.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: all run demo sbom test test-slow coverage docs mutants fuzz check bench clean

run: .venv/installed
	$(BIN)/fedveil run

# The packages for many machines (fedveil hub, site, federation) and for research (audit, attack, check, reproduce).
all: .venv/all

# A hub and three hospitals as processes with mTLS, two of them killed on the way; see docs/deploy.md.
demo: .venv/all
	$(BIN)/python tools/demo.py

# What is installed for a hub or a site, as a CycloneDX document: every library with version, licence and digest.
sbom: .venv/all
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	.venv/sbom/bin/cyclonedx-py environment .venv --output-reproducible --output-file sbom.json

# For two cores: workers of one thread each, and a third because many tests wait for processes that
# they started. Compiled modules are kept, whatever the environment says.
test: .venv/tested
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

test-slow: .venv/tested
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -m slow

# The documentation site, in site/: open site/index.html. Warnings are errors.
docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Which lines no test executes; about twice as long as the tests alone.
coverage: .venv/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --cov=fedveil --cov=fedveil_federation --cov=fedveil_lab --cov-report=term-missing:skip-covered

# Would the tests notice a wrong operator? A seeded sample of mutants of the privacy path.
mutants: .venv/tested
	$(BIN)/python tools/mutants.py --cover --sample 100 --seed 1

# A million pairs of neighbours (tests/neighbours): about 40 minutes of CPU time, half as long on two quiet cores. A
# violation stops it at once and says how to run its case again. `FUZZ="--minutes 10"` stops earlier;
# with `FUZZ="--state FILE"` it can be interrupted, and the same command goes on.
fuzz: .venv/tested
	PYTHONPATH=packages/fedveil OMP_NUM_THREADS=1 $(BIN)/python -m tests.neighbours --pairs 1000000 --values 5 5 4 --processes 2 $(FUZZ)

# About an hour on two quiet cores; `.venv/bin/python -m benchmarks --quick` takes a few minutes.
bench: .venv/all
	$(BIN)/python -m benchmarks

check: .venv/tested
	$(BIN)/ruff check packages benchmarks tools conftest.py
	$(BIN)/ruff format --check packages benchmarks tools conftest.py
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv .mutants site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and by its exact name: any other spelling may pull gigabytes of CUDA libraries.
.venv/installed: packages/fedveil/pyproject.toml constraints.txt
	@echo "Setting up .venv (about a minute the first time)..."
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable packages/fedveil
	@touch $@

.venv/all: .venv/installed packages/fedveil-federation/pyproject.toml packages/fedveil-lab/pyproject.toml
	$(PIP) --no-build-isolation --editable packages/fedveil-federation --editable packages/fedveil-lab
	@touch $@

.venv/tested: .venv/all requirements-test.txt
	@echo "Adding the test tools..."
	$(PIP) --requirement requirements-test.txt
	@touch $@

# The other courier, for those who run NVIDIA FLARE; it is tested where it is installed.
.venv/flare: .venv/all
	@echo "Adding NVIDIA FLARE (about a minute)..."
	$(PIP) --no-build-isolation --editable 'packages/fedveil-federation[flare]'
	@touch $@

.venv/documented: .venv/all requirements-docs.txt
	@echo "Adding the documentation tools..."
	$(PIP) --requirement requirements-docs.txt
	@touch $@

# Checks of accessibility in the browser tests; needs npm.
.venv/axe-core: .venv/installed
	mkdir -p $@
	cd $@ && npm pack --silent axe-core@4.11.0 && tar -xzf axe-core-*.tgz package/axe.min.js
