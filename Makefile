# Trainstack. `make demo` and `make test` do all the set-up on a machine with Python 3.11 and make.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3.11
ifeq (,$(shell command -v $(PYTHON) 2>/dev/null))
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
CDK := node_modules/.bin/cdk
CONFIG ?= config/single-gpu.yaml
STACKS ?= --all
DATA ?=
FAULT ?= notice
BASE ?= HEAD
AGAINST ?= deployed
export PATH := $(CURDIR)/$(BIN):$(PATH)
export AWS_CDK_DISABLE_VERSION_CHECK := true
export CDK_DISABLE_CLI_TELEMETRY := true
# Set by some images: each of the many processes of tests and demo would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, this is {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement requirements.txt
	@# On every core, where pip compiles on one. Some files of torch are for a newer Python only: they are not imported.
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@

node_modules/.installed: package-lock.json $(VENV)/.installed
	npm ci --silent --no-audit --no-fund
	touch $@

CHAOS_MINUTES ?= 8
SEED ?= 1

.PHONY: help install demo test test-slow test-flow test-deploy test-root chaos goodput policy agreement check synth review diff deploy destroy clean
.PHONY: bundle bench-boot test-vm cdk-upgrade bench-checkpoint bench-synth bench-train bench-tokenize bench-gpu bench-prewarm bench-staging perf-gate

install: node_modules/.installed ## install what the project needs into .venv and node_modules

demo: install ## deploy to the embedded cloud, train, lose a node, resume, report [DATA=folder] [FAULT=notice|no-notice|none]
	python -m localcloud.demo $(if $(DATA),--data "$(DATA)") --fault $(FAULT)

test: install ## run the tests
	python -m pytest -n 3 --dist loadgroup -m "not root and not flow and not deploy and not slow"

test-slow: install ## run the tests that the demo, test-flow or chaos cover too
	python -m pytest -n 2 --dist loadgroup -m "slow and not root and not flow and not deploy"

test-flow: install ## run the test of a changed deployment from diff over an interruption to destroy, and that no right is unused (nothing beside it)
	python -m pytest -m flow

test-deploy: install ## deploy, change and destroy every example on the embedded cloud; carry merges to it
	python -m pytest -n 2 tests/deploy tests/gitops

test-root: install ## run the tests on real disks (root, mdadm, xfsprogs; user-mode-linux where the kernel has no arrays)
	python -m pytest -m root

chaos: install ## kill runs and break their storage at random, until 300 interruptions, about 15 minutes [CHAOS_MINUTES=8 at least] [SEED=1]
	python -m benchmarks.chaos --minutes $(CHAOS_MINUTES) --seed $(SEED)

goodput: install ## replay spot traces against the rules of saving and forming gangs [TRACES=folder]
	@test -n "$(TRACES)" || { echo 'make goodput TRACES=folder: which traces? python -m benchmarks.goodput --help'; exit 2; }
	python -m benchmarks.goodput $(if $(wildcard build/bench/checkpoint.json),--checkpoint build/bench/checkpoint.json) $(TRACES)

build/checkov-venv/.installed: policy/requirements-checkov.txt $(VENV)/.installed
	test -x build/checkov-venv/bin/python || $(PYTHON) -m venv build/checkov-venv
	build/checkov-venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

policy: install build/checkov-venv/.installed ## check every template with cfn-lint, cdk-nag and checkov; no finding without a written reason
	python -m stacks policy

agreement: install ## deploy changes to the embedded cloud and compare what happens with what was said of them
	python -m tests.stacks.changes.agreement

bench-checkpoint: install ## measure saving and loading against torch and DCP: build/bench/checkpoint.json
	python -m benchmarks.checkpoint

bench-synth: install ## measure synthesis and check: build/bench/synth.json
	python -m benchmarks.synth

bench-train: install ## measure the trainer against a bare loop: build/bench/train.json (nothing beside it)
	python -m benchmarks.train

bench-tokenize: install ## measure tokenizing against a bare tiktoken pool: build/bench/tokenize.json
	python -m benchmarks.tokenize

bench-gpu: install ## measure models and levers on the GPUs here: build/bench/gpu.json; says so without one
	python -m benchmarks.gpu

bench-prewarm: install ## measure the pre-warm against dd and fio: build/bench/prewarm.json (root, fio, FUSE)
	python -m benchmarks.prewarm

bench-staging: install ## measure staging against aws-cli and s5cmd: build/bench/staging.json
	python -m benchmarks.staging

bench-boot: install ## compute the boot's longest path, measure what each loss of a node costs: build/bench/boot.json (15 minutes, nothing beside it)
	python -m benchmarks.boot

test-vm: install ## boot a Debian guest in QEMU by cloud-init and train in it (root, debootstrap, qemu-system-x86; 25 minutes and more)
	python -m tests.vm

cdk-upgrade: install ## show what the neighbouring release of the CDK would change in the templates
	python -m benchmarks.cdk_upgrade

perf-gate: install ## compare the working tree's speed with another revision [BASE=HEAD]
	python -m benchmarks.perf_gate $(BASE)

check: install ## lint, format, types, shell
	ruff check .
	ruff format --check .
	mypy --num-workers auto app.py stacks bootstrap training localcloud benchmarks
	mypy examples/vision/shapes.py examples/language_model/recurrent.py examples/script/train.py
	shellcheck stacks/shim.sh .ci/run

bundle: install ## lock and build the wheels that nodes install [CONFIG=config/x.yaml]
	python -m stacks bundle $(CONFIG)

synth: install ## synthesise the templates [CONFIG=config/x.yaml]
	python -m stacks bundle $(CONFIG) --locked
	$(CDK) synth $(STACKS) --quiet -c config=$(CONFIG)

review: install ## say in words what a deploy would do [CONFIG=...] [AGAINST=deployed|REVISION|FOLDER]
	python -m stacks bundle $(CONFIG) --locked
	python -m stacks diff $(CONFIG) --against $(AGAINST)

diff: install ## show what a deploy would change [CONFIG=...] [STACKS=TrainingStack]
	python -m stacks bundle $(CONFIG) --locked
	$(CDK) diff $(STACKS) -c config=$(CONFIG)

deploy: install ## deploy to the AWS account of your credentials [CONFIG=...] [STACKS=TrainingStack]
	python -m stacks bundle $(CONFIG) --locked
	$(CDK) deploy $(STACKS) -c config=$(CONFIG)

destroy: install ## remove the stacks; data stays unless two keys say otherwise [CONFIG=...] [STACKS=TrainingStack]
	$(CDK) destroy $(STACKS) -c config=$(CONFIG)

clean: ## stop the embedded cloud and remove what was built (not .venv and node_modules)
	if [ -x $(BIN)/python ]; then $(BIN)/python -m localcloud down || exit 1; fi
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
