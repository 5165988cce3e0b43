# Tandem's commands. `make demo` and `make test` do all set-up themselves on a fresh Debian 12 or 13,
# Ubuntu 22.04 or 24.04.
# `make help` lists them; JOBS=n sets how many compilers run at once.

SHELL := /bin/bash
# A compiler of torch headers takes up to 2 GiB: as many at once as cores and memory allow.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ {n = int($$2 / 2097152); if (n > cores) n = cores; \
	if (n < 1) n = 1; print n}' /proc/meminfo)
# Tests wait for a good part of their time for processes that start and for clocks: two for each core.
TEST_JOBS ?= $(shell echo $$((2 * $(JOBS))))
# TSan of g++ 12 does not start where the kernel randomises more address bits than it knows; without randomisation it
# does. A container may forbid switching it off, and then mostly needs it not.
FIXED_ADDRESSES := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)
PREFIX ?= /usr/local
# What builds container images, for `make image`.
DOCKER ?= docker
# The Python that has torch_npu, for `make npu`.
PYTHON ?= python3
FUZZ_RUNS ?= 10000000
FUZZ_SECONDS ?= 0
# $(call configure,PRESET): a build folder that was configured elsewhere (the clone has moved) is configured anew, and
# one from which a wheel was made for this clone again.
configure = home=$$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' build/$(1)/CMakeCache.txt 2>/dev/null); \
	[ -z "$$home" ] || [ "$$home" -ef . ] || rm -rf build/$(1)/CMakeCache.txt build/$(1)/CMakeFiles; \
	cmake --preset $(1) -U 'SKBUILD*'
# $(call say_where,FOLDER): how to get the program of that build folder on the PATH.
say_where = echo 'built build/$(1)/src/cli/tandem; for this shell: export PATH=$(CURDIR)/build/$(1)/src/cli:$$PATH' \
	'(make install PREFIX=DIR links it as DIR/bin/tandem)'
SOURCES = $(shell git ls-files '*.cc' '*.h' '*.cu')

.PHONY: help setup packages python build install cuda npu wheel wheel-cuda image image-cuda demo test test-dev test-tsan test-aarch64 test-npu soak fuzz tidy clang-tidy format clean

help:  ## list the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: packages python  ## system packages and .venv (does nothing when they are there)

packages:
	@tools/setup.sh packages

python: packages
	@tools/setup.sh python

build: setup  ## the program, optimised: build/release/src/cli/tandem
	$(call configure,release)
	cmake --build build/release -j $(JOBS) --target tandem
	@$(call say_where,release)

install: build  ## PREFIX/bin/tandem (PREFIX: /usr/local), a link to what make cuda or make npu built, else make build
	@mkdir -p '$(DESTDIR)$(PREFIX)/bin'
	ln -sfn '$(CURDIR)/$(firstword $(wildcard build/cuda/src/cli/tandem build/npu/src/cli/tandem) build/release/src/cli/tandem)' \
		'$(DESTDIR)$(PREFIX)/bin/tandem'

cuda: setup  ## the program with its CUDA module: --device cuda; downloads the CUDA libraries, once
	@tools/setup.sh cuda
	$(call configure,cuda)
	cmake --build build/cuda -j $(JOBS) --target tandem
	@$(call say_where,cuda)

npu: setup  ## the program with its NPU module: --device npu; PYTHON=python3 names the Python that has torch_npu
	$(call configure,npu) -DTANDEM_NPU_PYTHON="$$(command -v $(PYTHON))"
	cmake --build build/npu -j $(JOBS) --target tandem
	@$(call say_where,npu)

