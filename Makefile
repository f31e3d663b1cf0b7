# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. V=1 shows whole commands. Products are in build/<mode>/ and .venv/.

PYTHON ?= python3
CC ?= cc
VENV := .venv
PY := $(VENV)/bin/python
ifeq ($(origin JOBS),undefined)
JOBS := $(shell nproc 2>/dev/null || echo 2)
endif
# Tests wait for disks and children now and then.
TEST_JOBS := $(shell expr $(JOBS) + 1)
FUZZ_SECONDS ?= 60
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
MODE ?= release
B := build/$(MODE)

# One seed for everything random in a run, the same for everybody; `make explore` draws others.
CKPTFMT_TEST_SEED ?= 1
export CKPTFMT_TEST_SEED
# Containers often set it: each of the thousand interpreters of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')
MAKEFLAGS += --no-print-directory

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Grows with each incompatible change of the binary interface (`make abi`).
SOVERSION := 0
WARNINGS := -Wall -Wextra -Wconversion -Wshadow
SANITIZE := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all
flags_release := -O2
flags_warn := -O2 -Werror
flags_plain := -O2 -Werror -DCKPTFMT_PLAIN_POSIX=1
flags_asan := $(SANITIZE) -fsanitize=address,undefined
flags_tsan := -O2 -g -fsanitize=thread
flags_fuzz := $(SANITIZE) -fsanitize=fuzzer-no-link,address,undefined
flags_abi := -O2 -g
# Each branch of a source line once, and none for assertions: those are for our own bugs.
flags_coverage := -O0 -g --coverage -fprofile-update=atomic -DNDEBUG -DCF_CRC32C_INLINE='static inline'
flags_arm := -O2
flags_bigendian := -O2
link_arm := -static
link_bigendian := -static
MODE_FLAGS := $(flags_$(MODE))
# The codec over libzstd, where that is installed; `make WITH_ZSTD= ...` builds without.
ifeq ($(origin WITH_ZSTD),undefined)
WITH_ZSTD := $(shell echo 'int main(void) { return ZSTD_versionNumber() == 0; }' | \
	$(CC) $(CFLAGS) -include zstd.h -x c -o /dev/null - -lzstd 2>/dev/null && echo 1)
endif
ZSTD_LIB := $(if $(WITH_ZSTD),-lzstd)
CFLAGS ?=
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 $(WARNINGS) -fvisibility=hidden -fPIC -pthread -Icsrc \
	$(MODE_FLAGS) $(CFLAGS)
ALL_LDFLAGS := -pthread $(filter -fsanitize=% --coverage,$(MODE_FLAGS)) $(link_$(MODE)) $(LDFLAGS)

