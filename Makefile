# Two commands: `make repro` runs the whole pipeline, `make test` the tests. Both make .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
export PATH := $(abspath $(VENV)/bin):$(PATH)
export DVC_NO_ANALYTICS := 1

.PHONY: repro test setup clean
repro: $(STAMP)
	@dvc repro
	@echo "Figures: dvc metrics show. Curves: mlflow ui --backend-store-uri sqlite:///mlflow.db"
	@echo "Report:  open report/index.html"

test: $(STAMP)
	@ruff check .
	@ruff format --check .
	@mypy
	@python -m pytest

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11"; exit 1; }
	@echo "Setting up $(VENV) (about 2 GB, some minutes the first time)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	@touch $@

clean:
	rm -rf $(VENV) data models runs curves report metrics
