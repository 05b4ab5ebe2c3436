# Recipes, the same by hand and in CI. Each works on a bare checkout.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp' 2>/dev/null)

.PHONY: setup check test bench demo sanitize soak native format help

help:
	@grep -E '^## ' Makefile | sed 's/^## //'

## setup     make .venv with the package and all that demo, replay, bench and tests need
setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" ninja
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[plot,bench,dev]"
	@touch $(STAMP)

## native    rebuild the core in place (src/moonpool/_core*.so), for work on C++
native:
	cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(shell command -v $(PYTHON)) > /dev/null
	cmake --build build/native
	cp build/native/_core*.so src/moonpool/

## test      all tests; the last line is the runner's count
test: setup
	$(BIN)/python -m pytest -n 2 -q

## demo      replay a real chat trace through a real pool on this machine
demo: setup
	$(BIN)/moonpool demo
