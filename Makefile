# Every target sets up what it needs, in .venv; a second run starts at once.
#
#   make train        trains the default model on this machine
#   make train-long   the same for longer
#   make test         format, lint, types, tests and doctests; TESTS="-k einsum" chooses
#   make quick        the same without the slow tests
#   make public       the quick tests with TensorFlow's public interface alone, where there is a way
#   make mutants      breaks some sixty rules one by one: the tests must notice each
#   make test-spmd    all tests of live meshes: every op, every layout, drawn programs, faults;
#                     over an hour
#   make spmd-versions   the short tests of live meshes with several versions of jax; half an
#                     hour, and 350 MB for each version
#   make keras-versions  the short tests of Keras models with several versions of Keras; an hour,
#                     and 10 MB for each version
#   make fuzz         draws programs and compares them with TensorFlow's, for MINUTES=30
#   make bert         pretrains and fine-tunes small BERTs: examples/bert/README.md
#   make docs         writes a reference of all public names to build/docs
#   make keras-models   runs sixty Keras models on a mesh beside Keras, and writes
#                     docs/reference/keras_models.md; an hour; KERAS_HUB=folder of keras_hub
#   make gallery      writes docs/reference/layouts.md and its pictures anew

VENV := .venv
TESTS ?=
MINUTES ?= 30
KERAS_HUB ?=
WORKERS ?= 2
JAX_VERSIONS ?= 0.6.2 0.7.2 0.8.3 0.9.2 0.10.2
KERAS_VERSIONS ?= 3.10.0 3.11.3 3.12.4 3.13.2 3.14.1 3.15.1
export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: train train-long test quick public mutants test-spmd spmd-versions keras-versions fuzz \
  bert docs keras-models gallery clean

train: $(VENV)/.run
	$(VENV)/bin/python -m transformer.train $(FLAGS)

train-long: $(VENV)/.run
	$(VENV)/bin/python -m transformer.train --gin_file=long.gin $(FLAGS)

test: $(VENV)/.test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

quick: TESTS += -m 'not slow'
quick: test

public: export MESHTF_PUBLIC_TENSORFLOW = 1
public: $(VENV)/.test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' $(TESTS)

mutants: $(VENV)/.test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m slow --all-cases \
	  tests/mutants $(TESTS)

test-spmd: $(VENV)/.test
	$(VENV)/bin/python -m meshtf selfcheck --live=spmd:cpu
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal --all-cases \
	  tests/runtime/spmd tests/transformer/live tests/transformer/models/test_spmd.py \
	  tests/transformer/models/test_live_training.py \
	  tests/cluster/test_process_group.py $(TESTS)
	$(VENV)/bin/python -m tests.fuzz --only=live --minutes=$(MINUTES)
	$(VENV)/bin/python -m tests.faults.campaign --faults=22 --steps=300 --spmd

# Each version lies in a folder that comes before the one of .venv.
spmd-versions: $(VENV)/.test
	for version in $(JAX_VERSIONS); do \
	  folder=build/jax/$$version; \
	  test -d $$folder || $(VENV)/bin/python -m pip install --quiet --no-deps \
	    --target=$$folder jax==$$version jaxlib==$$version || exit 1; \
	  PYTHONPATH=$$folder $(VENV)/bin/python -c 'import jax; print("jax", jax.__version__)'; \
	  PYTHONPATH=$$folder $(VENV)/bin/python -m pytest -q -n $(WORKERS) tests/runtime/spmd \
	    tests/cluster/test_process_group.py || exit 1; \
	done

keras-versions: $(VENV)/.test
	for version in $(KERAS_VERSIONS); do \
	  folder=build/keras/$$version; \
	  test -d $$folder || $(VENV)/bin/python -m pip install --quiet --no-deps \
	    --target=$$folder keras==$$version || exit 1; \
	  PYTHONPATH=$$folder $(VENV)/bin/python -c 'import keras; print("keras", keras.__version__)'; \
	  PYTHONPATH=$$folder $(VENV)/bin/python -m pytest -q -n $(WORKERS) -m 'not slow' \
	    tests/keras || exit 1; \
	done

fuzz: $(VENV)/.test
	$(VENV)/bin/python -m tests.fuzz --minutes=$(MINUTES) $(FLAGS)

bert: $(VENV)/.text
	PYTHON=$(VENV)/bin/python sh examples/bert/walk.sh runs/bert

# pdoc cannot resolve annotations of named tuples, and shows them as they are written; nor
# the functions of transformer.convert, which are imported at their first use.
docs: export PDOC_ALLOW_EXEC = 1
docs: $(VENV)/.docs
	$(VENV)/bin/python -W error::UserWarning \
	  -W 'ignore:Error parsing type annotation ForwardRef:UserWarning' \
	  -m pdoc -d google -o build/docs meshtf transformer \
	  '!meshtf.ops' '!meshtf.partition' '!meshtf.runtime' '!transformer.convert$$' \
	  transformer.convert.hugging_face transformer.convert.training_runs

keras-models: $(VENV)/.test
	$(VENV)/bin/python -m benchmarks.keras_models --keras_hub=$(KERAS_HUB)

gallery: $(VENV)/.run
	$(VENV)/bin/python -m benchmarks.gallery

$(VENV)/.test: $(VENV)/.run
	$(VENV)/bin/python -m pip install --quiet -e '.[test]'
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	$(VENV)/bin/python -m pip install --quiet -e '.[docs]'
	@touch $@

$(VENV)/.text: $(VENV)/.run
	$(VENV)/bin/python -m pip install --quiet -e '.[text]'
	@touch $@

$(VENV)/.run: setup.py
	@echo "Setting up $(VENV): TensorFlow is some 600 MB, so the first time takes minutes."
	@set -e; for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.10 python3); do \
	  if $$python -c 'import ensurepip, sys; assert (3, 10) <= sys.version_info < (3, 14)' \
	     2>/dev/null; then $$python -m venv $(VENV); exit 0; fi; done; \
	echo "No Python 3.10 to 3.13 with the module venv was found (on Debian: apt install" \
	     "python3-venv). Name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1
	$(VENV)/bin/python -m pip install --quiet -e .
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
