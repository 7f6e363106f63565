#include "support/op_case.h"

#include <algorithm>
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
  const Compare compare = value_dtype == DType::I32 ? Compare::Exact : Compare::Near;
  outputs.push_back({std::move(value_name), value_dtype, shape, takes_part, compare});
  return static_cast<int>(outputs.size()) - 1;
}

int OpCase::add_output(std::string value_name, DType value_dtype, Shape shape, Compare compare) {
  outputs.push_back({std::move(value_name), value_dtype, shape, false, compare});
  return static_cast<int>(outputs.size()) - 1;
}

Arrays OpCase::input_data() const {
  Arrays result;
  for (const Value& input : inputs) result.push_back(input.fill(input.shape.numel()));
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

// NaN becomes 0xA5 in every byte where a dtype has none.
std::vector<uint8_t> to_bytes(DType dtype, const std::vector<double>& data) {
  std::vector<uint8_t> bytes(data.size() * size_of(dtype), 0xA5);
  for (size_t i = 0; i < data.size(); ++i) {
    uint8_t* place = bytes.data() + i * size_of(dtype);
    if (std::isnan(data[i]) && dtype != DType::F32 && dtype != DType::BF16) continue;
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

std::string mismatch(const OpCase& op_case, const OpResult& got, const OpResult& expected) {
  const Tolerance tolerance = op_case.tolerance.value_or(tolerance_of(op_case.dtype));
  std::string wrong;
  const auto add = [&](const std::string& name, const std::string& what) {
    if (!what.empty()) wrong += fmt::format("\n  {}: {}", name, what);
  };
  const auto bits = [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) -> std::string {
    if (a == b) return "";
    const auto first = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    return fmt::format("the bits differ, first at byte {} of {}", first, b.size());
  };
  for (size_t i = 0; i < op_case.outputs.size(); ++i) {
    const Output& output = op_case.outputs[i];
    const auto line = static_cast<size_t>(output.shape.rank() > 1 ? output.shape[-1] : 0);
    if (output.compare == Compare::Exact)
      add(output.name, bits(got.output_bytes[i], expected.output_bytes[i]));
    if (output.compare == Compare::Near)
      add(output.name, mismatch(got.outputs[i], expected.outputs[i], tolerance, 0, line));
  }
  for (const auto& [one, other] : op_case.equal) {
    const auto a = static_cast<size_t>(one), b = static_cast<size_t>(other);
    add(fmt::format("{} and {}", op_case.outputs[a].name, op_case.outputs[b].name),
        bits(got.output_bytes[a], got.output_bytes[b]));
  }
  for (size_t i = 0; i < op_case.inputs.size() && op_case.backward; ++i) {
    const Value& input = op_case.inputs[i];
    const auto line = static_cast<size_t>(input.shape.rank() > 1 ? input.shape[-1] : 0);
    if (input.differentiable)
      add("gradient of " + input.name, mismatch(got.gradients[i], expected.gradients[i], tolerance, 0, line));
  }
  return wrong;
}

Tensor OpRun::allocate(DType dtype, const Shape& shape) {
  Tensor result{nullptr, dtype, shape};
  memory_.push_back(device_.allocate(result.bytes()));
  result.data = memory_.back().get();
  return result;
}

Tensor OpRun::upload(DType dtype, const Shape& shape, const std::vector<double>& data) {
  const Tensor result = allocate(dtype, shape);
  const auto part = [&](int64_t begin, int64_t bytes) {
    return Tensor{static_cast<std::byte*>(result.data) + begin, DType::U8, {bytes}};
  };
  const std::vector<uint8_t> bytes = to_bytes(dtype, data);
  auto done = static_cast<int64_t>(bytes.size());
  if (done > 0) device_.copy_to_device(part(0, done), bytes.data());
  // Fewer values than there are places: what is there already, again.
  while (done > 0 && done < result.bytes()) {
    const int64_t more = std::min(done, result.bytes() - done);
    device_.copy(part(done, more), part(0, more));
    done += more;
  }
  return result;
}

namespace {

constexpr int64_t kTimedValues = 1 << 20;

// How many values are made for a tensor. Indices are never repeated: they may have to be in order.
int64_t most_values(DType dtype, int64_t count, Content content) {
  return content == Content::Timed && dtype != DType::I32 ? std::min(count, kTimedValues) : count;
}

}  // namespace

void OpRun::add_input(const Value& input, uint64_t seed) {
  const int64_t count = input.shape.numel();
  args_.in.push_back(upload(input.dtype, input.shape, input.fill(most_values(input.dtype, count, content_))));
  std::vector<double> initial;
  Tensor gradient;
  if (input.differentiable && content_ == Content::Timed) {
    gradient = allocate(input.gradient_dtype, input.shape);
    device_.zero(gradient);
  } else if (input.differentiable) {
    // Where nothing is added to, NaN shows what an op forgets to write.
    initial = input.accumulates ? random_values(count, input.gradient_dtype, seed, 0.1)
                                : std::vector<double>(static_cast<size_t>(count), NAN);
    gradient = upload(input.gradient_dtype, input.shape, initial);
  }
  args_.grad.push_back(gradient);
  initial_.push_back(std::move(initial));
}

void OpRun::add_output(const Output& output, uint64_t seed) {
  const int64_t count = output.shape.numel();
  if (content_ == Content::Timed) {
    args_.out.push_back(allocate(output.dtype, output.shape));
    device_.zero(args_.out.back());
  } else {
    args_.out.push_back(
        upload(output.dtype, output.shape, std::vector<double>(static_cast<size_t>(count), NAN)));
  }
  std::vector<double> weights;
  Tensor upstream;
  if (output.upstream && op_case_.backward) {
    const int64_t most = most_values(output.dtype, count, content_);
    weights = op_case_.upstream_value
                  ? std::vector<double>(static_cast<size_t>(most), *op_case_.upstream_value)
                  : random_values(most, output.dtype, seed);
    upstream = upload(output.dtype, output.shape, weights);
  }
  args_.upstream.push_back(upstream);
  upstream_.push_back(std::move(weights));
}

OpRun::OpRun(Device& device, const OpCase& op_case, uint64_t seed, Content content)
    : device_(device), op_case_(op_case), content_(content) {
  for (size_t i = 0; i < op_case.inputs.size(); ++i) add_input(op_case.inputs[i], seed + 100 + i);
  for (size_t i = 0; i < op_case.outputs.size(); ++i) add_output(op_case.outputs[i], seed + 200 + i);
  WorkspaceNeeds needs = op_case.needs;
  needs.gemms = op_case.gemms;
  needs.dtype = op_case.dtype;
  device.ops().set_workspace(allocate(DType::U8, {device.workspace_bytes(needs)}));
}

void OpRun::forward() {
  call(op_case_.prepare);
  call(op_case_.forward);
  call(op_case_.separate);
}

void OpRun::backward() {
  if (!op_case_.backward) return;
  call(op_case_.prepare_backward);
  call(op_case_.backward);
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
