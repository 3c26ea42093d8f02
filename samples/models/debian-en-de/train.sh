#!/bin/sh
# One leg of training: train.sh MANIFEST OUT [OPTION of attnkit.train ...], at most two hours; run again it goes on from OUT's checkpoint,
# also after a kill.  PYTHON is one with torch, PYTHONPATH has the attnkit package, FOLDER what corpus.py made.
set -eu
here=$(dirname "$(realpath "$0")")
: "${FOLDER:=$HOME/.cache/attnkit/debian-en-de}" "${PYTHON:=python3}"
manifest=$1 out=$2
shift 2
mkdir -p "$out"
cp "$FOLDER/pieces.model" "$FOLDER/dev.tsv" "$FOLDER/test.tsv" "$out"
cp "$here/$manifest" "$out/$manifest"
exec timeout --signal=INT --preserve-status 2h "$PYTHON" -m attnkit.train "$out/$manifest" --data "$FOLDER/train.tsv" --dev "$FOLDER/dev.tsv" --out "$out" \
  --steps 24000 --tokens 4000 --optimizer muon --label-smoothing 0.1 --dropout 0.1 --f16 --evaluate-every 15 --checkpoint-every 5 "$@"
