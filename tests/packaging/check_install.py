#!/usr/bin/env python3
"""Installs a built octet and packs it, and checks that the result works elsewhere: check_install.py OCTET SOURCE.

The program is taken as it is (OCTET_PREBUILT), so nothing is compiled.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

# What the package may take from the machine: see cmake/install_extras.cmake.
FROM_MACHINE = re.compile(
    r"^(ld-linux.*|linux-vdso.*|lib(c|m|dl|pthread|rt|resolv|util|gcc_s|stdc\+\+)\.so\..*|libnvidia-.*|libcuda\.so.*)$"
)
FILES = [
    "bin/octet",
    "share/man/man1/octet.1",
    "share/bash-completion/completions/octet",
    "share/zsh/site-functions/_octet",
    "share/fish/vendor_completions.d/octet.fish",
    "share/octet/configs",
]
# Nothing of this shell may help the program: no library path, no Python.
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def run(*words, **options):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(f"check_install: {words} failed with {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(condition, what):
    if not condition:
        raise SystemExit(f"check_install: {what}")


def check_libraries(program, folder):
    """Every library comes from the package, or is one that every machine has."""
    bundled = 0
    for line in run("ldd", program, env=BARE).splitlines():
        name, _, place = line.strip().partition(" => ")
        name = pathlib.Path(name.split(" (")[0]).name
        place = place.split(" (")[0]
        if place.startswith(str(folder)):
            bundled += 1
        else:
            expect(FROM_MACHINE.match(name), f"{name} is taken from {place or 'nowhere'}")
    expect(bundled > 3, f"only {bundled} libraries are in the package")


def check_runs(program, scratch):
    version = run(program, "--version", env=BARE).strip()
    expect(re.fullmatch(r"octet \d+\.\d+\.\d+", version), version)
    words = ["train", "--max_steps", 2, "--eval_strategy", "no", "--sample_steps", 0, "--num_threads", 1]
    scratch.mkdir()
    run(program, *words, "--device", "cpu", "--run_name", "a", cwd=scratch, env=BARE)
    expect(len((scratch / "runs/a/metrics.jsonl").read_text().splitlines()) >= 1, "the run has no metrics")
    return version.split()[1]


def main():
    octet, source = sys.argv[1], sys.argv[2]
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary).resolve()
        build = work / "build"
        run("cmake", "-S", source, "-B", build, f"-DOCTET_PREBUILT={octet}", "-DOCTET_BUNDLE=ON")
        archive = pathlib.Path(run(f"{source}/scripts/make_package", build, work / "out").splitlines()[-1])
        with tarfile.open(archive) as packed:
            packed.extractall(work / "first")
        (folder,) = (work / "first").iterdir()
        expect(archive.name == folder.name + ".tar.gz", f"{archive.name} holds {folder.name}")
        # It works where it is unpacked, and after a move to a name with a space.
        moved = work / "a new place"
        folder.rename(moved)
        for name in FILES:
            expect((moved / name).exists(), f"{name} is missing in the package")
        check_libraries(moved / "bin/octet", moved)
        if shutil.which("dpkg-query"):
            licences = list((moved / "share/doc/octet/licences").glob("*.txt"))
            expect(any("yaml-cpp" in file.name for file in licences), f"licence texts: {licences}")
        version = check_runs(moved / "bin/octet", work / "run")
        expect(folder.name == f"octet-{version}-linux-{os.uname().machine}", folder.name)

        # As a packager does it. Without bundled libraries: those of the system's packages are used.
        run("cmake", "-S", source, "-B", build, "-DOCTET_BUNDLE=OFF")
        run("cmake", "--install", build, "--prefix", "/usr", env=dict(os.environ, DESTDIR=str(work / "root")))
        for name in FILES:
            expect((work / "root/usr" / name).exists(), f"{name} is missing below DESTDIR")
        expect(not (work / "root/usr/lib").exists(), "libraries are installed though nobody asked for them")
        page = run(octet, "man")
        expect((work / "root/usr/share/man/man1/octet.1").read_text() == page, "the manual page differs")


if __name__ == "__main__":
    main()
