# make: build build/release/bin/penstock        make demo: answer MT-Bench's questions with the demo model
# make check: the gates, build and run all tests make fuzz: every fuzzer for FUZZ_SECONDS
# make gates: fast checks of style and structure alone (scripts/gates.py); make tidy: clang-tidy on all of src/
# make nightly: tidy, tsan, all tests optimised, bad inputs, COMBINATIONS random policies and 500 of ranks under sanitizers,
#     random plans, 300 faults, 120 of ranks, 200 kills of jobs and 400 of --prefix-dir, from a new SEED each day; jobs'
#     answers and memory with all CPUs; a wheel of the Python package, with lm-evaluation-harness; the papers' tables are as
#     docs/paper-tables.md has them
# make tsan: tests of the floors with threads under the thread sanitizer
# make paper-tables: simulate the papers' tables into docs/paper-tables.md
# make format: clang-format on all C++ and CUDA files
# make wheel: build and test a wheel of the Python package (scripts/wheel.sh)
FUZZ_SECONDS ?= 60
COMBINATIONS ?= 1100
SEED ?= $(shell date +%Y%m%d)

.PHONY: all deps release demo check gates nightly tsan paper-tables fuzz format tidy install wheel clean
all: release

deps:
	@scripts/install-deps.sh

release: deps
	@cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }; rm -f build-configure.log
	@cmake --build --preset release --target penstock

demo: release
	@scripts/demo.sh

check:
	@scripts/install-deps.sh --check
	@scripts/check.py

gates:
	@scripts/gates.py

nightly: deps tidy tsan
	@cmake --preset dev >/dev/null && cmake --build --preset dev --target engine_test chat_test job_test kernels_test
	@cmake --preset release >/dev/null && cmake --build --preset release
	@ctest --preset release -L fast && ctest --preset dev -R '^(chat/whole_answer_test|job/kill_test|kernels/[a-z]*_test)$$'
	@echo "nightly: $(COMBINATIONS) combinations, seed $(SEED)"
	@cd build/dev && PENSTOCK_TEST_COMBINATIONS=$(COMBINATIONS) PENSTOCK_TEST_SEED=$(SEED) tests/engine_test --file=engine/policies_test.cc
	@cmake --build --preset dev --target penstock && python3 tests/cli/bad_inputs.py --penstock build/dev/bin/penstock --only "^(?!L11 )"
	@cd build/dev && PENSTOCK_TEST_RANK_COMBINATIONS=500 PENSTOCK_TEST_SEED=$(SEED) tests/engine_test --file=engine/ranks_test.cc
	@cd build/release && PENSTOCK_TEST_COMBINATIONS=$(COMBINATIONS) PENSTOCK_TEST_SEED=$(SEED) tests/simulate_test --file=simulate/plan_properties_test.cc
	@python3 bench/paper_tables/paper_tables.py --check
	@scripts/wheel.sh --lm-eval
	@python3 tests/cli/ranks.py --penstock build/release/bin/penstock --kills 100 --stops 20 --seed $(SEED)
	@python3 tests/cli/faults.py --penstock build/release/bin/penstock --shim build/release/tests/cli/libfault_shim.so --seed $(SEED)
	@python3 tests/cli/kill_resume.py --penstock build/release/bin/penstock --kills 200 --seed $(SEED)
	@for test in same_answers memory_held memory_of_requests; do \
		python3 tests/cli/$$test.py --penstock build/release/bin/penstock || exit 1; done
	@python3 tests/cli/prefix_kills.py --penstock build/release/bin/penstock --kills 400 --seed $(SEED)
	@python3 tests/cli/published_configs.py --penstock build/release/bin/penstock --all --workload prompt=128,gen=16,requests=64
	@python3 tests/server/batch_kills.py --penstock build/release/bin/penstock --kills 200 \
		--lines 500 --tokens 180

# The floors with threads, and the files of other floors, under the thread sanitizer.
THREADED = base runtime parallel memory schedule engine server
THREADED_FILES = grammar/constraint_test job/format_cache_test
tsan: deps
	@cmake --preset tsan >/dev/null && cmake --build --preset tsan --target $(THREADED:%=%_test) grammar_test job_test
	@ctest --preset tsan -L fast -R '^($(shell echo $(THREADED:%=%/.*) $(THREADED_FILES) | tr ' ' '|'))$$'

paper-tables: release
	@python3 bench/paper_tables/paper_tables.py

fuzz:
	@scripts/install-deps.sh --all
	@scripts/fuzz.sh $(FUZZ_SECONDS)

format:
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

tidy:
	@scripts/install-deps.sh --check
	@scripts/gates.py --all-files tidy

install: release
	@cmake --build --preset release && cmake --install build/release $(if $(PREFIX),--prefix $(PREFIX))

wheel: deps
	@scripts/wheel.sh

clean:
	@rm -rf build
