"""Prints the nanoseconds of a one-token call for each line that it reads.   step.py MODEL.toml STEPS"""

import array
import sys
import time

import attnkit

model = attnkit.Model(attnkit.Runtime(), sys.argv[1])
logits, steps = array.array("f", bytes(4 * model.info.outputs)), int(sys.argv[2])
for _ in sys.stdin:
    session = attnkit.Session(model, 1)
    start = time.perf_counter_ns()
    for i in range(steps):
        session.step(i % 16, logits)
    print((time.perf_counter_ns() - start) / steps, flush=True)
