"""The table of a search of --strategy ablation --per-layer: quality by the block that was changed.

    ablation.py search/result.json
"""
import json
import sys


def cell(quality):
    digits = 2 if quality["value"] > 10 else 4
    half = max(quality["value"] - quality["low"], quality["high"] - quality["value"])
    return f"{quality['value']:.{digits}f} ± {half:.{digits}f}"


def main():
    result = json.load(open(sys.argv[1], encoding="utf-8"))
    baseline = next(p for p in result["placements"] if p["baseline"])
    print(f"n = {baseline['quality']['lists']}, as it is {cell(baseline['quality'])}")
    for role, own in baseline["blocks"].items():
        table = {}
        for p in result["placements"]:
            layers = p["blocks"][role]
            changed = [i for i, (a, b) in enumerate(zip(layers, own), 1) if a != b]
            others = all(p["blocks"][r] == blocks for r, blocks in baseline["blocks"].items() if r != role)
            if not others or len(changed) not in (1, len(own)) or len({layers[i - 1] for i in changed}) != 1:
                continue
            place = changed[0] if len(changed) == 1 else "all"
            row = table.setdefault(layers[changed[0] - 1], {})
            row[place] = cell(p["quality"]) if p["status"] == "ranked" else "failed"
        places = [*range(1, len(own) + 1), "all"]
        rows = sorted(table)
        # A model of many layers has a row for each of them.
        if len(own) > len(rows):
            print(f"\n| {role} | {' | '.join(rows)} |\n|---|{'---|' * len(rows)}")
            for place in places:
                print(f"| {place} | {' | '.join(table[row].get(place, '') for row in rows)} |")
        else:
            print(f"\n| {role} | {' | '.join(map(str, places))} |\n|---|{'---|' * len(places)}")
            for row in rows:
                print(f"| {row} | {' | '.join(table[row].get(place, '') for place in places)} |")


if __name__ == "__main__":
    main()
