"""Packages of Debian by name, version and SHA-256, downloaded by apt and unpacked, never installed."""
import hashlib
import os
import pathlib
import re
import subprocess
import tempfile

import readers

SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
SETTINGS = '#clear Acquire::Languages;\nAcquire::Languages {"de"; "en";};\nAPT::Sandbox::User "root";\n'
INDEXES = {"packages": "*_main_binary-amd64_Packages*", "english": "*_main_i18n_Translation-en*", "german": "*_main_i18n_Translation-de*"}


class Changed(Exception):
    """The downloaded files are not those that corpus.json names."""


class Apt:
    """apt with lists of its own in a folder: the system's are neither read nor changed."""

    def __init__(self, folder):
        self.folder = folder = folder.resolve()  # apt-get download runs elsewhere
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "debs").mkdir(exist_ok=True)
        (folder / "sources.list").write_text(SOURCE, encoding="utf-8")
        (folder / "apt.conf").write_text(SETTINGS, encoding="utf-8")
        self.options = ["-c", f"{folder}/apt.conf", "-o", f"Dir::State::Lists={folder}/lists", "-o", "Dir::Etc::sourceparts=/dev/null",
                        "-o", f"Dir::Etc::sourcelist={folder}/sources.list"]

    def update(self):
        subprocess.run(["apt-get", "update", "-q", *self.options], check=True)

    def index(self, name):
        """The text of one of INDEXES."""
        files = [f for f in (self.folder / "lists").glob(INDEXES[name]) if f.is_file()]
        if len(files) != 1:
            raise Changed(f"{self.folder}/lists has {len(files)} files {INDEXES[name]}, not one: run with --update")
        return subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", str(files[0])], check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")

    def deb(self, name, version):
        """Its file, downloaded unless it is there."""
        file = self.folder / "debs" / f"{name}_{version.replace(':', '%3a')}.deb"
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=file.parent) as empty:
                done = subprocess.run(["apt-get", "download", "-q", *self.options, f"{name}={version}"], cwd=empty, check=False,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                made = list(pathlib.Path(empty).iterdir())
                if done.returncode or len(made) != 1:
                    raise Changed(f"{name} {version} cannot be had from the mirror ({done.stderr.strip()}): an old version may be on snapshot.debian.org; "
                                  f"put it there as {file}")
                os.replace(made[0], file)
        return file


def digest(data):
    return hashlib.sha256(data).hexdigest()


def unpacked(file, folder):
    """The package's text files, once: a folder of folder for each version."""
    root, part = folder / file.stem, folder / f"{file.stem}.part"
    if not root.exists():
        part.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", str(file), str(part)], check=True)
        os.replace(part, root)
    return root


def licences(root, package):
    """Names of licences in its copyright file, of prose those that it names in /usr/share/common-licenses; empty where there is none."""
    file = pathlib.Path(root) / "usr/share/doc" / package / "copyright"
    if not file.is_file():
        return []
    text = readers.text_of(file)
    pattern = r"^License:[ \t]*(\S[^\n]*)" if text.lstrip().startswith("Format") else r"common-licenses/([\w.-]*\w)"
    return sorted({name.strip() for name in re.findall(pattern, text, re.M)})
