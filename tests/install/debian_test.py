"""The Debian packages in a clean Debian 12: installed by apt, used, built with, removed without a trace.

    debian_test.py FOLDER_OF_PACKAGES    (a wheel there is tried as well)

Needs root, debootstrap, overlayfs and a mirror of Debian; ends with 77 where one is missing.  The system of debootstrap and what
apt downloads stay in ~/.cache/attnkit.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "attnkit"
MIRROR = os.environ.get("ATTNKIT_DEBIAN_MIRROR", "http://deb.debian.org/debian")
NAMES = ["libattnkit1", "libattnkit-dev", "attnkit-plugins", "attnkit"]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def clean_system():
    base = CACHE / "debian-12"
    if not (base / "usr/bin/apt-get").exists():
        if not shutil.which("debootstrap"):
            skip("no debootstrap")
        made = base.with_name("debian-12.new")
        shutil.rmtree(made, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["debootstrap", "--variant=minbase", "bookworm", made, MIRROR]).returncode != 0:
            skip(f"debootstrap of {MIRROR} failed")
        made.rename(base)
    return base


class System:
    """A copy of the clean system, by an overlay that only this process and its children see."""

    def __init__(self, folder):
        self.root = folder / "root"
        downloads = CACHE / "apt"
        for made in (self.root, folder / "upper", folder / "work", downloads / "partial"):
            made.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={clean_system()},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root]).returncode != 0:
            skip("no overlay can be mounted here")
        for what, where in (("/proc", "proc"), ("/dev", "dev"), (downloads, "var/cache/apt/archives")):
            subprocess.run(["mount", "--rbind", what, self.root / where], check=True)
        if pathlib.Path("/etc/resolv.conf").exists():
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def run(self, script):
        """What the lines print; they must succeed."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        environment |= {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
        done = subprocess.run(["chroot", self.root, "bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"{script}: status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def install(self, *packages):
        self.run(f"apt-get install -y -qq --no-install-recommends {' '.join(packages)}")


def check(what, ok, found=""):
    print(f"{'ok' if ok else 'FAILED'}: {what} {found}")
    if not ok:
        sys.exit(1)


def sections():
    """The lines of docs/using.md by heading; those before the first are everyone's."""
    first, *rest = (SOURCE / "docs/using.md").read_text().split("\n## ")
    code = ["".join(re.findall(r"(?ms)^```sh\n(.*?)^```$", text)) for text in (first, *rest)]
    return {text.split("\n")[0]: code[0] + own for text, own in zip(rest, code[1:])}


def try_packages(system, packages):
    (system.root / "packages").mkdir()
    for file in packages:
        shutil.copy(file, system.root / "packages")
    system.run("apt-get update -qq")
    installed = system.run("dpkg-query -f '${Package}\\n' -W").split()
    system.install("/packages/*.deb")
    added = sorted(set(system.run("dpkg-query -f '${Package}\\n' -W").split()) - set(installed))
    check("apt installs the packages, and with them", set(NAMES) <= set(added), ", ".join(added))
    doctor = system.run("attnkit doctor --json")
    check("attnkit doctor finds plugins and skips none", '"skipped":[]' in doctor.replace(" ", "") and "/usr/lib" in doctor)
    tools = {"C": "gcc libc6-dev", "C++": "g++", "CMake": "cmake make", "Python": "python3", "Go": "golang-go", "Rust": "cargo"}
    system.install("pkg-config", *tools.values())
    if (system.root / "usr/lib/libattnkit.a").exists():
        system.install("libfmt-dev libtbb-dev libssl-dev libpcre2-dev libutf8proc-dev libyaml-cpp-dev zlib1g-dev")
    for language, lines in sections().items():
        if "dlopen" in language and not (system.root / "usr/lib/libattnkit.a").exists():
            print(f"skipped: {language}: the packages are built without ATTNKIT_STATIC")
            continue
        out = system.run(f"mkdir -p '/home/{language}' && cd '/home/{language}' && export PREFIX=/usr && {lines}").splitlines()
        check(f"{language}: the lines of docs/using.md", out[0] == "halb vier" and "zweihunderteinundvierzig Euro" in out)
    system.run(f"apt-get purge -y -qq {' '.join(NAMES)}")
    left = system.run("find / -xdev ! -path '/home*' ! -path '/packages*' ! -path '/proc*' ! -path '/tmp*' -iname '*attnkit*'")
    check("nothing is left after apt-get purge", left == "", left)
    check("nor in the loader's cache", "attnkit" not in system.run("ldconfig -p"))


def try_wheel(system, wheel):
    system.run("apt-get update -qq")
    system.install("python3-venv")
    shutil.copy(wheel, system.root / "tmp")
    system.run(f"python3 -m venv /venv && /venv/bin/pip install --no-index --quiet /tmp/{wheel.name}")
    doctor = system.run("/venv/bin/attnkit doctor --json")
    check("the wheel needs nothing of the system but Python", '"skipped":[]' in doctor.replace(" ", ""))
    system.run("/venv/bin/python -c 'import attnkit; attnkit.Runtime().close()'")


def main():
    folder = pathlib.Path(sys.argv[1])
    tests = [(try_wheel, wheel) for wheel in folder.glob("*.whl")] + [(try_packages, list(folder.glob("*.deb")))]
    for test, what in tests:
        with tempfile.TemporaryDirectory(prefix="attnkit-debian-") as made:
            try:
                test(System(pathlib.Path(made)), what)
            finally:
                subprocess.run(["umount", "-R", "-l", f"{made}/root"], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("installing packages needs root")
    if os.environ.get("ATTNKIT_UNSHARED") != "1":  # mounts of its own
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv], os.environ | {"ATTNKIT_UNSHARED": "1"})
    main()
