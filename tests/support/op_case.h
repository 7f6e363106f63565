#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "ops/device.h"

namespace octet::test {

// One case of one op: its inputs, how to run it on any backend, and what a plain double-precision program
// says. The table of all cases drives finite differences, thread-count independence, backend comparison and timing.

// Values are double, exact in the tensor's dtype, and made when asked for: listing the table costs nothing.
using Fill = std::function<std::vector<double>()>;

struct Value {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  Fill fill;
  bool differentiable = false;
  bool accumulates = false;           // backward adds to the gradient instead of setting it
  DType gradient_dtype = DType::F32;  // usually dtype
};

struct Output {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  bool upstream = true;  // takes part in the loss that is differentiated
};

// What a runner gets: device tensors in the order of OpCase::inputs and OpCase::outputs.
struct Args {
  std::vector<Tensor> in, out;
  std::vector<Tensor> upstream;  // d loss / d out
  std::vector<Tensor> grad;      // d loss / d in, absent where not differentiable
};

using Arrays = std::vector<std::vector<double>>;

struct OpCase {
  std::string name;
  std::vector<Value> inputs;
  std::vector<Output> outputs;
  std::function<void(Device&, Args&)> forward;
  std::function<void(Device&, Args&)> backward;       // absent where there is none; runs after forward
  std::function<Arrays(const Arrays& in)> reference;  // outputs
  std::optional<double> upstream_value;               // instead of random weights in the loss
  WorkspaceNeeds needs;                               // without gemms
  std::vector<WorkspaceNeeds::Gemm> gemms;
  DType dtype = DType::F32;
  bool large = false;  // for threads and timing: too large for finite differences
  double flops = 0;    // of forward, for timing

  int add_input(std::string name, DType dtype, Shape shape, Fill fill);
  int add_gradient_input(std::string name, DType dtype, Shape shape, Fill fill, bool accumulates);
  Arrays input_data() const;
  int add_output(std::string name, DType dtype, Shape shape, bool upstream = true);
};

// Outputs and gradients of a case as they come from a backend: exact values and raw bytes.
struct OpResult {
  Arrays outputs, gradients;
  std::vector<std::vector<uint8_t>> output_bytes, gradient_bytes;
};

// Memory of a backend with a case's tensors in it, for running it once or many times.
class OpRun {
 public:
  OpRun(Device& device, const OpCase& op_case, uint64_t seed = 1);

  void forward() { op_case_.forward(device_, args_); }
  void backward() {
    if (op_case_.backward) op_case_.backward(device_, args_);
  }
  OpResult result();
  // The weights of the outputs in the loss, and what gradients that accumulate held before.
  const Arrays& upstream() const { return upstream_; }
  const Arrays& initial_gradients() const { return initial_; }

 private:
  Tensor upload(DType dtype, const Shape& shape, const std::vector<double>& data);

  Device& device_;
  const OpCase& op_case_;
  Args args_;
  Arrays upstream_, initial_;
  std::vector<std::shared_ptr<void>> memory_;
};

double round_to(DType dtype, double x);
// Normal numbers, exact in dtype. Every (seed, stream) gives other ones.
std::vector<double> random_values(int64_t count, DType dtype, uint64_t seed, double scale = 1.0,
                                  double offset = 0.0);
std::vector<double> to_doubles(DType dtype, const std::vector<uint8_t>& bytes);

// ||a - b|| / ||b||, and infinite when a holds something not finite.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

inline void PrintTo(const OpCase& op_case, std::ostream* out) {
  *out << op_case.name;
}

// Every case; those named "large" are for threads and timing.
std::vector<OpCase> op_table();

}  // namespace octet::test
