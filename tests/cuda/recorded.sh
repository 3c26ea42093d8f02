#!/bin/sh
# Runs a compiler of CUDA; what ptxas says of registers and stacks goes to a file beside the object, the rest where it went.
#   recorded.sh COMPILER ... -o OBJECT ...
for word; do
  [ "${before:-}" != -o ] || object=$word
  before=$word
done
"$@" >"$object.resources" 2>&1
status=$?
grep -v -e '^ptxas info' -e '^    [0-9]* bytes stack frame' "$object.resources"
exit $status
