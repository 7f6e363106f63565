// Times the cases of the op table (tests/support/op_table.cpp) at the shapes of real models: TB/s of the elementwise
// ops and TFLOP/s of products and attention. Bytes are the fewest that an op must move.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>

#include "support/op_case.h"

using namespace octet;

namespace {

constexpr const char* kHelp =
    "Usage: cuda_ops_bench [--once] [--only TEXT]\n\n"
    "Times single ops at the shapes of real models, and prints TB/s or TFLOP/s of each.\n"
    "  --only TEXT  only the ops whose name contains TEXT, such as adamw or gemm_fp8\n"
    "  --once       run every op a single time and print no figures, for a profiler of kernels\n"
    "  -h, --help   print this\n"
    "It needs a GPU.\n";

struct Options {
  bool once = false;
  std::string only;
};

double elapsed(Device& device, const std::function<void()>& work) {
  device.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  work();
  device.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Short ops are timed many at once and as a recording, so that the host's time to queue them does not count.
double seconds(Device& device, const std::string& name, const std::function<void()>& run) {
  constexpr double kSample = 2e-3;
  run();
  const double first = elapsed(device, run);
  const int repetitions = std::clamp(static_cast<int>(kSample / first), 10, 200);
  const auto sample = [&] {
    device.repeat(name, [&] {
      for (int i = 0; i < repetitions; ++i) run();
    });
  };
  for (int i = 0; i < 3; ++i) sample();
  double best = 1e30;
  for (int i = 0; i < 5; ++i) best = std::min(best, elapsed(device, sample) / repetitions);
  return best;
}

// One pass of a case. `prepare` is not timed: it fills what the op adds to or works on in place.
void measure(Device& device, test::OpRun& run, const std::string& name, const test::OpCase::Run& prepare,
             const test::OpCase::Run& pass, double flops, double bytes, const Options& options) {
  run.call(prepare);
  if (options.once) {
    run.call(pass);
    device.synchronize();
    return;
  }
  const double time = seconds(device, name, [&] { run.call(pass); });
  const std::string rate = flops > 0   ? fmt::format("{:7.0f} TFLOP/s", flops / time / 1e12)
                           : bytes > 0 ? fmt::format("{:7.2f} TB/s", bytes / time / 1e12)
                                       : "";
  fmt::print("{:72} {:9.1f} us {}\n", name, time * 1e6, rate);
}

void run_all(const Options& options) {
  const auto device = make_cuda_device({});
  for (const test::OpCase& op : test::model_op_table()) {
    if (op.name.find(options.only) == std::string::npos) continue;
    test::OpRun run(*device, op, 1, test::Content::Timed);
    measure(*device, run, op.name, op.prepare, op.forward, op.flops, op.bytes, options);
    if (!op.backward) continue;
    measure(*device, run, op.name + " backward", op.prepare_backward, op.backward, op.backward_flops,
            op.backward_bytes, options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "-h" || argument == "--help") {
      fmt::print("{}", kHelp);
      return 0;
    }
    if (argument == "--once") {
      options.once = true;
    } else if (argument == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      fmt::print(stderr, "error: cuda_ops_bench does not know {}; see --help\n", argument);
      return 2;
    }
  }
  try {
    run_all(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
