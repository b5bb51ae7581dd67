# Two commands do everything on a fresh machine: `make demo` and `make test`. `make` alone lists them all.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo test long coverage format bench zoo campaign docs notebooks site audit sbom

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv with the tested versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("smi needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)  ## Pretrain SMI and Barlow Twins on digits, then compare them with few labels
	$(BIN)/smi demo --out runs/demo

test: $(STAMP)  ## Check style, types and layers, and run the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST)

long: $(STAMP)  ## Run the tests that take minutes: lost machines, signals, restarts
	$(BIN)/pytest --long -m long

coverage: $(STAMP)  ## Run the tests and print their branch coverage (a quarter slower)
	$(PYTEST) --cov --cov-report=term

format: $(STAMP)  ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Run the benchmarks (minutes; keep the machine quiet)
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/views.py
	$(BIN)/python benchmarks/feeding.py
	$(BIN)/python benchmarks/evaluation.py

zoo: $(STAMP)  ## Collect encoders with results and digests in dist/zoo: make zoo RUNS="runs/cifar10 runs/mine"
	$(BIN)/python benchmarks/zoo.py write $(RUNS)

CAMPAIGN := kills power faults hostile fuzz sanitizers load elsewhere

campaign: $(STAMP)  ## Kill, fault, fuzz and overload the commands (an hour), and record what was lost
	for part in $(CAMPAIGN); do \
		[ ! -e campaign/$$part.py ] || $(BIN)/python campaign/$$part.py || exit 1; \
	done

docs: $(STAMP)  ## Redraw the method, and regenerate the parts of README.md and docs/ that commands print
	$(BIN)/python docs/generate.py

notebooks: $(STAMP)  ## Run the notebooks at full size and store their output (minutes)
	$(BIN)/python notebooks/run.py

site: .venv/.docs  ## Build the site into site/; after the installation it needs no network
	$(BIN)/python docs/site/build.py
	SMI_SITE=site $(BIN)/pytest tests/test_site.py

.venv/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

audit: $(STAMP)  ## Look up known vulnerabilities of the tested versions (asks an advisory service)
	$(BIN)/python -m pip install --quiet --upgrade --target .venv/audit 'pip-audit>=2.7,<3'
	PYTHONPATH=.venv/audit $(BIN)/python -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

sbom: $(STAMP)  ## Write sbom.json, the tested versions as a CycloneDX bill of materials
	$(BIN)/python campaign/sbom.py
