#!/bin/sh
# Trains the shipped model in two legs: train.sh OUT, run again after any stop.  OUT/softmax: softmax everywhere; OUT/supernet: every placement, from its
# weights.  train.sh OUT waitk: a third, which is not shipped, for simultaneous decoding: OUT/waitk, from the shipped weights, with an encoder that sees
# nothing ahead.  train.sh OUT waitk-ahead: the same with an encoder that sees all that was read, by --prefixes.  train.sh OUT plain: softmax without adapters and head_norm, which other programs run as well: OUT/plain, from the shipped weights; needs
# sentencepiece and safetensors.  train.sh OUT alone ENCODER/SELF/CROSS: one placement by itself, from the shipped weights: OUT/alone/ENCODER-SELF-CROSS.
# train.sh OUT distilled ENCODER/SELF/CROSS: the same, taught by softmax everywhere: OUT/distilled/ENCODER-SELF-CROSS.  train.sh OUT longer
# ENCODER/SELF/CROSS: one placement by itself, from the shipped weights, STEPS (2000) of TOKENS (4000): OUT/longer/ENCODER-SELF-CROSS.  train.sh OUT scratch
# ENCODER/SELF/CROSS: one placement by itself, from random weights, STEPS (1200) of TOKENS (2000): OUT/scratch/ENCODER-SELF-CROSS.  train.sh OUT converted
# ENCODER/SELF/CROSS: one placement from the weights of OUT/scratch/softmax-softmax-softmax, which know softmax alone, STEPS (200) of TOKENS (2000):
# OUT/converted/ENCODER-SELF-CROSS; taught instead of converted: by that model, OUT/taught/ENCODER-SELF-CROSS.  PYTHON is one with torch, PYTHONPATH has the
# attnkit package, FOLDER what corpus.py made, SEED (1) draws the batches and random weights.
set -eu
here=$(dirname "$(realpath "$0")")
: "${FOLDER:=$HOME/.cache/attnkit/debian-en-de}" "${PYTHON:=python3}" "${SEED:=1}"
out=$1
case ${2-} in
  '' | waitk | waitk-ahead | plain) ;;
  alone | distilled | longer | scratch | converted | taught) : "${3:?give a placement, ENCODER/SELF/CROSS}" ;;
  *)
    echo "train.sh: $2 is no leg: waitk, waitk-ahead, plain, alone, distilled, longer, scratch, converted or taught" >&2
    exit 2
    ;;
esac
weights=$(printf %s "$here/weights.safetensors" | sed 's/[&#\\]/\\&/g') # in what sed puts in place

leg() {
  leg=$1
  mkdir -p "$out/$leg"
  cp "$FOLDER/pieces.model" "$FOLDER/dev.tsv" "$FOLDER/test.tsv" "$out/$leg"
  shift
  "$PYTHON" -m attnkit.train "$out/$leg/supernet.toml" --data "$FOLDER/train.tsv" --dev "$FOLDER/dev.tsv" --out "$out/$leg" --tokens 4000 --optimizer muon \
    --label-smoothing 0.1 --threads 1 --seed "$SEED" "$@"
}

if [ "${2-}" = waitk ] || [ "${2-}" = waitk-ahead ]; then
  name=$2
  mkdir -p "$out/$name"
  causal=" causal = true,"
  set -- --minutes 42 --lr 1.5e-3 --decay 0.6 --average 0.995
  if [ "$name" = waitk-ahead ]; then # a tenth of the tokens in each step, so steps as small as those of a placement by itself
    causal=
    set -- --prefixes --optimizer adamw --minutes 12 --lr 1e-4 --decay 0 --average 0.98
  fi
  sed -e "s#^file = .*#file = \"$weights\"#" -e '/^sha256/d' -e '/^"decoder.self" = "relu"/d' \
    -e "s/^encoder = { layers = 4,/&$causal/" -e '/^"encoder.self" = \[/s/=.*/= ["softmax", "relu", "leap"]/' \
    -e '/^"decoder\.[a-z]*" = \[/s/=.*/= ["softmax", "relu", "cosformer", "leap"]/' "$here/model.toml" >"$out/$name/supernet.toml"
  leg "$name" --supernet --wait-k 1,3,5,7,9 --warmup 50 --baseline-share 0.2 --f16 --evaluate-every 20 --dev-examples 200 --log-every 50 "$@"
  exit
