# Trainstack. `make demo` and `make test` install everything they need; they require only Python 3.11 and make.
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
STACKS ?=
DATA ?=
FAULT ?= notice
BASE ?= HEAD
AGAINST ?= deployed
# Installs exactly the listed files: each has a hash, and pip does not add dependencies.
PIP := pip install --quiet --disable-pip-version-check --require-hashes --no-deps
export PATH := $(CURDIR)/$(BIN):$(PATH)
export AWS_CDK_DISABLE_VERSION_CHECK := true
export CDK_DISABLE_CLI_TELEMETRY := true
# Some images set this variable, which would make each of the many test and demo processes compile the project again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements.lock requirements-cpu.lock requirements-cuda.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is required, but this is {v[0]}.{v[1]}; use make PYTHON=/path/to/python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# PyPI has torch for CUDA only. If pip's configuration offers the build for CPUs, install that one: it is much smaller.
	@# Without that build, this fails, and the next line installs torch or prints the error.
	$(BIN)/python -m $(PIP) --no-compile --requirement requirements-cpu.lock 2>/dev/null || true
	$(BIN)/python -m $(PIP) --no-compile --requirement requirements.lock
	@# Only CUDA builds of torch need more packages. CPU builds end in +cpu, except on systems other than Linux.
	$(BIN)/python -c 'import sys, importlib.metadata as m; sys.exit(sys.platform == "linux" and "+cpu" not in m.version("torch"))' || \
	    $(BIN)/python -m $(PIP) --no-compile --requirement requirements-cuda.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# Compile on all cores, because pip uses only one. Some torch files require a newer Python and are never imported.
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@

node_modules/.installed: package-lock.json $(VENV)/.installed
	npm ci --loglevel=error --no-audit --no-fund || \
	    { echo "npm ci failed. Behind a proxy with its own certificate, set NODE_EXTRA_CA_CERTS to its file." >&2; exit 1; }
	touch $@

CHAOS_MINUTES ?= 12
SEED ?= 1

.PHONY: bench-image image-tools spot-economics chaos-in-place lock bundle bench-boot test-vm cdk-upgrade bench-checkpoint bench-synth bench-train bench-tokenize bench-gpu bench-operating bench-prewarm bench-staging parity perf-gate
.PHONY: help install demo demo-pipeline test truth mutate test-kubernetes test-slow test-flow test-deploy test-root test-slurm chaos goodput policy prose agreement check synth diff cdk-diff deploy destroy clean

install: node_modules/.installed ## install all dependencies into .venv and node_modules

demo: install ## deploy to the embedded cloud, train, lose a node, resume and write a report [DATA=folder] [FAULT=notice|no-notice|none]
	python -m localcloud.demo $(if $(DATA),--data "$(DATA)") --fault $(FAULT)

demo-pipeline: install ## run a pipeline on the embedded cloud: prepare, train four models, evaluate, export
	python -m localcloud.demo.pipeline

test: install ## run the tests
	python -m pytest -n 4 --dist loadgroup -m "not root and not flow and not deploy and not slow"

test-slow: install build/parity-venv/.installed build/kubernetes-venv/.installed build/trackers-venv/.installed build/parallelcluster-venv/.installed ## run the slow tests, which cover the same ground as demo, test-flow and chaos
	python -m pytest -n 2 --dist loadgroup -m "slow and not root and not flow and not deploy"

test-flow: install ## test a deployment from diff through an interruption to destroy, and check that every permission is used (needs an idle machine)
	python -m pytest -m flow

test-deploy: install ## deploy, change and destroy every example on the embedded cloud, and deploy merges to it
	python -m pytest -n 2 tests/deploy tests/gitops

test-root: install ## test with real disks (needs root, mdadm, xfsprogs and lvm2, and user-mode-linux if the kernel does not support arrays)
	python -m pytest -m root

test-slurm: install ## run random events and a sweep on a real two-node Slurm cluster (15 minutes; needs root and slurmctld, slurmd, slurm-client, munge, iproute2) [SEED=1]
	python -m tests.slurm --seed $(SEED)

truth: install ## compare the embedded cloud with recorded and published AWS responses [LOCALSTACK=checkout of LocalStack]
	LOCALSTACK="$(LOCALSTACK)" python -m tests.truth

fuzz: install ## feed 60,000 damaged files, documents, objects and responses to their readers (40 minutes) [SEED=1]
	python -m tests.fuzz --seed $(SEED)

mutate: install ## check that the tests detect each of 30 single-line faults (10 minutes)
	python -m tests.mutate

chaos: install ## kill runs and break their storage at random, until 300 interruptions (15 to 25 minutes on two cores; needs an idle machine) [CHAOS_MINUTES=12, the minimum] [SEED=1]
	python -m benchmarks.chaos --minutes $(CHAOS_MINUTES) --seed $(SEED)

