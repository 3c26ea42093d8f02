"""Manifests of the Long Range Arena models of LeaPformer's appendix A.10, for any mechanism: 2 layers, d_model 64, 2
heads, ffn 128, pre-norm, GELU, learned positions, a hidden layer of 128 before the classes.

lra.py FOLDER [--task listops|pathfinder] [--length N] [--mechanism NAME [--options TOML]]
writes FOLDER/vocab.txt and FOLDER/NAME.toml, untrained models made from seed 1.
"""
import argparse
import pathlib

# Sizes of the vocabularies and lengths are those of the papers' code; ListOps uses 15 of its 32 ids.
TASKS = {
    "listops": {"vocabulary": 32, "classes": 10, "length": 2048,
                "tokens": ["[MIN", "[MAX", "[MED", "[SM", "X", *map(str, range(10))]},
    "pathfinder": {"vocabulary": 512, "classes": 2, "length": 1024, "tokens": [f"g{level}" for level in range(256)]},
}

# The rows of the tables: a label, the mechanism, its options for sequences of n tokens, more of the head.
ROWS = [
    ("softmax", "softmax", "", ""),
    ("relu", "relu", "", ""),
    ("cosformer", "cosformer", "", ""),
    ("leap, r = 1", "leap", "factor = 32", ""),
    ("leap, r = 16", "leap", "factor = 2", ""),
    ("leap, r = 32", "leap", "factor = 1", ""),
    ("leap, r = 16, per head", "leap", "factor = 2, shared = false", ""),
    ("linear", "linear", "", ""),
    ("rope_linear", "rope_linear", "", ""),
    ("performer", "performer", "features = 128", ""),
    ("efficient", "efficient", "", ""),
    ("latte", "latte", "latents = 64", ""),
    ("luna, l = 16", "luna", "projection = 16", ""),
    ("luna, l = 16, P pooled", "luna", "projection = 16", ', of = "p"'),
    ("linformer", "linformer", "rank = 128, n_max = {n}", ""),
    ("nystromformer", "nystromformer", "landmarks = 128", ""),
    ("skyformer", "skyformer", "samples = 128", ""),
    ("local", "local", "window = 128", ""),
    ("bigbird", "bigbird", "block = 64, random = 3, length = {n}", ""),
    ("reformer", "reformer", "chunk = 64, rounds = 2, length = {n}", ""),
    ("s4d", "s4d", "order = 64", ""),
]


def vocabulary(task):
    lines = ["<pad>", "<s>", "</s>", *TASKS[task]["tokens"]]
    return lines + [f"<unused{i}>" for i in range(TASKS[task]["vocabulary"] - len(lines))]


def manifest(task, mechanism, options="", length=None, head=""):
    """head: more of the classifier's table, such as ', of = "p"'."""
    own = f"{{ use = \"{mechanism}\"{', ' if options else ''}{options} }}"
    return f"""schema = "attnkit.model/1"

[model]
name = "lra-{task}-{mechanism}"
kind = "encoder"
d_model = 64
heads = 2
ffn = 128
norm = "pre"
activation = "gelu"
positions = "learned"
max_length = {length or TASKS[task]["length"]}
encoder = {{ layers = 2, vocab = "vocab.txt" }}
head = {{ type = "classifier", classes = {TASKS[task]["classes"]}, hidden = 128{head} }}

[weights]
seed = 1

[attention]
default = {own}
"""


def write(folder, task, mechanism, options="", length=None, head="", name=None):
    """Returns the manifest's path."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary(task)) + "\n")
    path = folder / f"{name or mechanism}.toml"
    path.write_text(manifest(task, mechanism, options, length, head))
    return path


def write_row(folder, task, row, length=None):
    """The manifest of a row of ROWS."""
    label, mechanism, options, head = row
    n = length or TASKS[task]["length"]
    name = f"{task}-{n}-" + label.replace(",", "").replace(" = ", "").replace(" ", "-")
    return write(folder, task, mechanism, options.format(n=n), length, head, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--task", choices=TASKS, default="listops")
    parser.add_argument("--length", type=int)
    parser.add_argument("--mechanism", default="softmax")
    parser.add_argument("--options", default="", help='such as "rank = 128, n_max = 4096"')
    arguments = parser.parse_args()
    print(write(arguments.folder, arguments.task, arguments.mechanism, arguments.options, arguments.length))


if __name__ == "__main__":
    main()
