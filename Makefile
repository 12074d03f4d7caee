# Two commands are enough: make demo, make test. Both make .venv at first use; nothing but Python 3.11 is needed.
PYTHON ?= python3.11
# Address of the package index that torch alone comes from, e.g. the one with its smaller CPU build; empty: the default index.
TORCH_INDEX_URL ?=
# More flags for `make demo`, e.g. DEMO="--seed 3"; for the test commands, e.g. PYTEST="-k staleness".
DEMO ?=
PYTEST ?=
# More flags for `make load`, e.g. LOAD="--only throughput", LOAD="--only memory --minutes 60".
LOAD ?=
# More flags for `make profile`, e.g. PROFILE="--note 'quiet machine'".
PROFILE ?=

# More flags for `make gpu-check`, e.g. GPU_CHECK="--only trainer --out /tmp/found.json".
GPU_CHECK ?=

VENV := .venv
# SGLang's pins conflict with ours, so its server has an environment of its own. DeepSpeed's has our packages and DeepSpeed.
SGLANG := .venv-sglang
DEEPSPEED := .venv-deepspeed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export OMP_NUM_THREADS := 1
# An environment that forbids bytecode files would have each worker and each process of a stack compile their sources anew.
unexport PYTHONDONTWRITEBYTECODE
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

IMAGE := proto/gradbus-v1.binpb
# A selection by PYTEST may leave one of two commands without tests; pytest then ends with status 5.
NONE = $(if $(PYTEST), || test $$? -eq 5)
# More processes than cores, because many tests wait; they take the files in the order in which the folders are named, the long ones first.
IN_PARALLEL = python -m pytest -m "not slow and not engines" --dist loadfile --no-loadscope-reorder --durations 25
PROTOC = python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) proto/gradbus/v1/*.proto

.DEFAULT_GOAL := help
.PHONY: help demo demo-tools demo-faults demo-compose test test-faults test-recipes test-compose test-kubernetes test-engines check types promises proto proto-image proto-drift fmt bench load profile gpu-check

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## a language model learns to add, in under three minutes
	@python examples/demo.py $(DEMO)

demo-tools: $(VENV)/.installed-demo  ## a language model learns to use a calculator; DEMO="--tool off": without its help
	@python examples/calculator/demo_tools.py $(DEMO)

demo-faults: $(VENV)/.installed-demo  ## a language model learns by a tool that fails, and is compared with a run without faults; DEMO="--tool off": without its help
	@python examples/ledger/demo_faults.py $(DEMO)

test: $(VENV)/.installed-dev  ## every test but the long ones
	$(IN_PARALLEL) -n 4 $(PYTEST) tests/contract tests/integration tests/engines tests/unit$(NONE)
	$(IN_PARALLEL) -n 4 $(PYTEST) tests/faults tests/e2e$(NONE)

test-faults: $(VENV)/.installed-dev  ## the long ones: kills at random and at named points, over many seeds
	python -m pytest -m "(faults or slow) and not engines" $(PYTEST)

test-recipes: $(VENV)/.installed-dev  ## each recipe's run with a tiny model, to its end
	python -m pytest -m slow $(PYTEST) tests/e2e/recipes

test-compose: $(VENV)/.installed-dev  ## the stack in containers: build, runs by curl, crashes, reward swap; needs a Docker engine
	python -m pytest -m compose $(PYTEST) tests/compose

test-kubernetes: $(VENV)/.installed-dev  ## a deployment on a cluster: runs by REST, kills, lost volumes; needs a cluster: docs/kubernetes.md
	python -m pytest -m kubernetes $(PYTEST) tests/kubernetes

demo-compose:  ## the demo's run against `docker compose up`, by curl alone; needs Docker and nothing else
	docker compose up --build --wait
	examples/demo_compose.sh $(DEMO)

test-engines: $(DEEPSPEED)/.installed $(SGLANG)/.installed  ## the contracts by the real SGLang server and DeepSpeed, on the CPU; 5 GB at first
	PATH=$(CURDIR)/$(DEEPSPEED)/bin:$$PATH DS_ACCELERATOR=cpu GRADBUS_TEST_SGLANG=$(CURDIR)/$(SGLANG)/bin/python $(DEEPSPEED)/bin/python -m pytest -m engines $(PYTEST)

# The type checker takes one core for a minute; the other checks run beside it.
check: $(VENV)/.installed-dev  ## style, types, layers, contracts, budgets
	@$(MAKE) --no-print-directory -j2 types promises

types:
	mypy

promises: proto-drift
	ruff check
	ruff format --check
	lint-imports
	hadolint services/*/Dockerfile services/*/*.Dockerfile examples/rewards/*/Dockerfile
	buf lint
	buf breaking --against $(IMAGE)
	python -m pytest -q tests/test_budgets.py tests/test_house.py

fmt: $(VENV)/.installed-dev  ## formats the code
	ruff format
	ruff check --fix

proto: $(VENV)/.installed-dev  ## generates libs/gradbus/v1 from proto/
	$(call PROTOC,libs)

proto-image: $(VENV)/.installed-dev  ## stores the current contracts as those that must not break (at a release)
	buf build -o $(IMAGE)

proto-drift: $(VENV)/.installed-dev
	@made=$$(mktemp -d); trap 'rm -rf $$made' EXIT; $(call PROTOC,$$made) && \
	diff -r -x __init__.py -x __pycache__ $$made/gradbus/v1 libs/gradbus/v1 || { echo "generated code is stale: run make proto"; exit 1; }

bench: $(VENV)/.installed-dev  ## Gradbus beside TRL, and five seeds of the demo; results in benchmarks/results
	python benchmarks/compare_trl.py
	python benchmarks/demo_seeds.py

profile: $(VENV)/.installed-load  ## where a step of the demo's run goes, into docs/performance.md; a line of benchmarks/results/history.jsonl
	python benchmarks/step_profile.py $(PROFILE)

# By .venv if it is there, else by the machine's own Python; nothing is installed.
gpu-check:  ## proves this project on a GPU in less than ten minutes: docs/gpu.md; GPU_CHECK_DRY=1: toy sizes on the CPU
	@env -u OMP_NUM_THREADS python3 benchmarks/gpu_check $(GPU_CHECK)

load: $(VENV)/.installed-load  ## load on the real services beside the machine's own probes; results in loadtests/results
	PYTHONPATH=loadtests python -m gradbus_load $(LOAD)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Torch comes first and by itself; pins next; then this checkout, which brings nothing more.
$(VENV)/.installed-%: requirements/%.txt requirements/torch.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing the packages of requirements/$*.txt into $(VENV) (once; torch is the large part)"
	python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -r requirements/torch.txt
	python -m pip install --quiet --disable-pip-version-check -r $<
	python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# More than the tests need, so `make test` does not install it.
$(VENV)/.installed-load: requirements/load.txt $(VENV)/.installed-dev
	python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(DEEPSPEED)/.installed: requirements/deepspeed.txt requirements/dev.txt requirements/torch.txt pyproject.toml
	@echo "installing the packages of $< and requirements/dev.txt into $(DEEPSPEED) (once; 2 GB)"
	$(PYTHON) -m venv $(DEEPSPEED)
	$(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -r requirements/torch.txt
	$(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt -r $<
	$(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(SGLANG)/.installed: requirements/sglang-cpu.txt requirements/torch.txt
	@echo "installing the packages of $< into $(SGLANG) (once; 3 GB)"
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -r requirements/torch.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@
