#!/bin/sh
# Trains the shipped model in two legs: train.sh OUT, run again after any stop.  OUT/softmax: softmax everywhere; OUT/supernet: every placement, from its
# weights.  PYTHON is one with torch, PYTHONPATH has the attnkit package, FOLDER what corpus.py made.
set -eu
here=$(dirname "$(realpath "$0")")
: "${FOLDER:=$HOME/.cache/attnkit/debian-en-de}" "${PYTHON:=python3}"
out=$1

leg() {
  leg=$1
  mkdir -p "$out/$leg"
  cp "$FOLDER/pieces.model" "$FOLDER/dev.tsv" "$FOLDER/test.tsv" "$out/$leg"
  shift
  "$PYTHON" -m attnkit.train "$out/$leg/supernet.toml" --data "$FOLDER/train.tsv" --dev "$FOLDER/dev.tsv" --out "$out/$leg" --tokens 4000 --optimizer muon \
    --label-smoothing 0.1 --threads 1 "$@"
}

mkdir -p "$out/softmax" "$out/supernet"
cp "$here/supernet.toml" "$out/softmax"
leg softmax --steps 2432 --schedule constant --bf16-until 1 --average 0.99 --warmup 300 --evaluate-every 10
sed 's#^seed = 1#file = "../softmax/model/weights.safetensors"\nseed = 1#' "$here/supernet.toml" >"$out/supernet/supernet.toml"
leg supernet --supernet --minutes 50 --lr 1.5e-3 --decay 0.5 --average 0.995 --warmup 50 --baseline-share 0.15 --f16 --evaluate-every 15 --dev-examples 200
