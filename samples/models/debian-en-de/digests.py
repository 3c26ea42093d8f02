"""SHA-256 of the files that a result is of: the scripts that measure print them before their tables."""
import hashlib
import re


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def named(manifest):
    """The weights and pieces that a manifest names."""
    return list(dict.fromkeys(manifest.parent / name for name in re.findall(r'"([^"]+\.(?:safetensors|model))"', manifest.read_text(encoding="utf-8"))))


def hashes(*files):
    """Prints name and SHA-256 of files; of manifests, and of the weights and pieces that they name."""
    for file in files:
        for each in [file, *(named(file) if file.suffix == ".toml" else [])]:
            print(f"{each} sha256 {digest(each)}")