chaos-in-place: install ## change a gang in place at random (parallel.reform), and check every step and bit [SEED=1]
	python -m benchmarks.chaos.reforming --seed $(SEED)
	python -m benchmarks.chaos.in_place --seed $(SEED)

goodput: file-checkpoint = build/bench/checkpoint.json
goodput: file-changes = build/bench/boot.json
goodput: install ## replay spot traces with the real save and gang policies [TRACES=folder]
	@test -n "$(TRACES)" || { echo 'make goodput: set TRACES=folder; see python -m benchmarks.goodput --help'; exit 2; }
	python -m benchmarks.goodput $(foreach each,checkpoint changes,$(if $(wildcard $(file-$(each))),--$(each) $(file-$(each)))) $(TRACES)

spot-economics: install ## compare the costs of placement policies on priced spot traces [TRACES=folder]
	@test -n "$(TRACES)" || { echo 'make spot-economics: set TRACES=folder; see python -m benchmarks.spot_economics --help'; exit 2; }
	python -m benchmarks.spot_economics $(TRACES)
	TRACES="$(abspath $(TRACES))" python -m pytest -m slow tests/localcloud/compute/test_bad_day.py -k recorded

build/checkov-venv/.installed: policy/requirements-checkov.lock $(VENV)/.installed
	test -x build/checkov-venv/bin/python || $(PYTHON) -m venv build/checkov-venv
	build/checkov-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/reference-venv/.installed: policy/requirements-reference.txt $(VENV)/.installed
	test -x build/reference-venv/bin/python || $(PYTHON) -m venv build/reference-venv
	build/reference-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/proselint-venv/.installed: policy/requirements-proselint.txt $(VENV)/.installed
	test -x build/proselint-venv/bin/python || $(PYTHON) -m venv build/proselint-venv
	build/proselint-venv/bin/python -m $(PIP) --requirement $<
	touch $@

