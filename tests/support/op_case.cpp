#include "support/op_case.h"

#include <cmath>
#include <cstring>

#include "base/philox.h"

namespace octet::test {

int OpCase::add_input(std::string value_name, DType value_dtype, Shape shape, Fill fill) {
  inputs.push_back({std::move(value_name), value_dtype, shape, std::move(fill)});
  return static_cast<int>(inputs.size()) - 1;
}

int OpCase::add_gradient_input(std::string value_name, DType value_dtype, Shape shape, Fill fill,
                               bool accumulates) {
  inputs.push_back(
      {std::move(value_name), value_dtype, shape, std::move(fill), true, accumulates, value_dtype});
  return static_cast<int>(inputs.size()) - 1;
}

int OpCase::add_output(std::string value_name, DType value_dtype, Shape shape, bool takes_part) {
  outputs.push_back({std::move(value_name), value_dtype, shape, takes_part});
  return static_cast<int>(outputs.size()) - 1;
}

Arrays OpCase::input_data() const {
  Arrays result;
  for (const Value& input : inputs) result.push_back(input.fill());
  return result;
}

double round_to(DType dtype, double x) {
  const auto single = static_cast<float>(x);
  return static_cast<double>(dtype == DType::BF16 ? round_to_bf16(single) : single);
}

std::vector<double> random_values(int64_t count, DType dtype, uint64_t seed, double scale, double offset) {
  const Philox random(seed, 77);
  std::vector<double> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = round_to(dtype, offset + scale * static_cast<double>(random.normal(i)));
  }
  return result;
}

std::vector<double> to_doubles(DType dtype, const std::vector<uint8_t>& bytes) {
  std::vector<double> result(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < result.size(); ++i) {
    const uint8_t* place = bytes.data() + i * size_of(dtype);
    if (dtype == DType::F32) {
      float x;
      std::memcpy(&x, place, 4);
      result[i] = static_cast<double>(x);
    } else if (dtype == DType::BF16) {
      Bf16 x;
      std::memcpy(&x, place, 2);
      result[i] = static_cast<double>(to_float(x));
    } else if (dtype == DType::I32) {
      int32_t x;
      std::memcpy(&x, place, 4);
      result[i] = x;
    } else if (dtype == DType::U16) {
      uint16_t x;
      std::memcpy(&x, place, 2);
      result[i] = x;
    } else {
      result[i] = *place;
    }
  }
  return result;
}

namespace {

std::vector<uint8_t> to_bytes(DType dtype, const std::vector<double>& data) {
  std::vector<uint8_t> bytes(data.size() * size_of(dtype));
  for (size_t i = 0; i < data.size(); ++i) {
    uint8_t* place = bytes.data() + i * size_of(dtype);
    if (dtype == DType::F32) {
      const auto x = static_cast<float>(data[i]);
      std::memcpy(place, &x, 4);
    } else if (dtype == DType::BF16) {
      const Bf16 x = to_bf16(static_cast<float>(data[i]));
      std::memcpy(place, &x, 2);
    } else if (dtype == DType::I32) {
      const auto x = static_cast<int32_t>(data[i]);
      std::memcpy(place, &x, 4);
    } else if (dtype == DType::U16) {
      const auto x = static_cast<uint16_t>(data[i]);
      std::memcpy(place, &x, 2);
    } else {
      *place = static_cast<uint8_t>(data[i]);
    }
  }
  return bytes;
}

std::vector<uint8_t> download(Device& device, const Tensor& x) {
  std::vector<uint8_t> bytes(x ? static_cast<size_t>(x.bytes()) : 0);
  if (x) device.copy_to_host(bytes.data(), x);
  return bytes;
}

}  // namespace

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return std::isfinite(difference) && size > 0 ? std::sqrt(difference / size) : INFINITY;
}

Tensor OpRun::upload(DType dtype, const Shape& shape, const std::vector<double>& data) {
  Tensor result{nullptr, dtype, shape};
  memory_.push_back(device_.allocate(result.bytes()));
  result.data = memory_.back().get();
  device_.copy_to_device(result, to_bytes(dtype, data).data());
  return result;
}

OpRun::OpRun(Device& device, const OpCase& op_case, uint64_t seed) : device_(device), op_case_(op_case) {
  const auto count = [](const Shape& shape) { return static_cast<size_t>(shape.numel()); };
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const Value& input = op_case.inputs[i];
    args_.in.push_back(upload(input.dtype, input.shape, input.fill()));
    std::vector<double> initial;
    Tensor gradient;
    if (input.differentiable) {
      // Where nothing is added to, NaN shows what an op forgets to write.
      initial = input.accumulates
                    ? random_values(input.shape.numel(), input.gradient_dtype, seed + 100 + i, 0.1)
                    : std::vector<double>(count(input.shape), NAN);
      gradient = upload(input.gradient_dtype, input.shape, initial);
    }
    args_.grad.push_back(gradient);
    initial_.push_back(std::move(initial));
  }
  for (size_t i = 0; i < op_case.outputs.size(); ++i) {
    const Output& output = op_case.outputs[i];
    args_.out.push_back(upload(output.dtype, output.shape, std::vector<double>(count(output.shape), NAN)));
    std::vector<double> weights;
    Tensor upstream;
    if (output.upstream) {
      weights = op_case.upstream_value ? std::vector<double>(count(output.shape), *op_case.upstream_value)
                                       : random_values(output.shape.numel(), output.dtype, seed + 200 + i);
      upstream = upload(output.dtype, output.shape, weights);
    }
    args_.upstream.push_back(upstream);
    upstream_.push_back(std::move(weights));
  }
  WorkspaceNeeds needs = op_case.needs;
  needs.gemms = op_case.gemms;
  needs.dtype = op_case.dtype;
  Tensor workspace{nullptr, DType::U8, {device.workspace_bytes(needs)}};
  memory_.push_back(device.allocate(workspace.bytes()));
  workspace.data = memory_.back().get();
  device.ops().set_workspace(workspace);
}

OpResult OpRun::result() {
  device_.synchronize();
  OpResult result;
  for (const Tensor& x : args_.out) {
    result.output_bytes.push_back(download(device_, x));
    result.outputs.push_back(to_doubles(x.dtype, result.output_bytes.back()));
  }
  for (const Tensor& x : args_.grad) {
    result.gradient_bytes.push_back(download(device_, x));
    result.gradients.push_back(to_doubles(x.dtype, result.gradient_bytes.back()));
  }
  return result;
}

}  // namespace octet::test
