#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "ops/device.h"
#include "support/tolerance.h"

namespace octet::test {

// One case of one op: its inputs, how to run it on any device, and what a plain double-precision program says. The table
// of all cases drives finite differences, thread-count independence, comparison of devices and timing.

// The first values of an input, at most so many: double, exact in the tensor's dtype. Made when asked for: listing the
// table costs nothing.
using Fill = std::function<std::vector<double>(int64_t most)>;

struct Value {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  Fill fill;
  bool differentiable = false;
  bool accumulates = false;           // backward adds to the gradient instead of setting it
  DType gradient_dtype = DType::F32;  // usually dtype
};

// How an output is compared between two devices.
enum class Compare {
  Near,   // within the tolerance of the case
  Exact,  // bit for bit
  Own,    // not: it follows from results that are near; see OpCase::equal
};

struct Output {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  bool upstream = true;  // takes part in the loss that is differentiated
  Compare compare = Compare::Near;
};

// What a runner gets: device tensors in the order of OpCase::inputs and OpCase::outputs.
struct Args {
  std::vector<Tensor> in, out;
  std::vector<Tensor> upstream;  // d loss / d out
  std::vector<Tensor> grad;      // d loss / d in, absent where not differentiable
};

using Arrays = std::vector<std::vector<double>>;

struct OpCase {
  using Run = std::function<void(Device&, Args&)>;

  std::string name;
  std::vector<Value> inputs;
  std::vector<Output> outputs;
  Run prepare;           // before forward: outputs that an op adds to or works on in place
  Run forward;           // the op alone
  Run prepare_backward;  // likewise
  Run backward;          // absent where there is none; runs after forward
  // The same result by other ops, into other outputs: the pairs of `equal` must have the same bits on every device.
  Run separate;
  std::vector<std::pair<int, int>> equal;
  std::function<Arrays(const Arrays& in)> reference;  // outputs; absent where bits are compared
  std::optional<double> upstream_value;               // instead of random weights in the loss
  WorkspaceNeeds needs;                               // without gemms
  std::vector<WorkspaceNeeds::Gemm> gemms;
  DType dtype = DType::F32;
  std::optional<Tolerance> tolerance;  // between devices; absent: that of dtype
  bool large = false;                  // for threads and timing: too large for finite differences
  // For timing: of forward and of backward. Bytes are the fewest that must be read and written.
  double flops = 0, bytes = 0, backward_flops = 0, backward_bytes = 0;

  int add_input(std::string name, DType dtype, Shape shape, Fill fill);
  int add_gradient_input(std::string name, DType dtype, Shape shape, Fill fill, bool accumulates);
  Arrays input_data() const;
  int add_output(std::string name, DType dtype, Shape shape, bool upstream = true);
  int add_output(std::string name, DType dtype, Shape shape, Compare compare);
};

// Outputs and gradients of a case as they come from a device: exact values and raw bytes.
struct OpResult {
  Arrays outputs, gradients;
  std::vector<std::vector<uint8_t>> output_bytes, gradient_bytes;
};

// Empty, or what is wrong with the results of a device: against those of the reference device, and within themselves.
std::string mismatch(const OpCase& op_case, const OpResult& got, const OpResult& expected);

// What tensors hold before a case runs.
enum class Content {
  Checked,  // every value of the inputs, and NaN in what an op is to write
  Timed,    // a million values over and over: as good for timing, and quick to make
};

// Memory of a device with a case's tensors in it, for running it once or many times.
class OpRun {
 public:
  OpRun(Device& device, const OpCase& op_case, uint64_t seed = 1, Content content = Content::Checked);

  // Both parts of a pass, and its other form where there is one.
  void forward();
  void backward();
  // For timing: each part by itself.
  void call(const OpCase::Run& part) {
    if (part) part(device_, args_);
  }
  OpResult result();
  // The weights of the outputs in the loss, and what gradients that accumulate held before.
  const Arrays& upstream() const { return upstream_; }
  const Arrays& initial_gradients() const { return initial_; }

 private:
  Tensor allocate(DType dtype, const Shape& shape);
  Tensor upload(DType dtype, const Shape& shape, const std::vector<double>& data);
  void add_input(const Value& input, uint64_t seed);
  void add_output(const Output& output, uint64_t seed);

  Device& device_;
  const OpCase& op_case_;
  Content content_;
  Args args_;
  Arrays upstream_, initial_;
  std::vector<std::shared_ptr<void>> memory_;
};

double round_to(DType dtype, double x);
// Normal numbers, exact in dtype. Every (seed, stream) gives other ones.
std::vector<double> random_values(int64_t count, DType dtype, uint64_t seed, double scale = 1.0,
                                  double offset = 0.0);
std::vector<double> to_doubles(DType dtype, const std::vector<uint8_t>& bytes);

inline void PrintTo(const OpCase& op_case, std::ostream* out) {
  *out << op_case.name;
}

// Every case, small enough to be compared; those named "large" are for threads.
std::vector<OpCase> op_table();
// The same ops at the sizes of real models, for timing.
std::vector<OpCase> model_op_table();

}  // namespace octet::test
