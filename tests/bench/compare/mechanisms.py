"""Whole sequences of every mechanism: time, share of what the processor can do, and where softmax becomes dearer, by attnkit bench.

    ATTNKIT=build/bin/attnkit python3 tests/bench/compare/mechanisms.py [--length 128,1024,4096] [--threads 1,2] [--form causal,full] [--mechanism relu,leap]

The command times a mechanism in turns with softmax, and in the same process the multiply-adds that the threads can do in registers; flops are
those that the mechanism states.  A mechanism that has no such form (its own error says why) is left out; bigbird's table of blocks is for the longest.
"""

import json
import os
import subprocess

from common import Lines, options_of

ROLES = {"causal": "decoder.self", "full": "encoder.self"}
MECHANISMS = ["softmax", "relu", "linear", "cosformer", "leap", "rope_linear", "efficient", "performer", "latte", "luna", "linformer", "local", "s4d", "ssru",
              "bigbird", "reformer", "nystromformer", "skyformer", "relative_bias"]


def main():
    options = options_of(__doc__, 0, length=[128, 1024, 4096], form=["causal", "full"], mechanism=MECHANISMS)
    lines = Lines(options.results)
    for threads in options.threads:
        for form in options.form:
            for mechanism in options.mechanism:
                case = {"mechanism": mechanism, "form": form, "threads": threads}
                if case in lines:
                    continue
                table = ["--options", f"length = {max(options.length)}"] if mechanism == "bigbird" else []
                done = subprocess.run([os.environ["ATTNKIT"], "bench", "--block", mechanism, "--role", ROLES[form], "--threads", str(threads), *table,
                                       "--length", ",".join(map(str, options.length)), "--json"], capture_output=True, text=True)
                if done.returncode:
                    print(f"{mechanism}, {form}: {done.stderr.strip()}", flush=True)
                else:
                    lines.keep({"case": case, "bench": json.loads(done.stdout)})
                    print(f"{mechanism}, {form}, {threads} threads: " + ", ".join(
                        f"{r['length']}: {1e3 * r['median_seconds']:.3g} ms, {100 * r['share']:.0f} %" for r in lines.all[-1]["bench"]["results"]), flush=True)


if __name__ == "__main__":
    main()
