"""Plugins of today in the host of the first release of the contract, built from its commit.

frozen_host.py PLUGINS FOLDER     PLUGINS: lib/attnkit/1 of a build; FOLDER: where the old host is built and kept

Every manifest of that release must give the same text by its own plugins and by today's, and every plugin of today must
load or be refused in words.  An untrained one is given weights, today's: the initial values of a seed are a plugin's
own affair, and luna's have changed since.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

FROZEN = "208d053"  # "The contract is version 1"
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def build(folder):
    if subprocess.run(["git", "-C", SOURCE, "cat-file", "-e", FROZEN], capture_output=True).returncode != 0:
        print(f"skipped: this checkout has no commit {FROZEN}; git fetch --unshallow brings it")
        sys.exit(SKIPPED)
    if not (folder / "source").exists():
        (folder / "source").mkdir(parents=True)
        archive = subprocess.run(["git", "-C", SOURCE, "archive", FROZEN], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder / "source"], input=archive, check=True)
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DATTNKIT_TESTS=OFF", "-DATTNKIT_CUDA=OFF"]
    subprocess.run(["cmake", "-S", folder / "source", "-B", folder / "build", *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, stdout=subprocess.DEVNULL)


def attnkit(folder, plugins, *arguments):
    environment = {**os.environ, "ATTNKIT_PLUGIN_PATH": str(plugins)}
    done = subprocess.run([folder / "build/bin/attnkit", *arguments], env=environment, capture_output=True, text=True)
    if done.returncode < 0:
        raise SystemExit(f"FAILED: the old host ended by signal {-done.returncode}: {' '.join(map(str, arguments))}")
    return done


def with_weights(manifest, plugins, folder):
    """A manifest that reads its weights from a file, the old one's if it has one."""
    text = manifest.read_text()
    if re.search(r"(?m)^file *=", text):
        return manifest
    made = folder / "weights" / manifest.stem
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run([plugins.parents[2] / "bin/attnkit", "bundle", manifest, "-o", made], check=True, stdout=subprocess.DEVNULL)
    text = re.sub(r"(?m)^seed *= *\d+", f'file = "{made}/weights.safetensors"', text.replace('"../', f'"{manifest.parents[1]}/'))
    assert "weights.safetensors" in text, manifest
    written = folder / "weights" / manifest.name
    written.write_text(text)
    return written


def main():
    plugins, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    build(folder)
    own, failed = folder / "build/lib/attnkit/1", []
    listed = json.loads(attnkit(folder, plugins, "doctor", "--json").stdout)
    files = {plugin["file"] for plugin in listed["plugins"]} | {skipped["path"] for skipped in listed["skipped"]}
    from_today = [file for file in files if pathlib.Path(file).parent == plugins]
    if len(from_today) != len(list(plugins.glob("*.so"))):
        failed.append(f"of {len(list(plugins.glob('*.so')))} files the old host speaks of {len(from_today)}")
    loaded = [plugin["name"] for plugin in listed["plugins"] if pathlib.Path(plugin["file"]).parent == plugins]
    refused = [s for s in listed["skipped"] if pathlib.Path(s["path"]).parent == plugins]
    print(f"loaded: {' '.join(sorted(loaded))}")
    for skipped in refused:
        print(f"refused: {skipped['path']}: {skipped['reason']}")

    manifests = [*(folder / "source/samples/manifests").glob("*.toml"), *(folder / "source/samples/models").glob("*/model.toml")]
    texts = [part for text in ("two hundred and forty-one euros", "half past three", "one million") for part in ("--text", text)]
    for manifest in (with_weights(manifest, plugins, folder) for manifest in sorted(manifests)):
        before, now = (attnkit(folder, path, "run", manifest, *texts) for path in (own, plugins))
        same = (before.returncode, before.stdout) == (now.returncode, now.stdout)  # the other stream has times
        print(f"{'same' if same else 'DIFFERENT'}: {manifest.name}, exit {now.returncode}, {len(now.stdout)} bytes")
        if not same:
            failed.append(f"{manifest.name}: {before.stdout!r} {before.stderr!r} became {now.stdout!r} {now.stderr!r}")
    print(f"old host: {len(loaded)} plugins of today loaded, {len(manifests)} manifests, {len(failed)} failures")
    for failure in failed:
        print(f"FAILED: {failure}")
    return 1 if failed or not loaded else 0


sys.exit(main())
