# Every target sets up .venv from the lock file if it needs one. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup gpu gpu-tf text demo test test-all quick e2e e2e-pods e2e-pjrt e2e-own mutate study bench docs lint lock clean horovod aot

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV := $(shell command -v uv)
STUDY ?= legw-mnist
# Of jax's runtime for NVIDIA's GPUs: 13, which needs driver 580, or 12.
CUDA ?= 13
LOCK := tools/requirements/dev.lock
# What each target installs, as extras of pyproject.toml.
TEXT := train text
ALL := $(TEXT) docs dev
EXTRAS := $(ALL) aot gpu gpu-cuda12 gpu-tf
# Files of long tests that have a target of their own; `make e2e` leaves them to it.
OWN_TESTS := tests/timetotrain/test_own_end_to_end.py
POD_TESTS := tests/common/export/test_replicas.py tests/common/export/test_pods.py
PJRT_TESTS := tests/timetotrain/run/test_pjrt_targets.py
export TF_CPP_MIN_LOG_LEVEL ?= 3

help:
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/.train ## install what a run needs into .venv

gpu: $(VENV)/.gpu$(CUDA) ## install jax's CUDA runtime, several GB: CUDA=13, or CUDA=12 for an older driver; shows the GPUs that jax sees
	@$(PY) -c 'import jax; print("jax      ", jax.__version__ + ":", *(f"{d.device_kind} ({d.platform})" for d in jax.devices()))'

gpu-tf: $(VENV)/.gpu-tf ## install TensorFlow's CUDA libraries and NCCL, for Horovod on V100 and A100; shows the GPUs that TensorFlow sees
	@$(PY) -c 'import tensorflow as tf; print("GPUs     ", len(tf.config.list_physical_devices("GPU")))'

text: $(VENV)/.text ## install what the translation benchmarks need besides

demo: $(VENV)/.train ## train ResNet-50 end to end on this machine, check its log
	@DATA_DIR=$${DATA_DIR:-.cache/resnet-tiny} SYSTEM=cpu-tiny ./resnet/run_and_time.sh

test: $(VENV)/.dev ## what to run before a commit: lint, the quick tests, and the slow ones of headline facts
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m tools.run_tests -n 2 --dist loadfile -m "not study and not e2e" --headline $(ARGS)

test-all: $(VENV)/.dev ## the tests that make test leaves out, but for e2e; CI runs both
	@$(MAKE) -s horovod || echo "going on without Horovod: its tests will be skipped" >&2
	@$(PY) -m tools.run_tests -n 2 --dist loadfile -m "not study and not e2e" --rest $(ARGS)

quick: $(VENV)/.dev ## what to run between edits: lint and the quick tests, five minutes on two cores
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m pytest -n 2 --dist loadfile -m "not study and not e2e" --quick $(ARGS)

e2e: $(VENV)/.dev ## every tiny benchmark to its target, every full-size network one step; goes on where it was stopped
	@$(PY) -m tools.run_tests --by_file --slots=2 -n0 -m e2e --journal=.cache/e2e.txt \
	  $(addprefix --ignore=,$(OWN_TESTS) $(POD_TESTS) $(PJRT_TESTS)) $(ARGS)

mutate: $(VENV)/.dev ## put faults into copies of the project, say which the tests miss
	@$(PY) -m tools.mutate $(ARGS)

e2e-own: $(VENV)/.dev ## from folders of own data to predictions, in four commands each
	@$(PY) -m pytest -s -m e2e $(OWN_TESTS) $(ARGS)

e2e-pods: $(VENV)/.dev ## exported steps of N replicas, on N CPU devices, equal those of mirrored
	@$(PY) -m pytest -n0 -m "e2e or not e2e" -rP $(POD_TESTS) $(ARGS)

e2e-pjrt: $(VENV)/.dev ## every tiny benchmark to its target through --replicas=pjrt; faults of two processes; goes on where it was stopped
	@$(PY) -m tools.run_tests --by_file -n0 -m e2e -k pjrt --journal=.cache/e2e-pjrt.txt $(PJRT_TESTS) tests/timetotrain/launch/test_runs.py $(ARGS)

