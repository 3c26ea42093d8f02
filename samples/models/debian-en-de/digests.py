"""SHA-256 of the files that a result is of: the scripts that measure print them before their tables."""
import hashlib
import re


def hashes(*files):
    """Prints name and SHA-256 of files; of manifests, and of the weights and pieces that they name."""
    for file in files:
        named = re.findall(r'"([^"]+\.(?:safetensors|model))"', file.read_text(encoding="utf-8")) if file.suffix == ".toml" else []
        for each in dict.fromkeys([file, *(file.parent / name for name in named)]):
            print(f"{each} sha256 {hashlib.sha256(each.read_bytes()).hexdigest()}")
