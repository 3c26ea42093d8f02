"""python3 record.py FOLDER > recorded.json: the journal of `attnkit search --thorough -o FOLDER` as search_replay reads it."""

import json
import pathlib
import statistics
import sys


def main(folder):
    trials = [json.loads(line) for line in (pathlib.Path(folder) / "journal.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    result = json.loads((pathlib.Path(folder) / "result.json").read_text(encoding="utf-8"))
    exact, speeds, memory = {}, {}, {}
    for trial in trials:
        kind, name, *rest = trial["key"].split("|")
        if trial["status"] != "ok":
            continue
        if kind == "quality" and rest[0].startswith("data "):
            outcomes = trial["result"]["outcomes"]
            exact[name] = "".join("01"[right == tokens] for right, tokens in zip(outcomes["right"], outcomes["tokens"], strict=True))
        if kind == "block":
            at = trial["result"]["at"][0]
            speeds.setdefault(rest[0], []).append(round(at["decode_ratio"], 4))
            memory.setdefault(rest[0], []).append(at["peak_bytes"] / at["baseline_peak_bytes"])
    ids = sorted(exact)
    homogeneous = [ids.index(entry["id"]) for entry in result["homogeneous"]]
    placements = [{"id": name, "exact": exact[name], "speeds": speeds[name], "memory": round(statistics.median(memory[name]), 4)}
                  for name in ids]
    json.dump({"baseline": ids.index(result["settings"]["baseline"]), "homogeneous": homogeneous, "placements": placements},
              sys.stdout, indent=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
