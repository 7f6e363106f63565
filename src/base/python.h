#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// The Python that octet starts: OCTET_PYTHON, or python3 on the PATH.
std::string python_program();

// The environment for it, as "NAME=VALUE". The current folder may hold files of others (a downloaded model, a shared data
// set), so Python must never import from there: relative places, which an empty one in PYTHONPATH is too, are taken out.
// With PYTHONSAFEPATH, Python 3.11 and later do not put the current folder on the path of `-c` and `-m`; this also holds for
// the Pythons that packages start. Virtual environments, packages of the user and absolute places stay as they are.
std::vector<std::string> python_environment();
// The same of a given environment.
std::vector<std::string> python_environment(std::span<const std::string> given);

// How every script for `python3 -c` begins: Python before 3.11 has put the current folder, as "", on the path.
inline constexpr std::string_view kPythonStart =
    "import sys\nsys.path[:] = [place for place in sys.path if place]\n";

// The output of the script, at most 4 KiB; empty if Python cannot be started or ends with an error.
std::string python_answer(std::string_view script);

}  // namespace octet
