#!/bin/bash
# Pretrains and fine-tunes the three sizes side by side on one GPU, and exports them.
# Usage: train_all.sh DATA OUT PRETRAIN_SECONDS FINETUNE_SECONDS
# DATA holds the output of texts.py, and that of tasks.py in DATA/tasks. A size that fails leaves the others running.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=$1 out=$2 pretrain=$3 finetune=$4
python=${PYTHON:-python3}

train() { # SIZE FF
    local run=$out/$1
    mkdir -p "$run"
    "$python" "$here/train.py" --stage pretrain --data "$data" --out "$run/pretrain" --experts "$1" --ff "$2" \
        --max-seconds "$pretrain" --bf16 --resume --drop 0.0 --lr 1.5e-3 --eval-seconds 60
    "$python" "$here/export.py" --checkpoint "$run/pretrain/weights.pt" --tokenizer "$data" --out "$run/pretrained"
    "$python" "$here/train.py" --stage finetune --data "$data/tasks" --out "$run/finetune" \
        --init "$run/pretrain/weights.pt" --max-seconds "$finetune" --bf16 --resume \
        --drop 0.1 --expert-drop 0.2 --lr 6e-4 --warmup 100 --eval-seconds 15
    "$python" "$here/export.py" --checkpoint "$run/finetune/weights.pt" --tokenizer "$data" --out "$run/model"
}

mkdir -p "$out"
for size in "8 192" "32 192" "128 96"; do
    set -- $size
    train "$1" "$2" > "$out/$1.log" 2>&1 || tail -5 "$out/$1.log" &
done
wait
