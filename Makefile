# Every target sets up .venv from the lock file if it needs one. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup gpu text demo test quick e2e e2e-pods e2e-pjrt e2e-own mutate study bench docs lint lock clean horovod aot pjrt

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV := $(shell command -v uv)
STUDY ?= resnet-photos
# Files of long tests that have a target of their own; `make e2e` leaves them to it.
OWN_TESTS := tests/timetotrain/test_own_end_to_end.py
POD_TESTS := tests/common/export/test_replicas.py tests/common/export/test_pods.py
PJRT_TESTS := tests/timetotrain/run/test_pjrt_targets.py
export TF_CPP_MIN_LOG_LEVEL ?= 3

help:
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/.train ## install what a run needs into .venv

gpu: $(VENV)/.gpu ## install TensorFlow's CUDA libraries and NCCL besides, several GB; shows the GPUs that it sees
	@$(PY) -c 'import tensorflow as tf; print("GPUs     ", len(tf.config.list_physical_devices("GPU")))'

pjrt: $(VENV)/.pjrt ## install jax besides, for --replicas=pjrt; shows the devices that it sees
	@$(PY) -c 'import jax; print("devices  ", *jax.devices())'

text: $(VENV)/.text ## install what the translation benchmarks need besides

demo: $(VENV)/.train ## train ResNet-50 end to end on this machine, check its log
	@DATA_DIR=$${DATA_DIR:-.cache/resnet-tiny} SYSTEM=cpu-tiny ./resnet/run_and_time.sh

test: $(VENV)/.dev ## what CI runs: lint, then all tests but the long ones
	@$(MAKE) -s horovod || echo "going on without Horovod: its tests will be skipped" >&2
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m tools.run_tests -n 2 --dist loadfile -m "not study and not e2e" $(ARGS)

quick: $(VENV)/.dev ## what to run between edits: lint and the quick tests, two minutes
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m pytest -n 2 --dist loadfile -m "not study and not e2e" --quick $(ARGS)

e2e: $(VENV)/.dev ## every tiny benchmark to its target, every full-size network one step; goes on where it was stopped
	@$(PY) -m tools.run_tests --by-file --slots=2 -n0 -m e2e --journal=.cache/e2e.txt \
	  $(addprefix --ignore=,$(OWN_TESTS) $(POD_TESTS) $(PJRT_TESTS)) $(ARGS)

mutate: $(VENV)/.dev ## put faults into copies of the project, say which the tests miss
	@$(PY) -m tools.mutate $(ARGS)

e2e-own: $(VENV)/.dev ## from folders of own data to predictions, in four commands each
	@$(PY) -m pytest -s -m e2e $(OWN_TESTS) $(ARGS)

e2e-pods: $(VENV)/.dev ## exported steps of N replicas, on N CPU devices, equal those of mirrored
	@$(PY) -m pytest -n0 -m "e2e or not e2e" -rP $(POD_TESTS) $(ARGS)

e2e-pjrt: $(VENV)/.dev $(VENV)/.pjrt ## every tiny benchmark to its target through --replicas=pjrt; faults of two processes; goes on where it was stopped
	@$(PY) -m tools.run_tests --by-file -n0 -m e2e -k pjrt --journal=.cache/e2e-pjrt.txt $(PJRT_TESTS) tests/timetotrain/launch/test_runs.py $(ARGS)

study: $(VENV)/.dev ## a study on real data: make study STUDY=resnet-photos
	@$(PY) -m lab.studies $(STUDY) $(ARGS)

bench: $(VENV)/.dev ## measured comparisons with named peers, into lab/bench/results/
	@failed=; for script in lab/bench/[a-z]*.py; do module=lab.bench.$$(basename $$script .py); \
	  $(PY) -m $$module $(ARGS) || failed="$$failed $$module"; done; \
	  [ -z "$$failed" ] || { echo "error: these ended with an error, see above:$$failed" >&2; exit 1; }

docs: $(VENV)/.dev ## write the generated pages anew, then the site of all documents into build/site/
	@$(PY) -m tools.docs.performance && $(PY) -m systems.predict docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --site-dir build/site && echo "site     build/site/index.html"

lint: $(VENV)/.dev ## format and lint
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

lock: ## write the lock files anew from pyproject.toml (needs uv)
	@uv pip compile -q --no-header --python-version 3.11 pyproject.toml --extra train -o tools/requirements/train.lock
	@uv pip compile -q --no-header --python-version 3.11 pyproject.toml --extra train --extra text -o tools/requirements/text.lock
	@uv pip compile -q --no-header --python-version 3.11 --python-platform x86_64-manylinux_2_28 pyproject.toml --extra train --extra text --extra gpu -o tools/requirements/gpu.lock
	@uv pip compile -q --no-header --python-version 3.11 pyproject.toml --extra train --extra text --extra pjrt -o tools/requirements/pjrt.lock
	@uv pip compile -q --no-header --python-version 3.11 pyproject.toml --extra train --extra text --extra docs --extra xlsx --extra dev -o tools/requirements/dev.lock

horovod: $(VENV)/.horovod ## build Horovod for this TensorFlow and install it (once, minutes); with NCCL after make gpu

aot: .cache/aot/.installed ## install the compilers of TPUs and GPUs, which need no device

.cache/aot/.installed: tools/requirements/aot.txt
	@$(PYTHON) -m venv .cache/aot
	@echo "installing tools/requirements/aot.txt into .cache/aot (once, about two minutes)" >&2
	@.cache/aot/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements/aot.txt
	@touch $@

clean: ## remove the environment and every cache; results stay
	@rm -rf $(VENV) .cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "error: no python3 found; install Python 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "error: $(PYTHON) is no Python 3.11 or 3.12, which TensorFlow 2.20 and the lock file need; set PYTHON=" >&2; exit 1; }
	@if [ -n "$(UV)" ]; then $(UV) venv -q --python $(PYTHON) $(VENV); else $(PYTHON) -m venv $(VENV); fi

$(VENV)/.horovod: tools/horovod/build.sh $(wildcard tools/horovod/*requirements.txt tools/horovod/*.patch tools/horovod/*.sh $(VENV)/.gpu) $(VENV)/.train
	@tools/horovod/build.sh $(PY)
	@touch $@

$(VENV)/.%: tools/requirements/%.lock | $(VENV)/bin/python
	@echo "installing tools/requirements/$*.lock into $(VENV) (once, about a minute)" >&2
	@if [ -n "$(UV)" ]; then $(UV) pip install -q --python $(PY) -r $<; \
	  else $(PY) -m pip install -q --disable-pip-version-check --use-pep517 -r $< ; fi
	@touch $@
