"""Every form of package in a clean Debian 12: Debian's, the wheel, the archive and the source, each used and taken away again.

    debian_test.py FOLDER_OF_PACKAGES [wheel] [archive] [source] [debian]    without a form: all

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
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "attnkit"
MIRROR = os.environ.get("ATTNKIT_DEBIAN_MIRROR", "http://deb.debian.org/debian")
TRANSLATION = "zweihunderteinundvierzig Euro"
TOOLS = ["gcc libc6-dev", "g++", "cmake make", "python3", "golang-go", "cargo", "pkg-config"]
LANGUAGES = ["c", "cpp", "rust", "go", "python"]
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
        """The output of the lines; they must succeed."""
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


def listed(system):
    """The files of the system but for home, what was given to it, and what apt, dpkg and the loader write about packages."""
    ours = "/home /given /proc /dev /tmp /var/cache /var/log /var/lib/apt /var/lib/dpkg /etc/ld.so.cache"
    return set(system.run("find / -xdev " + " ".join(f"-path {path} -prune -o" for path in ours.split()) + " -print").splitlines())


def check_as_before(what, system, before):
    after = listed(system)
    check(f"after {what}, {len(after)} files are the {len(before)} of before", after == before, " ".join(sorted(after ^ before)[:20]))
    check("nothing of it is in the loader's cache", "attnkit" not in system.run("ldconfig -p"))


def give(system, *files):
    (system.root / "given").mkdir(exist_ok=True)
    for file in files:
        (shutil.copytree if file.is_dir() else shutil.copy)(file, system.root / "given" / file.name)


def check_translates(what, system, command):
    model = "/given/numbers-en-de/model.toml"
    out = system.run(f"{command} run {model} --text 'two hundred and forty-one euros'")
    check(f"{what} translates", out == TRANSLATION + "\n", out)


def unpack_source(system, folder):
    source, = folder.glob("attnkit-?.?.?.tar.gz")
    give(system, source)
    system.run(f"mkdir /home/source && tar -xf /given/{source.name} -C /home/source --strip-components 1")


def check_samples(what, system, variables, python, samples, *languages):
    system.run(f"{variables} {python} -B /home/source/tests/install/samples.py {samples} /home/samples {' '.join(languages)}")
    check(f"{what} runs every sample in {', '.join(languages)}", True)


def variables_of(tree):
    return (f"PATH={tree}/bin:$PATH PKG_CONFIG_PATH={tree}/lib/pkgconfig LD_LIBRARY_PATH={tree}/lib PYTHONPATH={tree}/lib/attnkit/python "
            f"CMAKE_PREFIX_PATH={tree}")


def needs(package):
    """The packages of Debian that a package of ours depends on, in Debian's words."""
    fields = subprocess.run(["dpkg-deb", "-f", package, "Depends"], check=True, capture_output=True, text=True).stdout
    return [name for name in re.findall(r"(?:^|, )([\w.+-]+)", fields.strip()) if name not in NAMES]


def try_debian(system, folder):
    packages = sorted(folder.glob("*.deb"))
    static = any("libattnkit.a" in subprocess.run(["dpkg-deb", "-c", file], check=True, capture_output=True, text=True).stdout for file in packages)
    give(system, *packages, SOURCE / "samples/models/numbers-en-de")
    system.run("apt-get update -qq")
    names, before = system.run("dpkg-query -f '${Package}\\n' -W").split(), listed(system)
    system.install("/given/*.deb")
    added = sorted(set(system.run("dpkg-query -f '${Package}\\n' -W").split()) - set(names))
    check("apt installs the packages, and with them", set(NAMES) <= set(added), ", ".join(added))
    doctor = system.run("attnkit doctor --json")
    check("attnkit doctor finds plugins and skips none", '"skipped":[]' in doctor.replace(" ", "") and "/usr/lib" in doctor)
    check_translates("the command", system, "attnkit")
    system.run("apt-get purge -y -qq --auto-remove " + " ".join(NAMES))
    check_as_before("apt-get purge", system, before)

    archives = "libfmt-dev libtbb-dev libssl-dev libpcre2-dev libutf8proc-dev libyaml-cpp-dev zlib1g-dev" if static else ""
    system.install(*TOOLS, archives, *(need for package in packages for need in needs(package)))
    before = listed(system)
    system.install("/given/*.deb")
    for language, lines in sections().items():
        if "dlopen" in language and not static:
            print(f"skipped: {language}: the packages are built without ATTNKIT_STATIC")
            continue
        out = system.run(f"mkdir -p '/home/{language}' && cd '/home/{language}' && export PREFIX=/usr && {lines}").splitlines()
        check(f"{language}: the lines of docs/using.md", out[0] == "halb vier" and TRANSLATION in out)
    unpack_source(system, folder)
    check_samples("what apt installed", system, "PYTHONPATH=/usr/lib/attnkit/python", "python3", "/usr/share/attnkit/samples", *LANGUAGES)
    system.run("PYTHONPATH=/usr/lib/attnkit/python python3 -c 'import attnkit'")  # root's Python writes beside what it imports
    system.run("apt-get purge -y -qq " + " ".join(NAMES))
    check_as_before("use and apt-get purge", system, before)