# $(call make_wheel,FOLDER,PRESET,NAME): the wheel NAME of FOLDER/pyproject.toml in dist/, of what has been compiled in
# build/PRESET. LibTorch is a wheel of its own, and OpenSSL the system's, which it updates: they are not copied into ours.
# Its name then says the oldest glibc that it runs with, and tools/wheel_needs.py says which systems these are.
make_wheel = rm -rf build/wheel_unnamed dist/$(3)-*.whl && CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv/bin/python -m pip wheel \
	--disable-pip-version-check --no-build-isolation --no-deps --config-settings=build-dir=$(CURDIR)/build/$(2) \
	--wheel-dir build/wheel_unnamed $(1) && PATH="$(CURDIR)/.venv/bin:$$PATH" auditwheel repair --exclude 'libtorch*' \
	--exclude 'libc10*' --exclude 'libgomp*' --exclude 'libcu*' --exclude 'libnv*' --exclude 'libssl*' --exclude 'libcrypto*' \
	--wheel-dir dist build/wheel_unnamed/*.whl && python3 tools/wheel_needs.py dist/$(3)-*.whl

wheel: build  ## dist/tandem-*.whl: the program, its workers and the Python API, for pip install
	@tools/setup.sh wheel
	$(call make_wheel,.,release,tandem)
	@{ echo '# All that the wheel needs on a machine without a GPU, exactly, without the libraries of CUDA:'; \
		echo '#   pip install --no-deps -r requirements-cpu.txt tandem-*.whl'; \
		cat requirements-torch.txt requirements.txt; } >dist/requirements-cpu.txt

wheel-cuda: cuda  ## dist/tandem_cuda-*.whl: the CUDA module, to be installed beside it
	@tools/setup.sh wheel
	$(call make_wheel,packaging/cuda,cuda,tandem_cuda)

image: wheel  ## the container image tandem:latest, for the CPU. DOCKER=podman or buildah builds it too
	$(DOCKER) build -f packaging/Dockerfile -t tandem .

image-cuda: wheel wheel-cuda  ## the container image tandem:cuda, for NVIDIA GPUs
	$(DOCKER) build -f packaging/Dockerfile --build-arg VARIANT=cuda -t tandem:cuda .

demo: build  ## train a small model on arithmetic with GRPO, on the CPU, in a few minutes; RANKS=n: as n processes
	examples/arithmetic/demo.sh $(if $(RANKS),runs/arithmetic-$(RANKS)-ranks --actor-num-gpus-per-node $(RANKS))

test: test-dev test-tsan  ## everything under ASan and UBSan, then the torch-free tests that have threads under TSan
	@echo "make test: all passed"

test-dev: setup
	@tools/setup.sh wandb
	@tools/setup.sh ifbench
	@tools/setup.sh clusters
	$(call configure,dev)
	cmake --build build/dev -j $(JOBS)
	ctest --preset dev -j $(TEST_JOBS)

test-tsan: setup
	@tools/setup.sh wandb
	@tools/setup.sh ifbench
	$(call configure,tsan)
	cmake --build build/tsan -j $(JOBS)
	$(FIXED_ADDRESSES) ctest --preset tsan -j $(TEST_JOBS)

test-aarch64: setup  ## the torch-free tests, cross-built for 64-bit Arm and run under QEMU
	@tools/setup.sh aarch64
	$(call configure,aarch64)
	cmake --build build/aarch64 -j $(JOBS)
	ctest --preset aarch64 -j $(TEST_JOBS)

test-npu: setup  ## the NPU module with torch_npu's own wheel over stand-ins for CANN; downloads 2.3 GB, once
	@tools/setup.sh cuda
	@tools/setup.sh npu
	$(call configure,npu) -DTANDEM_NPU_PYTHON=$(CURDIR)/.venv-npu/bin/python
	cmake --build build/npu -j $(JOBS) --target tandem device_test npu_wheel_test npu_wheel_train_test fake_stack
	.venv/bin/python -B tests/device/npu/npu_wheel_test.py build/npu

soak: setup  ## the fault tests with their full counts, on the optimised program; hours
	$(call configure,release)
	cmake --build build/release -j $(JOBS) --target checkpoints_test data_parallel_cli_test launch_test \
		resume_test rollout_workers_cli_test tensor_parallel_cli_test async_cli_test reward_graders_test \
		sft_ranks_test tandem
	build/release/tests/checkpoint/checkpoints_test --soak
	build/release/tests/mesh/launch_test --soak
	build/release/tests/cli/data_parallel_cli_test --soak
	build/release/tests/cli/tensor_parallel_cli_test --soak
	build/release/tests/cli/sft_ranks_test --soak
	build/release/tests/cli/rollout_workers_cli_test --soak
	build/release/tests/cli/async_cli_test --soak
	build/release/tests/reward/reward_graders_test --gtest_filter='GraderFaults.KeepToTheTable' --repeat 50
	build/release/tests/cli/resume_test --soak --gtest_filter='*Kill*:*Sigterm*:*Soak*'
	@tools/setup.sh clusters
	.venv/bin/python -B tests/tools/clusters_test.py build/release/src/cli/tandem --all
	@tools/setup.sh ray
	for test in ray ray_hosts; do .venv/bin/python -B tests/python/$${test}_test.py build/release/src/cli; done

fuzz: setup  ## fuzz the parsers, hours by default: FUZZ_RUNS=n executions of each target, or FUZZ_SECONDS=n in all
	@tools/setup.sh fuzz
	$(call configure,fuzz)
	cmake --build build/fuzz -j $(JOBS) --target fuzz_targets
	.venv/bin/python -B tests/fuzz/campaign.py build/fuzz --runs $(FUZZ_RUNS) --seconds $(FUZZ_SECONDS) --jobs $(JOBS)

tidy:  ## the rules of layout and style (also one of the tests)
	python3 tools/tidy.py

clang-tidy: setup  ## static analysis by .clang-tidy; slow. FILES=src/rl/*.cc for some
	cmake --preset dev -B build/alone -DTANDEM_JOINED=OFF
	cd build/alone && run-clang-tidy -quiet -j $(JOBS) $(if $(FILES),$(abspath $(FILES)),'$(CURDIR)/src/.*')

format:  ## clang-format every source in place
	clang-format -i $(SOURCES)

clean:  ## remove what was built; .venv and runs stay
	rm -rf build