# csrc/python/ is part of the Python extension alone; here it is only compiled, for its warnings.
PYTHON_SRC := $(sort $(wildcard csrc/python/*.c))
PYTHON_FLAGS = -DPy_LIMITED_API=0x030b0000 $(addprefix -isystem ,$(shell $(if $(wildcard $(PY)),$(PY),$(PYTHON)) -c \
	'import numpy, sysconfig; print(sysconfig.get_path("include"), numpy.get_include())'))
LIB_SRC := $(filter-out csrc/python/%,$(sort $(wildcard csrc/*/*.c)))
# The longest first: they run on all processors at once.
LONGEST := $(patsubst %,tests/c/test_%.c,vectors interleavings kinds_faults transfer merge read_jobs)
TEST_SRC := $(LONGEST) $(filter-out $(LONGEST),$(sort $(wildcard tests/c/test_*.c)))
MEASURE_SRC := $(sort $(wildcard tests/c/measure_*.c))
SUPPORT_SRC := $(filter-out $(TEST_SRC),$(sort $(wildcard tests/c/*.c)))
FUZZ_SRC := $(sort $(wildcard fuzz/fuzz_*.c))
FUZZ_SUPPORT_SRC := $(filter-out $(FUZZ_SRC),$(sort $(wildcard fuzz/*.c)))
objects = $(patsubst %.c,$(B)/%.o,$(1))

LIB_OBJ := $(call objects,$(LIB_SRC))
TESTS := $(patsubst tests/c/%.c,$(B)/%,$(TEST_SRC))
MEASURES := $(patsubst tests/c/%.c,$(B)/%,$(MEASURE_SRC))
FUZZERS := $(patsubst fuzz/%.c,$(B)/%,$(FUZZ_SRC))
# THREADED: programs that start threads or let the library start some. test_vectors is left out: it repeats the calls
# of test_shards and test_kinds_faults on each vector. EMULATED: those that emulators can run, without injected faults
# and thousands of threads.
THREADED := $(patsubst tests/c/%.c,$(B)/%,$(if $(TEST_SRC),$(filter-out %/test_vectors.c,$(shell grep -l -e 'pthread_create' -e '[.]shards = ' \
	-e 'CF_DIRECT_SLOTS' $(TEST_SRC)))))
EMULATED := $(patsubst tests/c/%.c,$(B)/%,$(if $(TEST_SRC),$(shell grep -L -e 'os_fault.h' -e 'hot_paths.h' -e 'schedule.h' $(TEST_SRC))))

.PHONY: help demo test one explore docs man install-man browser install install-strip uninstall abi abi-record languages valgrind portability check properties powerloss soak races border slow coverage mutants decoder-mutants analyze cross-packages interop interop-packages peers peers-packages oldest-torch budgets instructions bench bench-smoke bench-full asan tsan plain-posix fuzz planted arm bigendian lib code-size code-size-record dist-check release-check \
	clean needs-python needs-c c-programs measure-programs fuzz-programs threaded-programs emulated-programs \
	warn-objects c-test threaded-test emulated-test replay warnings lint python python-test
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS="$$(printf '\t')" read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done
	@printf '%s\n' 'Variables: V=1, JOBS, PYTHON, CC, CFLAGS, FUZZ_SECONDS, CKPTFMT_TEST_SEED, CKPTFMT_CORPUS,' \
		'  CKPTFMT_PROPERTIES (the part of the long form of the properties that runs: 1),' \
		'  CKPTFMT_TF_PYTHON (a Python that has TensorFlow already), CKPTFMT_PEERS_PYTHON (one that has the extra peers),' \
		'  BENCH (cases such as B7 B8, compression, or --smoke)'

# ---- for users --------------------------------------------------------------------------------------------

demo: needs-python $(VENV)/.built ## save a small model from four processes, merge, inspect, verify, restore a slice
	$(Q)$(PY) examples/demo.py
	$(Q)mkdir -p build/demo
	$(Q)for file in tests/golden/merged/ckpt.*; do cp $$file build/demo/model.ckpt-1000.$${file##*/ckpt.}; done
	$(Q)echo 'The checkpoint that README.md reads is build/demo/model.ckpt-1000.'

test: needs-python needs-c ## C unit tests, the C example and Python tests
	$(Q)$(MAKE) -j$(JOBS) c-programs build/libckptfmt.a build/libckptfmt.so build/plain_c python
	$(Q)$(MAKE) c-test
	$(Q)build/plain_c build/example/model
	$(Q)$(MAKE) python-test

one: ## one test: T=tests/bundle/test_load.py::test_names, or T=c/test_table
	$(Q)test -n '$(T)' || { echo 'make one T=tests/bundle/test_load.py::test_names, or T=c/test_table'; exit 2; }
	$(Q)$(MAKE) -j$(JOBS) $(if $(filter c/%,$(T)),$(B)/$(T:c/%=%),python)
	$(Q)$(if $(filter c/%,$(T)),$(B)/$(T:c/%=%),$(PY) -m pytest -q --slow $(T))

lib: needs-c ## build/libckptfmt.a, build/libckptfmt.so and the plain C example
	$(Q)$(MAKE) -j$(JOBS) build/libckptfmt.a build/libckptfmt.so build/plain_c
	$(Q)echo "library: build/libckptfmt.a build/libckptfmt.so; example: build/plain_c PREFIX"

install: lib ## the C library in PREFIX (LIBDIR, INCLUDEDIR, MANDIR) below DESTDIR
	$(Q)install -d $(addprefix $(DESTDIR),$(LIBDIR)/pkgconfig $(LIBDIR)/cmake/ckptfmt $(INCLUDEDIR) $(MANDIR)/man3)
	$(Q)install -m 644 csrc/ckptfmt.h $(DESTDIR)$(INCLUDEDIR)
	$(Q)install -m 644 build/libckptfmt.a $(DESTDIR)$(LIBDIR)
	$(Q)install -m 755 build/libckptfmt.so $(DESTDIR)$(LIBDIR)/$(REAL_NAME)
	$(Q)ln -sf $(REAL_NAME) $(DESTDIR)$(LIBDIR)/$(SONAME)
	$(Q)ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libckptfmt.so
	$(Q)$(call fill,ckptfmt.pc,$(LIBDIR)/pkgconfig,prefix,$${pcfiledir}/$(call up,pkgconfig))
	$(Q)$(call fill,ckptfmt-config.cmake,$(LIBDIR)/cmake/ckptfmt,_ckptfmt_prefix,$${_ckptfmt_dir}/$(call up,cmake/ckptfmt))
	$(Q)$(call fill,ckptfmt-config-version.cmake,$(LIBDIR)/cmake/ckptfmt)
	$(Q)$(call fill,ckptfmt.3,$(MANDIR)/man3)

install-strip: install ## the same, the shared library without what only debuggers need
	$(Q)$(call tool,STRIP,strip) --strip-unneeded $(DESTDIR)$(LIBDIR)/$(REAL_NAME)

uninstall: ## remove what `make install` with the same variables installed
	$(Q)rm -f $(addprefix $(DESTDIR),$(INCLUDEDIR)/ckptfmt.h \
		$(MANDIR)/man3/ckptfmt.3 $(addprefix $(LIBDIR)/,libckptfmt.a libckptfmt.so $(SONAME) $(REAL_NAME) \
		pkgconfig/ckptfmt.pc cmake/ckptfmt/ckptfmt-config.cmake cmake/ckptfmt/ckptfmt-config-version.cmake))

languages: lib ## examples in C, C++, Rust and Go against the installed library, with the tools that are there
	$(Q)sh tools/languages.sh

abi: needs-c ## compare the binary interface with the recorded one
	$(Q)$(MAKE) MODE=abi -j$(JOBS) build/abi/libckptfmt.so
	$(Q)sh tools/abi.sh compare

abi-record: needs-c ## record the binary interface
	$(Q)$(MAKE) MODE=abi -j$(JOBS) build/abi/libckptfmt.so
	$(Q)sh tools/abi.sh record

valgrind: lib ## the C example under valgrind: no error and no leak
	$(Q)sh tools/need.sh valgrind
	$(Q)valgrind -q --error-exitcode=1 --leak-check=full build/plain_c build/example/checked

portability: needs-c ## the library and its C example with other compilers; wheels for macOS, ARMv8 and musl
	$(Q)sh tools/portability.sh
	$(Q)if $(PY) -c 'import auditwheel, lief, ziglang' 2>/dev/null; then $(MAKE) python && $(PY) tools/cross.py; else \
		echo 'portability: cross NOT RUN: needs make cross-packages'; fi

# ---- for developers ---------------------------------------------------------------------------------------

check: test ## test, fuzz corpus replay, ruff, mypy, all C with warnings as errors, the binary interface, lines of code
	$(Q)$(PYTHON) tools/code_size.py --check
	$(Q)$(MAKE) replay
	$(Q)$(MAKE) warnings
	$(Q)$(MAKE) abi
	$(Q)$(MAKE) lint

cross-packages: python
	$(Q)$(PY) tools/missing.py cross | xargs -r -d '\n' $(PY) -m pip install --quiet

interop-packages: python
	$(Q)$(if $(CKPTFMT_TF_PYTHON),:,$(PY) tools/missing.py interop | xargs -r -d '\n' $(PY) -m pip install --quiet)

peers-packages: python
	$(Q)$(PY) tools/missing.py peers | xargs -r -d '\n' $(PY) -m pip install --quiet

interop: interop-packages ## differential tests against the real TensorFlow (installs it: half a gigabyte)
	@echo "seed: CKPTFMT_TEST_SEED=$(CKPTFMT_TEST_SEED)"
	$(Q)$(PY) -m pytest -q -n 2 --dist loadfile tests/interop

peers: peers-packages ## tests of what is built on torch, JAX, MPI, ... (installs gigabytes); SLOW=1: the slow ones
	$(Q)$(if $(SLOW),$(PY) tools/missing.py ray | xargs -r -d '\n' $(PY) -m pip install --quiet || \
		echo 'Ray could not be installed; its test is skipped')
	@echo "seed: CKPTFMT_TEST_SEED=$(CKPTFMT_TEST_SEED)"
	$(Q)$(PY) -m pytest -q $(if $(SLOW),-m slow --slow,-n 2 --dist loadfile) tests/peers

# A CUDA build: older versions have no other one on PyPI.
OLDEST_TORCH := 2.6.0
oldest-torch: python ## the tests of torch's adapter with the oldest torch that is supported (installs 5 GB below build/)
	$(Q)test -x build/oldest-torch/bin/python || $(PYTHON) -m venv build/oldest-torch
	$(Q)build/oldest-torch/bin/python -m pip install --quiet torch==$(OLDEST_TORCH) cffi ml_dtypes zstandard pytest pytest-timeout hypothesis numpy
	$(Q)build/oldest-torch/bin/python -m pytest -q -p no:cacheprovider tests/peers/test_torch_arrays.py \
		tests/peers/test_torch_state.py tests/peers/test_torch_values.py tests/peers/test_torch_targets.py tests/peers/test_torch_optimizers.py

docs: python ## the documentation site in build/docs, warnings as errors
	$(Q)$(PY) -c 'import sphinx, myst_parser, furo' 2>/dev/null || $(PY) -m pip install --quiet -e '.[docs]'
	$(Q)mkdir -p docs/generated/spec
	$(Q)cp $(filter-out %/README.md,$(wildcard spec/*.md)) docs/generated/spec/ && cp SECURITY.md docs/generated/security.md
	$(Q)$(PY) tools/commands.py >docs/generated/commands.md
	$(Q)$(PY) tools/api.py >docs/generated/api.md
	$(Q)$(PY) -m sphinx -q -W --keep-going -E -b html docs build/docs
	$(Q)echo "documentation: build/docs/index.html"

man: python ## man pages of the command, in build/man; install-man puts them into MANDIR
	$(Q)$(PY) tools/man.py build/man

install-man: man ## the man pages of the command in MANDIR below DESTDIR
	$(Q)install -d $(DESTDIR)$(MANDIR)/man1
	$(Q)install -m 644 build/man/*.1 $(DESTDIR)$(MANDIR)/man1

browser: python ## the report's page in a headless Chromium
	$(Q)sh tools/need.sh chromium chromedriver
	$(Q)$(PY) -c 'import selenium, axe_core_python' 2>/dev/null || $(PY) -m pip install --quiet -e '.[browser]'
	$(Q)$(PY) -m pytest -q -s tests/browser

# A long search must not fail as a hang.
LONG := $(PY) -m pytest -q --timeout 0

properties: python ## the property tests in their long form, with TensorFlow where that is installed
	@echo "seed: CKPTFMT_TEST_SEED=$(CKPTFMT_TEST_SEED)"
	$(Q)CKPTFMT_PROPERTIES=$${CKPTFMT_PROPERTIES:-1} $(LONG) -m properties --ignore=tests/peers tests

border: python ## mutants of checkpoints through the Python interface (RUNS=5000)
	$(Q)CKPTFMT_BORDER_RUNS=$(or $(RUNS),5000) $(LONG) -rP --no-header tests/border

slow: needs-c python ## what make test leaves out, long, large or the rest of a sample (13 GiB of memory, 7 of disk)
	$(Q)CKPTFMT_EVERY_FAULT=1 $(MAKE) c-test
	$(Q)$(LONG) -n 2 --dist loadfile -m slow --slow --ignore=tests/peers tests

explore: python needs-c ## random search with fresh seeds, in turns (SECONDS=600, SEARCHES='races fuzz')
	$(Q)$(PY) tools/explore.py $(or $(SECONDS),600) $(SEARCHES)

powerloss: python ## power cuts at any moment of everything that saves (IMAGES=20000 of each scenario and model, KILLS=10)
	$(Q)CKPTFMT_POWERLOSS_IMAGES=$(or $(IMAGES),20000) CKPTFMT_POWERLOSS_KILLS=$(or $(KILLS),10) \
		$(LONG) -n 2 -rP --no-header tests/powerloss

soak: python ## a training loop with kills, full disks and forks (KILLS=200)
	$(Q)CKPTFMT_SOAK_KILLS=$(or $(KILLS),200) $(LONG) -s --no-header tests/soak/test_soak.py

races: python ## readers, managers, lost ranks and forks beside writers (ROUNDS=50 of each)
	$(Q)CKPTFMT_RACE_ROUNDS=$(or $(ROUNDS),50) $(LONG) -rP --no-header tests/races

budgets: python ## system calls of the common operations (strace)
	$(Q)sh tools/need.sh strace
	$(Q)$(PY) -m pytest -q tests/budgets

instructions: needs-c ## report the instructions of the hot paths (valgrind)
	$(Q)sh tools/need.sh valgrind
	$(Q)$(MAKE) -j$(JOBS) measure-programs
	$(Q)$(PYTHON) bench/instructions.py

bench: python ## the benchmark (twenty minutes), or the cases in BENCH, beside the libraries that are installed
	$(Q)$(PY) bench/run.py $(BENCH_SIDES) $(BENCH)

bench-smoke: python ## all rows of the benchmark once, with small data
	$(Q)$(PY) -m pytest -q tests/bench

bench-full: python ## all rows and settings, more samples (much longer)
	$(Q)$(PY) bench/run.py --full $(BENCH_SIDES) $(BENCH)

BENCH_SIDES = $(if $(CKPTFMT_TF_PYTHON),--tensorflow $(CKPTFMT_TF_PYTHON)) \
	$(if $(CKPTFMT_PEERS_PYTHON),--peers $(CKPTFMT_PEERS_PYTHON))

asan: needs-c python ## C tests, corpus replay (clang's, if it is there) and Python tests under AddressSanitizer and UBSan
	$(Q)cc=$$(sh tools/need.sh libfuzzer 2>/dev/null && echo clang || echo $(CC)) && \
		$(MAKE) MODE=asan CC=$$cc c-test && $(MAKE) MODE=asan CC=$$cc replay
	$(Q)$(in_memory) && sh tools/asan_python.sh $(PY) $(CC)

tsan: needs-c ## C tests that start threads under ThreadSanitizer
	$(Q)$(MAKE) MODE=tsan -j$(JOBS) threaded-programs
	$(Q)$(MAKE) MODE=tsan threaded-test

plain-posix: needs-c python ## C tests, corpus replay, tests of files and power cuts with the calls of any POSIX system
	$(Q)$(MAKE) MODE=plain c-test
	$(Q)$(MAKE) MODE=plain replay
	$(Q)$(in_memory) && sh tools/plain_python.sh $(PY) $(CC)

arm: ## C tests that need no file system, for ARMv8 under qemu-user
	$(Q)sh tools/need.sh aarch64-linux-gnu-gcc qemu-aarch64
	$(Q)$(MAKE) MODE=arm CC=aarch64-linux-gnu-gcc RUN=qemu-aarch64 -j$(JOBS) emulated-programs
	$(Q)$(MAKE) MODE=arm CC=aarch64-linux-gnu-gcc RUN=qemu-aarch64 emulated-test

bigendian: ## the same on a big-endian machine (s390x)
	$(Q)sh tools/need.sh s390x-linux-gnu-gcc qemu-s390x
	$(Q)$(MAKE) MODE=bigendian CC=s390x-linux-gnu-gcc RUN=qemu-s390x -j$(JOBS) emulated-programs
	$(Q)$(MAKE) MODE=bigendian CC=s390x-linux-gnu-gcc RUN=qemu-s390x emulated-test

fuzz: needs-c ## fuzz every target, FUZZ_SECONDS in all or FUZZ_RUNS of each: libFuzzer if clang has it, else our driver
	$(Q)if sh tools/need.sh libfuzzer 2>/dev/null; then \
		$(MAKE) MODE=fuzz CC=clang -j$(JOBS) fuzz-programs && \
		sh tools/fuzz.sh libfuzzer build/fuzz $(if $(FUZZ_RUNS),$(FUZZ_RUNS) runs,$(FUZZ_SECONDS)); \
	else \
		$(MAKE) MODE=asan -j$(JOBS) fuzz-programs && \
		sh tools/fuzz.sh $(if $(FUZZ_RUNS),replay build/asan,standalone build/asan $(FUZZ_SECONDS)); \
	fi

planted: python needs-c ## a bug for each fuzz target, which it must find within a minute
	$(Q)$(PY) tools/planted.py

# The Python tests count where they are not killed; the C programs run a second time without special instructions.
coverage: python needs-c ## branches of the C library that the tests take, by folder
	$(Q)rm -rf build/coverage
	$(Q)CKPTFMT_EVERY_FAULT=1 $(MAKE) MODE=coverage c-test
	$(Q)CKPTFMT_ISA=portable $(MAKE) MODE=coverage c-test
	$(Q)$(MAKE) MODE=coverage replay
	$(Q)sh tools/coverage.sh $(PY) $(CC) "$(flags_coverage)"
	$(Q)$(PY) tools/coverage.py

mutants: python needs-c ## one-line faults in a copy, which named tests must notice (ROWS=FIRST:COUNT, CHANGED=COMMITS)
	$(Q)$(PY) tests/mutants/run.py $(if $(ROWS),--rows $(ROWS)) $(if $(CHANGED),--changed $(CHANGED))

decoder-mutants: python needs-c ## decoders with one operator or number changed, which their tests must notice
	$(Q)$(PY) tools/mutants.py

# Waived: what assumes that a failure may be CKPTFMT_OK, because cf_fail is in another file than its callers (values that
# only a success sets, pointers that only a success returns). ASan, UBSan and valgrind look for these while tests run.
# Of cppcheck's, `list->ends` ends with the function that sets it.
ANALYZED := $(filter-out %arm.c,$(LIB_SRC))
ANALYZE_FLAGS := -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Icsrc
analyze: needs-c ## gcc -fanalyzer, cppcheck and clang-tidy
	$(Q)sh tools/need.sh clang-tidy cppcheck
	$(Q)printf '%s\n' $(ANALYZED) | xargs -P $(JOBS) -n 1 $(CC) $(ANALYZE_FLAGS) -O1 -c -o /dev/null -Werror -fanalyzer \
		-Wno-analyzer-null-dereference -Wno-analyzer-null-argument -Wno-analyzer-use-of-uninitialized-value
	$(Q)cppcheck --quiet --std=c11 --error-exitcode=1 --enable=warning,portability -j $(JOBS) -Icsrc \
		--suppress=missingIncludeSystem --suppress=uninitvar --suppress=uninitStructMember \
		--suppress=autoVariables:csrc/read/listing.c $(ANALYZED)
	$(Q)printf '%s\n' $(ANALYZED) | xargs -P $(JOBS) -n 4 sh -c 'clang-tidy --quiet "$$@" -- $(ANALYZE_FLAGS) \
		2>/dev/null || exit 255' clang-tidy

code-size: ## lines of code by folder, without comments, docstrings and blanks
	$(Q)$(PYTHON) tools/code_size.py

code-size-record: ## write them to tools/budget.txt; a commit that raises a number says what a user gets for it
	$(Q)$(PYTHON) tools/code_size.py --record

dist-check: python ## sdist -> wheel -> import in a fresh venv
	$(Q)$(PY) tools/dist_check.py

release-check: cross-packages dist-check ## the files of a release in build/dist/, and what a person must do
	$(Q)$(PY) tools/cross.py
	$(Q)$(PY) -m pytest -q tests/project/test_pages.py tests/project/test_packaging.py -k 'links or changelog'
	$(Q)$(PY) tools/release_check.py

clean: ## remove build/ and .venv/
	$(Q)rm -rf build .venv ckptfmt.egg-info ckptfmt/_ckptfmt.*.so ckptfmt/_ckptfmt.so

# ---- parts ------------------------------------------------------------------------------------------------

needs-python:
	@sh tools/need.sh python:$(PYTHON) cc:$(CC)

needs-c:
	@sh tools/need.sh cc:$(CC)

# Temporary files in memory, if there is room for 4 GB: the tests sync thousands of files. What syncs protect is proved
# by traces.
in_memory = TMPDIR=$$(mktemp -d $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] \
	2>/dev/null && echo -p /dev/shm)) && export TMPDIR && trap 'rm -rf "$$TMPDIR"' EXIT INT TERM

c-programs: $(TESTS)
measure-programs: $(MEASURES)
fuzz-programs: $(FUZZERS)
threaded-programs: $(THREADED)
emulated-programs: $(EMULATED)
c-programs measure-programs fuzz-programs threaded-programs emulated-programs warn-objects: ; @:

# Runs programs in parallel; the last line of each counts its checks. One that does not end is killed.
run_each = printf '%s\n' $(1) | xargs -P $(TEST_JOBS) -I PROGRAM sh -c 'timeout -k 5 600 $(RUN) PROGRAM || { \
	echo "FAILED: $(RUN) PROGRAM" \
	"with CKPTFMT_TEST_SEED=$(CKPTFMT_TEST_SEED)"; exit 255; }'

c-test:
	$(Q)$(MAKE) -j$(JOBS) c-programs
	$(Q)$(call run_each,$(TESTS))

threaded-test:
	$(Q)$(call run_each,$(THREADED))

emulated-test:
	$(Q)$(call run_each,$(EMULATED))

# The canary's property is false for its corpus: a replay that passes it would pass anything.
replay:
	$(Q)$(MAKE) -j$(JOBS) fuzz-programs
	$(Q)sh tools/fuzz.sh replay $(B)

warnings:
	$(Q)$(MAKE) MODE=warn -j$(JOBS) warn-objects

warn-objects: $(call objects,$(LIB_SRC) $(PYTHON_SRC) $(TEST_SRC) $(SUPPORT_SRC) $(FUZZ_SRC) $(FUZZ_SUPPORT_SRC) \
	examples/plain_c.c)

lint: python
	$(Q)$(PY) -c 'import ruff, mypy' 2>/dev/null || $(PY) -m pip install --quiet -e '.[dev]'
	$(Q)$(PY) -m ruff check .
	$(Q)$(PY) -m ruff format --check .
	$(Q)$(PY) -m mypy
	$(Q)$(PY) -m mypy --platform darwin

python: needs-python $(VENV)/.built $(VENV)/.for-tests

python-test: python
	@echo "seed: CKPTFMT_TEST_SEED=$(CKPTFMT_TEST_SEED)"
	$(Q)$(in_memory) && \
		$(PY) -m pytest -q -n $(TEST_JOBS) $(if $(CPU_LIMIT),--cpu-limit $(CPU_LIMIT)) --ignore=tests/interop --ignore=tests/peers \
		--ignore=tests/budgets --ignore=tests/bench --ignore=tests/browser tests

$(PY): | needs-python
	$(call say,venv,$(VENV))
	$(Q)$(PYTHON) -m venv $(VENV)

# Installs when the requirements have changed; rebuilds the extension alone when only sources have.
$(VENV)/.built: pyproject.toml setup.py build_ffi.py $(wildcard csrc/*.h csrc/*/*.h) $(LIB_SRC) \
		$(wildcard csrc/python/*.c) | $(PY)
	$(call say,py,ckptfmt with its extension)
	$(Q)$(if $(filter pyproject.toml setup.py,$?),\
		$(PY) -m pip install --quiet 'setuptools>=77' wheel packaging && $(PY) -m pip install --quiet -e .,\
		$(PY) setup.py --quiet build_ext --inplace)
	$(Q)touch $@

$(VENV)/.for-tests: pyproject.toml | $(VENV)/.built
	$(call say,pip,what tests need)
	$(Q)$(PY) tools/missing.py test cli | xargs -r -d '\n' $(PY) -m pip install --quiet
	$(Q)touch $@

# ---- C ----------------------------------------------------------------------------------------------------

# Another compiler or other flags make all objects anew: a cross build must not install those of the host.
BUILT_WITH = $(CC) $(CFLAGS) $(if $(WITH_ZSTD),-lzstd)
$(B)/built-with: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(BUILT_WITH)' | cmp -s - $@ || echo '$(BUILT_WITH)' >$@
FORCE:

$(B)/%.o: %.c $(B)/built-with
	$(call say,cc,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/csrc/base/limits.o: ALL_CFLAGS += -DCKPTFMT_VERSION='"$(VERSION)"'
$(B)/csrc/base/limits.o: pyproject.toml
$(B)/csrc/compress/zstd.o: ALL_CFLAGS += $(if $(WITH_ZSTD),-DCKPTFMT_WITH_ZSTD)
$(call objects,$(PYTHON_SRC)): ALL_CFLAGS += $(PYTHON_FLAGS)
$(call objects,$(TEST_SRC) $(SUPPORT_SRC) $(FUZZ_SUPPORT_SRC)): ALL_CFLAGS += -Itests/c

# Every symbol, for tests. An object linked before it (memory_fault, os_fault) replaces a member.
$(B)/libinternal.a: $(LIB_OBJ)
	$(Q)rm -f $@
	$(Q)$(if $(filter -static,$(link_$(MODE))),$(patsubst %gcc,%ar,$(CC)),ar) qcs $@ $^

# A test is linked with the support files whose headers it includes.
define test_program
$(B)/$(1): $(B)/tests/c/$(1).o $(patsubst %,$(B)/tests/c/%.o,$(2)) $(B)/libinternal.a
	$$(call say,ld,$$@)
	$(Q)$(CC) -o $$@ $$^ $(ZSTD_LIB) $(ALL_LDFLAGS)
endef
INCLUDES := $(shell grep -o '"[a-z_0-9]*[.]h"' tests/c/*.c | tr -d '"')
support = $(foreach one,$(SUPPORT_SRC:tests/c/%.c=%),$(if $(filter tests/c/$(1).c:$(one).h,$(INCLUDES)),$(one)))
$(foreach one,$(patsubst tests/c/%.c,%,$(TEST_SRC) $(MEASURE_SRC)),$(eval $(call test_program,$(one),$(call support,$(one)))))

# The models in the targets are only compared with: what guides a fuzzer are the library's branches.
ifeq ($(MODE),fuzz)
$(call objects,$(FUZZ_SRC) $(FUZZ_SUPPORT_SRC)): ALL_CFLAGS := $(subst $(flags_fuzz),-O2 -g,$(ALL_CFLAGS))
endif
FUZZ_PARTS := $(call objects,$(if $(filter fuzz,$(MODE)),$(filter-out fuzz/standalone.c,$(FUZZ_SUPPORT_SRC)),$(FUZZ_SUPPORT_SRC)) \
	tests/c/run_codec.c)
$(FUZZERS): $(B)/fuzz_%: $(B)/fuzz/fuzz_%.o $(FUZZ_PARTS) $(B)/libinternal.a
	$(call say,ld,$@)
	$(Q)$(CC) -o $@ $^ $(ZSTD_LIB) $(subst fuzzer-no-link,fuzzer,$(ALL_LDFLAGS))

# The binutils that are given, else those that belong to the compiler, which may be a cross compiler.
tool = $(if $(filter default undefined,$(origin $(1))),$(shell $(CC) -print-prog-name=$(2)),$($(1)))
RELINK = $(if $(filter default undefined,$(origin LD)),$(CC) $(ALL_CFLAGS) -nostdlib,$(LD)) -r

SONAME := libckptfmt.so.$(SOVERSION)
REAL_NAME := libckptfmt.so.$(VERSION)
# An installed prefix can be moved: files in LIBDIR name it relative to themselves, if LIBDIR is below it.
LIBDIR_IN_PREFIX := $(patsubst $(PREFIX)/%,%,$(filter $(PREFIX)/%,$(LIBDIR)))
EMPTY :=
up = $(subst $(EMPTY) $(EMPTY),/,$(patsubst %,..,$(subst /, ,$(LIBDIR_IN_PREFIX)/$(1))))
in_prefix = $(if $(LIBDIR_IN_PREFIX),$(patsubst $(PREFIX)/%,$${$(2)}/%,$(1)),$(1))
# Write a file of csrc/package/ with the values of this build into a directory. $(3) is the
# variable of the file for the prefix, $(4) its value.
fill = sed -e 's|@PREFIX@|$(if $(LIBDIR_IN_PREFIX),$(4),$(PREFIX))|; s|@VERSION@|$(VERSION)|' \
	-e 's|@LIBDIR@|$(call in_prefix,$(LIBDIR),$(3))|; s|@INCLUDEDIR@|$(call in_prefix,$(INCLUDEDIR),$(3))|' \
	-e 's|@SOVERSION@|$(SOVERSION)|; s|@REQUIRES@|$(if $(WITH_ZSTD),libzstd)|; s|@LIBRARIES@|$(ZSTD_LIB:-l%=%)|' \
	-e '/^[A-Za-z.]*: $$/d' -e '/@FUNCTIONS@/{r $(B)/public.txt' -e 'd}' csrc/package/$(1).in >$(DESTDIR)$(2)/$(1)

# The static library has objects of its own: public names are hidden, so that a shared library it is linked into does
# not export them.
$(B)/static/%.o: %.c $(B)/built-with
	$(call say,cc,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -DCKPTFMT_API= -MMD -MP -c -o $@ $<
$(B)/static/csrc/base/limits.o: ALL_CFLAGS += -DCKPTFMT_VERSION='"$(VERSION)"'
$(B)/static/csrc/base/limits.o: pyproject.toml
$(B)/static/csrc/compress/zstd.o: ALL_CFLAGS += $(if $(WITH_ZSTD),-DCKPTFMT_WITH_ZSTD)

# The names of the public functions, and the symbol map that exports them and no others.
$(B)/public.txt: csrc/ckptfmt.h
	$(Q)mkdir -p $(@D)
	$(Q)sed -n 's/^CKPTFMT_API[^(]*[ *]\(ckptfmt_[a-z0-9_]*\)(.*/\1/p' $< >$@

$(B)/symbols.map: $(B)/public.txt
	$(Q){ echo 'CKPTFMT_$(SOVERSION) { global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } >$@

# One object in which all that is not public is local: a program cannot clash with our internal names.
build/libckptfmt.a: $(patsubst %.c,$(B)/static/%.o,$(LIB_SRC)) $(B)/public.txt
	$(call say,ar,$@)
	$(Q)$(RELINK) -o $(B)/ckptfmt.o $(filter %.o,$^)
	$(Q)$(call tool,OBJCOPY,objcopy) --keep-global-symbols=$(B)/public.txt $(B)/ckptfmt.o
	$(Q)rm -f $@
	$(Q)$(call tool,AR,ar) rcs $@ $(B)/ckptfmt.o

link_shared = $(CC) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=$(B)/symbols.map -Wl,-z,defs -o $@ $(LIB_OBJ) \
	$(ZSTD_LIB) $(ALL_LDFLAGS)
build/libckptfmt.so: $(LIB_OBJ) $(B)/symbols.map
	$(call say,ld,$@)
	$(Q)$(link_shared)
	$(Q)ln -sf libckptfmt.so build/$(SONAME)

build/abi/libckptfmt.so: $(LIB_OBJ) $(B)/symbols.map
	$(call say,ld,$@)
	$(Q)$(link_shared)

build/plain_c: $(B)/examples/plain_c.o build/libckptfmt.a
	$(call say,ld,$@)
	$(Q)$(CC) -o $@ $^ $(ZSTD_LIB) $(ALL_LDFLAGS)

-include $(shell find $(B) -name '*.d' 2>/dev/null)