def try_wheel(system, folder):
    wheel, = folder.glob("*.whl")
    system.run("apt-get update -qq")
    system.install("python3-venv")
    give(system, wheel, SOURCE / "samples/models/numbers-en-de")
    system.run("python3 -m venv /venv && /venv/bin/pip --version")
    before = listed(system)
    system.run(f"/venv/bin/pip install --no-index --quiet /given/{wheel.name}")
    doctor = system.run("/venv/bin/attnkit doctor --json")
    check("the wheel needs nothing of the system but Python", '"skipped":[]' in doctor.replace(" ", ""))
    check_translates("the wheel's command", system, "/venv/bin/attnkit")
    out = system.run("/venv/bin/python -c 'import attnkit; print(attnkit.Model(attnkit.Runtime(), \"/given/numbers-en-de/model.toml\").translate(\"one\"))'")
    check("its package as well", out == "eins\n", out)
    system.run("/venv/bin/pip uninstall --yes --quiet attnkit")
    check_as_before("pip uninstall", system, before)

    unpack_source(system, folder)
    system.install("g++")  # of the plugin that fails in one of them
    before = listed(system)
    system.run(f"/venv/bin/pip install --no-index --quiet /given/{wheel.name}")
    check_samples("the wheel", system, "PATH=/venv/bin:$PATH", "/venv/bin/python", "/home/source/samples", "python")
    system.run("/venv/bin/pip uninstall --yes --quiet attnkit")
    check_as_before("use and pip uninstall", system, before)


def try_archive(system, folder):
    archive, = folder.glob("attnkit-*-linux-*.tar.gz")
    give(system, archive, SOURCE / "samples/models/numbers-en-de")
    system.run("apt-get update -qq")
    system.install(*(need for package in folder.glob("*.deb") for need in needs(package)))
    before = listed(system)
    system.run(f"mkdir '/opt/some where' && tar -xf /given/{archive.name} -C '/opt/some where' --strip-components 1")
    check_translates("the unpacked archive", system, "'/opt/some where/bin/attnkit'")
    check("it finds its own plugins", "/opt/some where/lib" in system.run("'/opt/some where/bin/attnkit' plugins --json"))
    system.run("rm -r '/opt/some where'")
    check_as_before("rm", system, before)

    unpack_source(system, folder)
    system.install(*TOOLS)
    before = listed(system)
    system.run(f"mkdir /opt/attnkit && tar -xf /given/{archive.name} -C /opt/attnkit --strip-components 1")
    check_samples("the unpacked archive", system, variables_of("/opt/attnkit"), "python3", "/opt/attnkit/share/attnkit/samples", *LANGUAGES)
    system.run("rm -r /opt/attnkit")
    check_as_before("use and rm", system, before)


def try_source(system, folder):
    give(system, SOURCE / "samples/models/numbers-en-de")
    named = re.search(r"(?ms)^build_packages=\((.*?)\)", (SOURCE / ".ci/setup.sh").read_text())[1]
    system.run("apt-get update -qq")
    system.install(*named.split(), "pkg-config", "python3")
    before, start = listed(system), time.monotonic()
    unpack_source(system, folder)
    # The mechanisms that these samples need, not optimised: compiling takes longer than running.
    system.run("""cd /home/source
                  cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DATTNKIT_TESTS=OFF -DATTNKIT_CUDA=OFF -DATTNKIT_PLUGINS='softmax;relu;cosformer;leap'
                  cmake --build build
                  cmake --install build --prefix /opt/attnkit""")
    check_translates(f"the source, built in {time.monotonic() - start:.0f} s,", system, "/opt/attnkit/bin/attnkit")
    check_samples("the source", system, variables_of("/opt/attnkit"), "python3", "/opt/attnkit/share/attnkit/samples", "c", "python")
    system.run("xargs -d '\\n' rm </home/source/build/install_manifest.txt && find /opt/attnkit -type d -empty -delete")
    check_as_before("an installed build and rm of its list", system, before)


def main():
    folder = pathlib.Path(sys.argv[1])
    tests = {"wheel": try_wheel, "archive": try_archive, "source": try_source, "debian": try_debian}
    for name in sys.argv[2:] or tests:
        with tempfile.TemporaryDirectory(prefix="attnkit-debian-") as made:
            try:
                tests[name](System(pathlib.Path(made)), folder)
            finally:
                subprocess.run(["umount", "-R", "-l", f"{made}/root"], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("installing packages needs root")
    if os.environ.get("ATTNKIT_UNSHARED") != "1":  # mounts of its own
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv], os.environ | {"ATTNKIT_UNSHARED": "1"})
    main()
