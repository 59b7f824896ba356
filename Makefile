PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements.lock requirements-dev.lock

.PHONY: setup demo up test test-all models fuzz soak bench check format docs

setup: $(VENV)/.complete

$(VENV)/.complete: $(LOCKS) pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --no-deps $(addprefix -r ,$(LOCKS))
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/python -m deploy.demo

up: setup
	$(BIN)/python -m deploy.demo --serve

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	$(BIN)/python -m docs.configuration
	$(BIN)/python -m docs.api

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check
	$(BIN)/python -m pytest

test-all: check
	$(BIN)/python -m pytest -m "slow or not slow"

models: setup
	$(BIN)/python -m tests.models

fuzz: setup
	$(BIN)/python -m tests.hostile

soak: setup
	$(BIN)/python -m tests.soak --write

bench: setup
	$(BIN)/python -m benchmarks.serving --write
	$(BIN)/python -m benchmarks.render --write
