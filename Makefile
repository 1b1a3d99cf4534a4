# `make repro` runs the whole pipeline, `make demo` draws vectors of a trained model, `make test` runs
# the tests. Each first installs what it needs into .venv.
#   TORCH=cpu               PyTorch's builds for the CPU (on Linux the default ones hold CUDA, gigabytes)
#   EXTRAS=korean,japanese  what these tokenizers need, and the trained models of these languages
#   PYTHON=python3.13       the Python of .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH ?=
EXTRAS ?=
VENV := .venv
comma := ,
MODELS := pretrained/english $(addprefix pretrained/,$(filter korean japanese,$(subst $(comma), ,$(EXTRAS))))
INSTALL := sh .ci/install "$(PYTHON)" $(VENV) "$(TORCH)"
STAMP := $(VENV)/.installed$(if $(EXTRAS),-$(subst $(comma),-,$(EXTRAS)))
export PATH := $(abspath $(VENV)/bin):$(PATH)
export DVC_NO_ANALYTICS := 1
# Without compiled files each process of Python takes seconds more to import torch and Ray.
unexport PYTHONDONTWRITEBYTECODE
# One process more than a machine of two cores has: one often waits for Ray, a server or a killed process.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: repro demo check test fast docs setup clean distclean
repro: $(STAMP)-pipeline
	@$(if $(PRESET),elmo preset $(PRESET),true)
	@elmo run

demo: $(STAMP)-pipeline
	@python examples/two_senses.py build/two-senses.png

check: $(STAMP)-test
	@ruff check .
	@ruff format --check .
	@mypy

test: check
	@python -m pytest $(PARALLEL)

fast: $(STAMP)-test
	@python -m pytest $(PARALLEL) -m "not slow and not ray"

docs: $(STAMP)-test
	@sphinx-build -W --keep-going -q docs build/docs
	@echo "Open build/docs/index.html"

setup: $(STAMP)-test

$(STAMP)-pipeline $(STAMP)-test: $(STAMP)-%: .ci/install pyproject.toml constraints.txt $(MODELS:=/pyproject.toml)
	@$(INSTALL) '.[$*$(if $(EXTRAS),$(comma)$(EXTRAS))]' $(MODELS)
	@touch $@

# What the pipeline writes, but no trained model; distclean removes those and the environment too.
clean:
	rm -rf build curves data metrics numbers report work

distclean: clean
	rm -rf $(VENV) models mlruns mlflow.db*
