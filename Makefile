# Two commands a newcomer needs: `make demo` and `make test`. Each sets up .venv by itself; so does `make docs`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test docs wheel check format bench clean

demo: .venv/.run
	$(BIN)/milodo demo

test: .venv/.test
	$(BIN)/python -m pytest -n 3 --dist worksteal

docs: .venv/.test
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@echo "Open docs/_build/index.html in a browser."

wheel: .venv/.test
	$(BIN)/python -m build --no-isolation

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.test
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/step.py edges
	$(BIN)/python benchmarks/step.py memory
	$(BIN)/python benchmarks/training.py gradient
	$(BIN)/python benchmarks/training.py memory
	$(BIN)/python benchmarks/step.py choices
	$(BIN)/python benchmarks/processes.py step
	$(BIN)/python benchmarks/links.py messages
	$(BIN)/python benchmarks/training.py iteration
	$(BIN)/python benchmarks/learned.py transfer
	$(BIN)/python benchmarks/learned.py long

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info docs/_build docs/reference

# torch first and by its pinned version: a looser request may bring gigabytes of CUDA along.
.venv/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "milodo needs Python 3.11 or newer; try make PYTHON=python3.11 demo"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) -e .
	touch $@

.venv/.test: .venv/.run
	$(INSTALL) -e '.[test,check]'
	touch $@