study: $(VENV)/.dev ## a study on real data: make study STUDY=legw-ptb
	@$(PY) -m lab.studies $(STUDY) $(ARGS)

bench: $(VENV)/.dev ## measurements, most next to a named peer, into lab/bench/results/
	@failed=; for script in lab/bench/[a-z]*.py; do module=lab.bench.$$(basename $$script .py); \
	  $(PY) -m $$module $(ARGS) || failed="$$failed $$module"; done; \
	  [ -z "$$failed" ] || { echo "error: these ended with an error, see above:$$failed" >&2; exit 1; }

docs: $(VENV)/.dev ## write the generated pages anew, then the site of all documents into build/site/
	@$(PY) -m tools.docs.performance
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --site-dir build/site && echo "site     build/site/index.html"

lint: $(VENV)/.dev ## format and lint
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

lock: ## write the lock file anew from pyproject.toml (needs uv): one for Python 3.11 to 3.13
	@uv pip compile -q --no-header --universal --python-version 3.11 pyproject.toml $(EXTRAS:%=--extra %) -o $(LOCK)

horovod: $(VENV)/.horovod ## build Horovod for this TensorFlow and install it (once, minutes); with NCCL after make gpu-tf

aot: $(VENV)/.aot ## install the compilers of TPUs and GPUs, which need no device

clean: ## remove the environment and every cache; results stay
	@rm -rf $(VENV) .cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "error: no python3 found; install Python 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "error: $(PYTHON) is no Python 3.11, 3.12 or 3.13, which the lock file is for; set PYTHON=" >&2; exit 1; }
	@if [ -n "$(UV)" ]; then $(UV) venv -q --python $(PYTHON) $(VENV); else $(PYTHON) -m venv $(VENV); fi

$(VENV)/.horovod: tools/horovod/build.sh $(wildcard tools/horovod/*requirements.txt tools/horovod/*.patch tools/horovod/*.sh $(VENV)/.gpu-tf) $(VENV)/.train
	@tools/horovod/build.sh $(PY)
	@touch $@

# Installs extras: $(call install,EXTRAS,FLAGS).
install = echo "installing $(1) from $(LOCK) into $(VENV) (once, about a minute)" >&2; \
  packages=$$($(PY) tools/packages.py $(1)); set -f; \
  if [ -n "$(UV)" ]; then $(UV) pip install -q --python $(PY) $(2) -c $(LOCK) $$packages; \
  else $(PY) -m pip install -q --disable-pip-version-check --use-pep517 $(2) -c $(LOCK) $$packages; fi
uninstall = if [ -n "$(UV)" ]; then $(UV) pip uninstall -q --python $(PY) $(1); \
  else $(PY) -m pip uninstall -q -y $(1); fi

$(VENV)/.train: $(LOCK) | $(VENV)/bin/python
	@$(call install,train)
	@touch $@

$(VENV)/.text: $(LOCK) | $(VENV)/bin/python
	@$(call install,$(TEXT))
	@touch $@

$(VENV)/.dev: $(LOCK) | $(VENV)/bin/python
	@$(call install,$(ALL))
	@touch $@

# In a folder of their own (systems/compile/run.py): every import of jax would look for their devices, and complain.
$(VENV)/.aot: $(LOCK) $(VENV)/.train | $(VENV)/bin/python
	@$(call install,--alone aot,--no-deps --target $(VENV)/aot --upgrade)
	@touch $@

# jax takes the CUDA of one plugin.
$(VENV)/.gpu12: $(LOCK) | $(VENV)/bin/python
	@$(call uninstall,jax-cuda13-plugin jax-cuda13-pjrt)
	@$(call install,$(TEXT) gpu-cuda12)
	@rm -f $(VENV)/.gpu13 && touch $@

$(VENV)/.gpu13: $(LOCK) | $(VENV)/bin/python
	@$(call uninstall,jax-cuda12-plugin jax-cuda12-pjrt)
	@$(call install,$(TEXT) gpu)
	@rm -f $(VENV)/.gpu12 && touch $@

$(VENV)/.gpu-tf: $(LOCK) | $(VENV)/bin/python
	@$(call install,$(TEXT) gpu-tf)
	@touch $@
