#!/usr/bin/env python3
"""Builds octet's wheel with pip and scikit-build-core, installs it into a fresh virtual environment, and trains with it:
check_wheel.py OCTET SOURCE. The program is taken as it is (OCTET_PREBUILT), so nothing is compiled.

Exits with 77 where pip or scikit-build-core is absent.
"""
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import zipfile

from check_install import check_libraries, check_runs, expect, run


def check_options(source):
    """CMake ignores an option that it does not know, so that one in pyproject.toml would have no effect."""
    text = (source / "pyproject.toml").read_text()
    section = text.partition("[tool.scikit-build.cmake.define]\n")[2].partition("\n[")[0]
    wanted = re.findall(r"^(\w+) *=", section, re.MULTILINE)
    expect(len(wanted) >= 3, f"pyproject.toml defines {wanted}")
    files = [source / "CMakeLists.txt", *sorted((source / "cmake").glob("*.cmake"))]
    known = set(re.findall(r"^\s*option\((\w+)", "".join(file.read_text() for file in files), re.MULTILINE))
    for name in wanted:
        expect(name in known, f"pyproject.toml sets {name}, which is no option of CMakeLists.txt or cmake/")


def main():
    octet, source = sys.argv[1], sys.argv[2]
    check_options(pathlib.Path(source))
    for package in ("pip", "scikit_build_core"):
        if importlib.util.find_spec(package) is None:
            print(f"skipped: the Python package {package} is not installed")
            return 77
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary).resolve()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        run(*pip, "wheel", source, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", work,
            "--config-settings", f"cmake.define.OCTET_PREBUILT={octet}",
            "--config-settings", f"build-dir={work / 'build'}")  # fmt: skip
        (wheel,) = work.glob("*.whl")
        version = run(octet, "--version").split()[1]
        expect(wheel.name.startswith(f"octet-{version}-py3-none-linux_"), f"the wheel is {wheel.name}")
        with zipfile.ZipFile(wheel) as held:
            names = held.namelist()
        data = f"octet-{version}.data"
        for name in ("scripts/octet", "data/share/man/man1/octet.1", "data/share/bash-completion/completions/octet"):
            expect(f"{data}/{name}" in names, f"{name} is missing in the wheel")
        expect(any(name.startswith(f"{data}/data/lib/octet/libyaml-cpp") for name in names), "yaml-cpp is missing")
        for path in sorted((pathlib.Path(source) / "python/octet").iterdir()):
            expect(path.name == "__pycache__" or f"octet/{path.name}" in names, f"octet/{path.name} is missing")

        run(sys.executable, "-m", "venv", "--without-pip", work / "venv")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        python = work / "venv/bin/python"
        # pip itself may be on PYTHONPATH only.
        run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, env=clean)
        program = work / "venv/bin/octet"
        expect(program.read_bytes()[:4] == b"\x7fELF", "bin/octet is not the program itself")
        check_libraries(program, work / "venv")
        expect(check_runs(program, work / "run") == version, "another version")
        # The package finds the program next to Python, although it is not on the PATH.
        plan = "import octet; print(octet._program.find_program(), octet.plan(device='cpu').fits)"
        found = run(python, "-c", plan, env={"PATH": "/usr/bin:/bin"}, cwd=work)
        expect(found.split() == [str(program), "True"], f"the package says {found}")

        run(*pip, "--python", python, "uninstall", "--quiet", "--yes", "octet", env=clean)
        left = [program, work / "venv/lib/octet", *(work / "venv/lib").glob("python*/site-packages/octet")]
        expect(not any(path.exists() for path in left), "uninstalling leaves files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
