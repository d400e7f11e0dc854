# `make venv` prepares .venv; `make demo` and `make test` prepare it themselves when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: venv demo test slow fuzz lint format studio wheels lock clean

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[test,dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

# One thread per worker: two processes that each take both cores slow each other down. A file's tests stay together, so
# that what they share is made once. Bytecode is kept, for the many processes that tests start.
TESTED := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(READY)
	$(TESTED) --numprocesses 2 --dist loadfile $(ARGS)

# What fuzzes, races and kills uses both cores by itself. Where ARGS leave one of the two nothing to run, pytest says 5.
slow: $(READY)
	$(TESTED) -m slow --numprocesses 2 --dist loadfile --ignore tests/slow $(ARGS) || [ $$? -eq 5 ]
	$(TESTED) -m slow tests/slow $(ARGS) || [ $$? -eq 5 ]

# All of the campaigns and thinned products of which `make slow` runs a tenth, with each commit another one.
fuzz:
	LEGATO_CAMPAIGN=1 $(MAKE) slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The page that reports and the studio are, built again from studio/; needs Node 20 and npm. What is built is committed.
studio: studio/node_modules/.ready
	cd studio && npm run --silent check && npm run --silent test && npm run --silent build

studio/node_modules/.ready: studio/package-lock.json
	cd studio && npm install --no-save --no-audit --no-fund --silent
	touch studio/node_modules/.ready

# The wheels of a release: for Linux with compiled kernels, for all other systems of Python alone. The other kind of
# processor's need its compiler (Debian's g++-aarch64-linux-gnu, g++-x86-64-linux-gnu).
wheels: $(READY)
	rm -rf dist
	for machine in x86_64 aarch64 ""; do LEGATO_WHEEL=$$machine $(BIN)/python -m hatchling build -t wheel || exit; done

# The versions that uv installs: those of constraints.txt, and of what only the other extras bring the newest.
lock:
	uv lock $$(sed 's/^/-P /' constraints.txt)

clean:
	rm -rf $(VENV) build dist
