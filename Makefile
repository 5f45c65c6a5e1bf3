# make: build build/release/bin/penstock        make demo: answer MT-Bench's questions with the demo model
# make check: build and run all tests           make fuzz: every fuzzer for FUZZ_SECONDS
# make nightly: COMBINATIONS random policies under sanitizers, and random plans, from a new SEED each day
# make paper-tables: simulate the papers' tables into docs/paper-tables.md
# make format / make tidy: clang-format, clang-tidy (scripts/install-deps.sh --all)
FUZZ_SECONDS ?= 60
COMBINATIONS ?= 1100
SEED ?= $(shell date +%Y%m%d)

.PHONY: all deps release demo check nightly paper-tables fuzz format tidy install clean
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

nightly: deps
	@cmake --preset dev >/dev/null && cmake --build --preset dev --target engine_test
	@cmake --preset release >/dev/null && cmake --build --preset release --target simulate_test
	@echo "nightly: $(COMBINATIONS) combinations, seed $(SEED)"
	@cd build/dev && PENSTOCK_TEST_COMBINATIONS=$(COMBINATIONS) PENSTOCK_TEST_SEED=$(SEED) tests/engine_test --file=engine/policies_test.cc
	@cd build/release && PENSTOCK_TEST_COMBINATIONS=$(COMBINATIONS) PENSTOCK_TEST_SEED=$(SEED) tests/simulate_test --file=simulate/plan_properties_test.cc

paper-tables: release
	@python3 bench/paper_tables/paper_tables.py

fuzz:
	@scripts/install-deps.sh --all
	@scripts/fuzz.sh $(FUZZ_SECONDS)

format:
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

# clang-tidy reads the flags of the fuzz preset, which has clang's flags and no precompiled header of GCC.
tidy:
	@scripts/install-deps.sh --all
	@cmake --preset fuzz >/dev/null && git ls-files 'src/*.cc' | xargs -n 4 clang-tidy --quiet -p build/fuzz

install: release
	@cmake --build --preset release && cmake --install build/release $(if $(PREFIX),--prefix $(PREFIX))

clean:
	@rm -rf build