prose: install build/proselint-venv/.installed ## lint docs and docstrings with proselint; the findings are only suggestions
	python -m tests.architecture.words --extract build/prose
	@# The typography and repeated-word findings concern only tables and code samples.
	build/proselint-venv/bin/proselint check README.md docs/*.md build/prose/*.txt | grep -v 'typography\|lexical_illusions' || true

policy: install build/checkov-venv/.installed build/reference-venv/.installed ## check every template with cfn-lint, cdk-nag, checkov and AWS's authorization reference; each accepted finding requires a written reason
	python -m stacks policy

agreement: install ## deploy changes to the embedded cloud, and compare their effects with the reviews
	python -m tests.stacks.changes.agreement

bench-checkpoint: install ## compare saves and loads with torch and DCP: build/bench/checkpoint.json
	python -m benchmarks.checkpoint

build/parity-venv/.installed: policy/requirements-parity.lock $(VENV)/.installed
	test -x build/parity-venv/bin/python || $(PYTHON) -m venv build/parity-venv
	@# The environment uses the project's torch, so that all trainers run the same kernels.
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/parity-venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	build/parity-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/trackers-venv/.installed: policy/requirements-trackers.lock $(VENV)/.installed
	test -x build/trackers-venv/bin/python || $(PYTHON) -m venv build/trackers-venv
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/trackers-venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	build/trackers-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/kubernetes-venv/.installed: policy/requirements-kubernetes.lock
	test -x build/kubernetes-venv/bin/python || $(PYTHON) -m venv build/kubernetes-venv
	build/kubernetes-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/parallelcluster-venv/.installed: policy/requirements-parallelcluster.lock
	test -x build/parallelcluster-venv/bin/python || $(PYTHON) -m venv build/parallelcluster-venv
	build/parallelcluster-venv/bin/python -m $(PIP) --requirement $<
	touch $@

build/image-venv/.installed: policy/requirements-image.lock
	test -x build/image-venv/bin/python || $(PYTHON) -m venv build/image-venv
	build/image-venv/bin/python -m $(PIP) --requirement $<
	touch $@

image-tools: build/image-venv/.installed ## install cyclonedx-py and hadolint, which `trainstack image` calls, into build/image-venv

bench-image: install build/image-venv/.installed ## build images cold and after edits, compare digests, and train in the root file system: build/bench/image.json (needs root, buildah and debootstrap)
	python -m benchmarks.image

test-kubernetes: install build/kubernetes-venv/.installed ## validate manifests against the schemas of three Kubernetes versions, JobSet and Kubeflow Trainer, and run pods
	python -m pytest -n 2 -m "slow or not slow" tests/kubernetes

parity: install build/parity-venv/.installed ## compare losses, gradient norms and weights with plain PyTorch, HF Trainer and Lightning: build/bench/parity.json [NANOGPT=clone of karpathy/nanoGPT]
	python -m benchmarks.parity --python build/parity-venv/bin/python $(if $(NANOGPT),--nanogpt $(NANOGPT))

.PHONY: own-work
own-work: install build/parity-venv/.installed ## make training scripts resumable, kill and resume them, and compare: build/bench/own-work.json [NANOGPT=clone of karpathy/nanoGPT]
	python -m benchmarks.own_work --python build/parity-venv/bin/python $(if $(NANOGPT),--nanogpt $(NANOGPT))

bench-synth: install ## measure the duration of synthesis and of check: build/bench/synth.json
	python -m benchmarks.synth

bench-train: install ## compare the trainer with a bare loop: build/bench/train.json (needs an idle machine)
	python -m benchmarks.train

bench-tokenize: install ## compare tokenizing with a bare tiktoken pool: build/bench/tokenize.json
	python -m benchmarks.tokenize

bench-gpu: install ## measure models and ablations on the local GPUs: build/bench/gpu.json (without a GPU, only prints a message)
	python -m benchmarks.gpu

bench-prewarm: install ## compare the pre-warm with dd and fio: build/bench/prewarm.json (needs root, fio and FUSE)
	python -m benchmarks.prewarm

bench-staging: install ## compare staging with aws-cli and s5cmd: build/bench/staging.json
	python -m benchmarks.staging

bench-boot: install ## compute the critical path of a boot, and measure the cost of losing a node: build/bench/boot.json (15 minutes, needs an idle machine)
	python -m benchmarks.boot

bench-operating: install ## measure trainstack status and logs --follow: build/bench/operating.json (needs an idle machine)
	python -m benchmarks.operating

test-vm: install ## boot a Debian guest with cloud-init in QEMU, and train in it (needs root, debootstrap and qemu-system-x86; 25 minutes)
	python -m tests.vm

cdk-upgrade: install ## show how upgrading from the previous CDK release changes the templates
	python -m benchmarks.cdk_upgrade

perf-gate: install ## compare the working tree's speed with another revision [BASE=HEAD]
	python -m benchmarks.perf_gate $(BASE)

check: install ## check lint, format, types, shell scripts and the word list
	ruff check .
	ruff format --check .
	mypy --num-workers auto app.py hardware stacks bootstrap training trainstack localcloud benchmarks
	mypy examples/vision/shapes.py examples/language_model/recurrent.py examples/script/train.py
	shellcheck stacks/constructs/nodes/shim.sh .ci/run
	python -m tests.architecture.words

build/lock-venv/.installed: policy/requirements-lock.txt $(VENV)/.installed
	test -x build/lock-venv/bin/python || $(PYTHON) -m venv build/lock-venv
	build/lock-venv/bin/python -m $(PIP) --requirement $<
	touch $@

LOCK := build/lock-venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate

lock: build/lock-venv/.installed ## write the hashes of requirements*.txt for all platforms: *.lock
	$(LOCK) --python-version 3.11 $(foreach name,$(shell sed -n 's/==.*//p' requirements-cuda.txt),--no-emit-package $(name)) requirements.txt --output-file requirements.lock
	for name in requirements-cuda policy/requirements-checkov policy/requirements-image policy/requirements-kubernetes policy/requirements-parallelcluster policy/requirements-parity policy/requirements-trackers; do \
	    $(LOCK) --python-version 3.11.5 --no-deps $$name.txt --output-file $$name.lock || exit 1; \
	done

bundle: install ## lock and build the wheels that nodes install [CONFIG=config/x.yaml]
	python -m stacks bundle $(CONFIG)

synth: install ## synthesize the templates [CONFIG=config/x.yaml]
	python -m stacks bundle $(CONFIG) --locked
	$(CDK) synth $(STACKS) --quiet -c config=$(CONFIG)

diff: install ## explain the effects of a deploy [CONFIG=...] [AGAINST=deployed|REVISION|FOLDER]
	python -m stacks bundle $(CONFIG) --locked
	@# The review's exit code is for pipelines: make would report a review that needs approval as an error.
	python -m trainstack config diff $(CONFIG) --against $(AGAINST) --exit-zero

cdk-diff: install ## show the CDK's raw template diff [CONFIG=...] [STACKS=TrainingStack]
	python -m stacks bundle $(CONFIG) --locked
	$(CDK) diff $(STACKS) -c config=$(CONFIG)

deploy: install ## review, then deploy to the AWS account that your credentials belong to [CONFIG=...] [STACKS=TrainingStack] [APPROVED=20|30|40: do not prompt]
	python -m trainstack up $(CONFIG) $(STACKS) $(if $(APPROVED),--approved $(APPROVED)) --no-follow

destroy: install ## delete the fleet, network and alarms; list the remaining data with its monthly price [CONFIG=...] [YES=1: do not prompt]
	python -m trainstack down $(CONFIG) $(if $(YES),--yes)

clean: ## stop the embedded cloud and delete build outputs, but keep .venv and node_modules
	if [ -x $(BIN)/python ]; then $(BIN)/python -m localcloud down || exit 1; fi
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