fi
if [ "${2-}" = plain ]; then
  mkdir -p "$out/plain"
  [ -f "$out/plain/start.safetensors" ] || "$PYTHON" "$here/plain.py" "$FOLDER/dev.tsv" "$out/plain/start.safetensors"
  sed -e 's/^file = .*/file = "start.safetensors"/' -e '/^sha256/d' -e '/^head_norm/d' -e '/^adapters/d' -e '/^params\./d' -e '/^"decoder.self" = "relu"/d' \
    -e '/^# dev.tsv/,$d' "$here/model.toml" >"$out/plain/supernet.toml"
  leg plain --minutes 20 --lr 1.0e-3 --decay 0.7 --average 0.99 --warmup 30 --f16 --evaluate-every 30 --dev-examples 200 --log-every 50
  exit
fi
placed() {
  echo "$1" | {
    IFS=/ read -r encoder self cross
    sed -e "s#^file = .*#file = \"$weights\"#" -e '/^"[a-z.]*" = "relu"/d' \
      -e "s#^default = .*#&\n\"encoder.self\" = \"$encoder\"\n\"decoder.self\" = \"$self\"\n\"decoder.cross\" = \"$cross\"#" "$here/$2"
  }
}

if [ "${2-}" = longer ]; then
  name=longer/$(echo "$3" | tr / -)
  mkdir -p "$out/$name"
  placed "$3" model.toml >"$out/$name/supernet.toml"
  leg "$name" --tokens "${TOKENS:=4000}" --steps "${STEPS:=2000}" --lr 1e-3 --muon-lr 0.01 --warmup 50 --decay 0 --average 0.995 --f16 --evaluate-steps 200 \
    --dev-examples 200 --log-every 50
  exit
fi
if [ "${2-}" = scratch ]; then
  name=scratch/$(echo "$3" | tr / -)
  mkdir -p "$out/$name"
  placed "$3" supernet.toml >"$out/$name/supernet.toml"
  leg "$name" --tokens "${TOKENS:=2000}" --steps "${STEPS:=1200}" --warmup 100 --decay 0.4 --average 0.99 --f16 --evaluate-steps 300 --dev-examples 200 --log-every 50
  exit
fi
if [ "${2-}" = converted ] || [ "${2-}" = taught ]; then
  name=$2/$(echo "$3" | tr / -)
  from=$(realpath "$out/scratch/softmax-softmax-softmax/model")
  mkdir -p "$out/$name"
  placed "$3" supernet.toml | sed "s#^seed = 1#file = \"$from/weights.safetensors\"\nseed = 1#" >"$out/$name/supernet.toml"
  set --
  [ "${name%/*}" = converted ] || set -- --teacher "$from/model.toml"
  leg "$name" --tokens "${TOKENS:=2000}" --steps "${STEPS:=200}" --lr 1e-3 --muon-lr 0.01 --warmup 20 --decay 0.3 --average 0.98 --f16 --evaluate-steps 100 \
    --dev-examples 200 --log-every 50 "$@"
  exit
fi
if [ "${2-}" = alone ] || [ "${2-}" = distilled ]; then
  name=$2/$(echo "$3" | tr / -)
  mkdir -p "$out/$name"
  placed "$3" model.toml >"$out/$name/supernet.toml"
  awk 'NR % 12 == 1' "$FOLDER/train.tsv" >"$out/$name/train.tsv" # more than these steps see
  set --
  if [ "${name%/*}" = distilled ]; then
    placed softmax/softmax/softmax model.toml >"$out/$name/teacher.toml"
    set -- --teacher "$out/$name/teacher.toml"
  fi
  leg "$name" --data "$out/$name/train.tsv" --tokens 1000 --optimizer adamw --steps 500 --lr 1e-4 --decay 0 --average 0.98 --warmup 25 --f16 \
    --evaluate-steps 1000 --dev-examples 200 --log-every 50 "$@"
  exit
fi
mkdir -p "$out/softmax" "$out/supernet"
cp "$here/supernet.toml" "$out/softmax"
leg softmax --steps 2432 --schedule constant --bf16-until 1 --average 0.99 --warmup 300 --evaluate-every 10
sed 's#^seed = 1#file = "../softmax/model/weights.safetensors"\nseed = 1#' "$here/supernet.toml" >"$out/supernet/supernet.toml"
leg supernet --supernet --steps 1791 --lr 1.5e-3 --decay 0.5 --average 0.995 --warmup 50 --baseline-share 0.15 --f16 --evaluate-every 15 --dev-examples 200
