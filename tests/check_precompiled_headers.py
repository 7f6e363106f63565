#!/usr/bin/env python3
"""Checks that all files with the same precompiled headers are compiled with the same flags as these.

    check_precompiled_headers.py BUILD_FOLDER

Compilers refuse the headers otherwise, but which flags they compare differs from processor to processor.
"""
import json
import pathlib
import shlex
import sys


def flags_and_headers(command):
    words = shlex.split(command)
    headers = [word for word in words if word.endswith("cmake_pch.hxx")]
    return [word for word in words if word.startswith(("-O", "-f", "-m", "-std=", "-g"))], headers


def main():
    commands = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
    flags_of, wrong, users = {}, [], 0
    for entry in commands:
        if not entry["file"].endswith("cmake_pch.hxx.cxx"):
            continue
        flags_of[entry["file"].removesuffix(".cxx")] = flags_and_headers(entry["command"])[0]
    for entry in commands:
        flags, headers = flags_and_headers(entry["command"])
        if entry["file"].endswith("cmake_pch.hxx.cxx"):
            continue
        for name in headers:
            users += 1
            if name not in flags_of:
                wrong.append(f"{entry['file']}: {name} is not made by this build")
            elif flags != flags_of[name]:
                wrong.append(f"{entry['file']}: {' '.join(flags)}; its precompiled headers: {' '.join(flags_of[name])}")
    print(*wrong[:10], f"{users} files with precompiled headers, {len(wrong)} of them with other flags", sep="\n")
    # The test programs always have them.
    return 1 if wrong or users == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
