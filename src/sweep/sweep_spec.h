#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/keys.h"
#include "sweep/distributions.h"
#include "sweep/sweep_metric.h"

namespace octet {

enum class SweepMethod { Grid, Random, Bayes };
std::string_view to_string(SweepMethod method);

// A key of 'octet train' that the sweep sets.
struct SweepParameter {
  std::string name;   // as the file has it: a key or an alias
  std::string key;    // the key's own name
  std::string place;  // "learning_rate in sweep.yaml:7"
  Distribution distribution;
};

struct Hyperband {
  std::vector<int64_t> rungs;  // rising: numbers of logged values after which a run is judged
  double eta = 3;
  bool strict = false;
};

// A sweep file of W&B.
struct SweepSpec {
  std::string file;
  std::string name;  // of the sweep; "": none
  SweepMethod method = SweepMethod::Grid;
  std::optional<SweepMetric> metric;
  std::vector<SweepParameter> parameters;  // in the order of the file
  std::optional<int64_t> run_cap;
  std::optional<Hyperband> hyperband;
  // Where the runs start from: of the key `config`, or of a `command` that calls octet train.
  std::string base_config;
  std::vector<std::string> base_flags;
  std::vector<std::string> notes, warnings;  // what was done with the file's other keys

  // All combinations of a grid; none for other methods.
  std::optional<int64_t> grid_size() const;
  // Everything that decides the parameters of the runs, as text: two sweeps with the same text are the same sweep.
  std::string identity() const;
};

// Whether the file looks like a sweep: it has `parameters` and a method. False if it cannot be read.
bool is_sweep_file(const std::string& path);

// ConfigError with all faults, each with file and line: unknown keys and distributions, limits in the wrong order, a grid
// with endless parameters, values that `octet train` would refuse, ...
SweepSpec read_sweep_file(const std::string& path);
SweepSpec parse_sweep(const std::string& text, const std::string& file_name);

}  // namespace octet
