#!/bin/sh
# Builds the fuzzers and runs each for SECONDS on a copy of its corpus. Fails on the first finding.
#
# Usage: scripts/fuzz.sh [SECONDS]
set -eu
seconds="${1:-60}"
cd "$(dirname "$0")/.."
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
num_run=0
for fuzzer in build/fuzz/fuzz/*_fuzzer; do
  name=$(basename "$fuzzer")
  work="build/fuzz/corpus/$name"
  mkdir -p "$work"
  printf 'fuzz: %s for %s s\n' "$name" "$seconds"
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "$work" "fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 || {
    tail -n 40 "build/fuzz/$name.log"
    printf 'fuzz: %s found a fault; the input is build/fuzz/%s-*\n' "$name" "$name"
    exit 1
  }
  grep -E 'number_of_executed_units|peak_rss_mb' "build/fuzz/$name.log" || true
  num_run=$((num_run + 1))
done
printf 'fuzz: %s fuzzers, no finding\n' "$num_run"
