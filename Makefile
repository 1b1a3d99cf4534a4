# `make repro` runs the whole pipeline, `make demo` shows vectors of a trained model in seconds,
# `make test` runs the tests; each makes .venv first. EXTRAS=korean
# (or japanese, or both with a comma) adds what those tokenizers need, and the model of that language.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
EXTRAS ?=
ENGLISH := pretrained/english
KOREAN := pretrained/korean
JAPANESE := pretrained/japanese
STAMP := $(VENV)/.installed$(if $(EXTRAS),-$(EXTRAS))
export PATH := $(abspath $(VENV)/bin):$(PATH)
export DVC_NO_ANALYTICS := 1
# A process more than two cores: one often waits for Ray, a server or a process that was killed.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: repro demo check test fast docs setup clean distclean
comma := ,
repro: $(STAMP)
	@$(if $(PRESET),elmo preset $(PRESET),true)
	@elmo run

demo: $(STAMP)
	@python examples/two_senses.py build/two-senses.png

check: $(STAMP)
	@ruff check .
	@ruff format --check .
	@mypy

test: check
	@python -m pytest $(PARALLEL)

fast: $(STAMP)
	@python -m pytest $(PARALLEL) -m "not slow and not ray"

docs: $(STAMP)
	@sphinx-build -W --keep-going -q docs build/docs
	@echo "Open build/docs/index.html"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(ENGLISH)/pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11"; exit 1; }
	@echo "Setting up $(VENV) (about 2 GB, some minutes the first time)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[test$(if $(EXTRAS),$(comma)$(EXTRAS))]' --editable $(ENGLISH) $(if $(findstring korean,$(EXTRAS)),--editable $(KOREAN)) $(if $(findstring japanese,$(EXTRAS)),--editable $(JAPANESE)) --constraint constraints.txt
	@touch $@

# What the pipeline writes, but no trained model; distclean takes those and the environment too.
clean:
	rm -rf data curves report metrics figures build

distclean: clean
	rm -rf $(VENV) models runs mlruns mlflow.db
