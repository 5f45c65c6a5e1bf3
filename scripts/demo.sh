#!/usr/bin/env bash
# Answers the 80 questions of MT-Bench with the shipped model, while half of its experts lie on disk.
set -eu
cd "$(dirname "$0")/.."
model=models/penstock-demo
output=build/demo/answers.jsonl
mkdir -p build/demo
rm -f "$output" "$output".*
flags=(--model "$model" --input examples/mt_bench/question.jsonl --output "$output" --memory "${DEMO_MEMORY:=24.8MiB}"
       --max-tokens 96 --temperature 0.7 --top-p 0.95 --stats build/demo/stats.json)
echo "build/release/bin/penstock run ${flags[*]}"
build/release/bin/penstock run "${flags[@]}"
python3 - "$output" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
good = [line for line in lines if line["error"] is None]
print(f"\n{len(good)} of {len(lines)} requests answered in {sys.argv[1]}; one of them:\n")
message = good[0]["response"]["body"]["choices"][0]
for number, answer in enumerate(message.get("turns", [message["message"]["content"]]), 1):
    print(f"[{good[0]['custom_id']}, turn {number}] {answer.strip()}\n")
PYTHON
