#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/parallel_for.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/rank_saving.h"
#include "checkpoint/stored_remainder.h"
#include "checkpoint/tensor_files.h"
#include "hf/hf_folder.h"
#include "ops/remainder.h"
#include "ops/stochastic.h"
#include "tensor/floats.h"

namespace octet {
namespace {

// As keys name it.
std::string_view plain_name(SafeDType dtype) {
  if (dtype == SafeDType::F32) return "fp32";
  if (dtype == SafeDType::BF16) return "bf16";
  return safe_dtype_name(dtype);
}

enum class Moment { Mean, Square };  // v is kept as its square root where it has 8 bits

float value_of(float stored, Moment moment) {
  return moment == Moment::Square ? stored * stored : stored;
}

// Some rows of a tensor in a file.
struct TensorRows {
  SafeDType dtype = SafeDType::F32;
  std::span<const std::byte> bytes;
  int64_t count = 0;  // elements
};

// The rows of the whole tensor that this rank has. A vector counts as rows of one element.
TensorRows rows_of(const SafeTensor& tensor, const Parameter& parameter) {
  const int64_t height = parameter.spec.shape[0], rows = parameter.shape()[0];
  const auto row_bytes = static_cast<int64_t>(tensor.bytes.size()) / height;
  // A share without rows may begin behind the last one.
  const int64_t first = rows == 0 ? 0 : parameter.first_row();
  return {tensor.dtype,
          tensor.bytes.subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(rows * row_bytes)),
          tensor.count() / height * rows};
}

bool is_finite(const TensorRows& rows) {
  if (rows.dtype == SafeDType::F32) return all_finite(rows.bytes, DType::F32);
  return rows.dtype != SafeDType::BF16 || all_finite(rows.bytes, DType::BF16);
}

// A checkpoint's moment as fp32, in rows of `cols`.
std::vector<float> moment_values(const TensorRows& tensor, const std::optional<TensorRows>& scales,
                                 int64_t cols, Moment moment) {
  const int64_t count = tensor.count;
  std::vector<float> values(static_cast<size_t>(count));
  if (tensor.dtype == SafeDType::F32) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  } else if (tensor.dtype == SafeDType::BF16) {
    parallel_for(count, kElementsPerPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
        values[static_cast<size_t>(i)] = to_float(Bf16{bits});
      }
    });
  } else {
    const int64_t blocks = div_up(cols, kMomentBlock);
    const float* e4m3 = fp8_values(DType::E4M3);
    parallel_for(count, kElementsPerPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float factor = 0;
        std::memcpy(&factor, scales->bytes.data() + 4 * (i / cols * blocks + i % cols / kMomentBlock), 4);
        const auto code = std::to_integer<uint8_t>(tensor.bytes[static_cast<size_t>(i)]);
        const float value = tensor.dtype == SafeDType::U8 ? root_value(code) : e4m3[code];
        values[static_cast<size_t>(i)] = value_of(value * factor, moment);
      }
    });
  }
  return values;
}

// Writes a moment in this run's form; one of 8 bits as the optimizer keeps it, but rounded to nearest.
void set_moment(Device& device, Tensor to, Tensor to_scales, const std::vector<float>& values,
                Moment moment) {
  if (to.dtype == DType::F32) {
    device.copy_to_device(to, values.data());
    return;
  }
  if (to.dtype == DType::BF16) {
    std::vector<Bf16> rounded(values.size());
    parallel_for(std::ssize(values), kElementsPerPiece, [&](int64_t begin, int64_t end) {
      std::transform(values.begin() + begin, values.begin() + end, rounded.begin() + begin, to_bf16);
    });
    device.copy_to_device(to, rounded.data());
    return;
  }
  const int64_t cols = to.cols(), blocks = div_up(cols, kMomentBlock);
  const int64_t rows = static_cast<int64_t>(values.size()) / cols;
  std::vector<uint8_t> codes(values.size());
  std::vector<float> factors(static_cast<size_t>(rows * blocks));
  parallel_for(rows * blocks, rows_per_piece(kMomentBlock), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t col = block % blocks * kMomentBlock, first = block / blocks * cols + col;
      const int64_t last = first + std::min(kMomentBlock, cols - col);
      const auto stored = [&](int64_t i) {
        const float value = values[static_cast<size_t>(i)];
        return moment == Moment::Square ? std::sqrt(value) : value;
      };
      float largest = 0;
      for (int64_t i = first; i < last; ++i) largest = std::max(largest, std::fabs(stored(i)));
      const bool root = moment == Moment::Square;
      const float factor = root ? root_factor(largest) : moment_factor(largest);
      const MomentShift shift = MomentShift::of(largest, factor);
      factors[static_cast<size_t>(block)] = factor;
      for (int64_t i = first; i < last; ++i) {
        const auto at = static_cast<size_t>(i);
        if (root) {
          codes[at] = to_root_code(shift(stored(i)), kNoiseToNearest);
        } else {
          codes[at] = to_e4m3(factor > 0 ? stored(i) / factor : 0.0f);
        }
      }
    }
  });
  device.copy_to_device(to, codes.data());
  device.copy_to_device(to_scales, factors.data());
}

// A remark about weights that are stored with other bits than before; empty: none. `dtype` is that of the run, and
// `from_fp32` says that the checkpoint has fp32 weights.
std::string conversion_remark(DType dtype, RemainderKind from, RemainderKind to, bool from_fp32) {
  using enum RemainderKind;
  if (dtype == DType::F32)
    return from == Exact     ? "weights: converted from bf16 plus remainder to exact fp32"
           : from == Compact ? "weights: converted from bf16 plus 4 bits to fp32"
                             : "";
  if (from_fp32) {
    if (to == Exact) return "weights: split into bf16 and an exact remainder";
    return to == Compact ? "weights: rounded from 32 to 20 bits (bf16 plus 4 bits)"
                         : "weights: rounded from fp32 to bf16";
  }
  if (from == to) return "";
  if (to == None)
    return fmt::format("weights: bf16 as in the checkpoint; its {}-bit remainders are dropped",
                       from == Exact ? 16 : 4);
  if (to == Compact)
    return from == Exact ? "weights: rounded from 32 to 20 bits (bf16 plus 4 bits)"
                         : "weights: split into bf16 and 4 more bits";
  return from == Compact ? "weights: the 4-bit remainders become exact ones of 16 bits"
                         : "weights: split into bf16 and an exact remainder";
}

// Restores the rows of this rank of the parameters, one by one, and notes what had to be converted.
class ParameterRestorer {
 public:
  // With `adapters` only they are restored: the base was loaded before.
  ParameterRestorer(Env& env, const Checkpoint& checkpoint, Device& device, bool adapters)
      : device_(device),
        adapters_(adapters),
        weights_(env, checkpoint, adapters ? kAdapterStem : kWeightsStem),
        optimizer_(env, checkpoint, kOptimizerStem),
        values_([this](std::string_view name) { return weights_.find(name); }, weights_.place()) {}
  ParameterRestorer(const ParameterRestorer&) = delete;  // values_ points at weights_

  // Everything that does not fit is found before anything is changed.
  void check_fit(const ParameterSet& parameters) const {
    std::vector<ParameterSpec> table;
    std::vector<std::string> faults;
    for (const Parameter& parameter : parameters.all()) {
      if (adapters_ && !parameter.spec.is_adapter()) continue;
      require(parameter.storage.has_dense_rows(),
              "[{}] {} is not stored here as one dense tensor, so it cannot be restored", weights_.place(),
              parameter.spec.name);
      table.push_back(parameter.spec);
      if (std::string fault = StoredRemainder(optimizer_, parameter.spec).fault(); !fault.empty())
        faults.push_back(std::move(fault));
      if (!parameter.storage.trainable) continue;  // no moments
      for (const char* moment : {".m", ".v"}) check_moment(parameter.spec, moment, faults);
    }
    require(faults.empty(), "[{}] does not fit the model:\n  {}", optimizer_.place(),
            fmt::join(faults, "\n  "));
    values_.check(table);
  }

  void restore(ParameterSet& parameters) {
    for (Parameter& parameter : parameters.all()) {
      if (adapters_ && !parameter.spec.is_adapter()) continue;
      restore_weight(parameter);
      if (!parameter.storage.trainable) continue;
      restore_moment(parameter, ".m", parameter.m, parameter.m_scales, Moment::Mean);
      restore_moment(parameter, ".v", parameter.v, parameter.v_scales, Moment::Square);
    }
  }

  std::vector<std::string> remarks() const { return {remarks_.begin(), remarks_.end()}; }

 private:
  void check_moment(const ParameterSpec& spec, const char* moment, std::vector<std::string>& faults) const {
    const std::vector<int64_t> expected = dimensions(spec.shape);
    const std::string name = spec.name + moment;
    const SafeTensor* found = optimizer_.find(name);
    if (!found) {
      faults.push_back(fmt::format("{} is missing", name));
      return;
    }
    if (!std::equal(expected.begin(), expected.end(), found->shape.begin(), found->shape.end())) {
      faults.push_back(fmt::format("{} has shape ({}), expected ({})", name, fmt::join(found->shape, ", "),
                                   fmt::join(expected, ", ")));
      return;
    }
    if (found->dtype == SafeDType::F32 || found->dtype == SafeDType::BF16) return;
    const SafeTensor* scales = optimizer_.find(name + ".scales");
    // The roots of v were e4m3, too, before they had a code of their own.
    const bool is_v = name.ends_with(".v");
    const bool fits = (found->dtype == SafeDType::F8_E4M3 || (is_v && found->dtype == SafeDType::U8)) &&
                      spec.shape.rank() == 2 && scales && scales->dtype == SafeDType::F32 &&
                      scales->count() == spec.shape[0] * div_up(spec.shape[1], kMomentBlock);
    if (!fits)
      faults.push_back(fmt::format("{} is {}, expected F32, BF16, or {} with its scales", name,
                                   safe_dtype_name(found->dtype), is_v ? "U8" : "F8_E4M3"));
  }

  void restore_weight(Parameter& parameter) {
    std::vector<float> values = values_.values(parameter.spec, parameter.first_row(), parameter.shape()[0]);
    require(all_finite(std::as_bytes(std::span(values)), DType::F32),
            "[{}] {} holds values that are not finite", weights_.place(), parameter.spec.hf.front().name);
    if (values.empty()) return;  // a share without rows
    const StoredRemainder remainder(optimizer_, parameter.spec);
    remainder.add_to(values, parameter.first_row());
    // In the form of the checkpoint, set_rows gives the checkpoint's bits back.
    ParameterSet::set_rows(device_, parameter, values);
    if (!adapters_)
      note(conversion_remark(parameter.own_rows.dtype, remainder.kind, kind_of_remainder(parameter.remainder),
                             weights_.at(parameter.spec.hf.front().name).dtype == SafeDType::F32));
  }

  void restore_moment(const Parameter& parameter, const char* suffix, Tensor to, Tensor to_scales,
                      Moment moment) {
    if (to.numel() == 0) return;  // a share without rows
    const std::string name = parameter.spec.name + suffix;
    const TensorRows from = rows_of(optimizer_.at(name), parameter);
    std::optional<TensorRows> scales;
    if (const SafeTensor* found = optimizer_.find(name + ".scales")) scales = rows_of(*found, parameter);
    require(is_finite(from) && (!scales || is_finite(*scales)), "[{}] {} holds values that are not finite",
            optimizer_.place(), name);
    const bool same = from.dtype == safe_dtype(to.dtype) && (!to_scales || scales);
    if (same) {
      device_.copy_to_device(to, from.bytes.data());
      if (to_scales) device_.copy_to_device(to_scales, scales->bytes.data());
      return;
    }
    set_moment(device_, to, to_scales, moment_values(from, scales, parameter.width(), moment), moment);
    if (scales && to_scales) {
      note("AdamW's second moments: converted from F8_E4M3 to the 8-bit code of roots");
    } else {
      note(fmt::format("AdamW's moments: converted from {} to {}", scales ? "fp8" : plain_name(from.dtype),
                       to_scales ? "fp8" : name_of(to.dtype)));
    }
  }

  void note(std::string_view remark) {
    if (!remark.empty() && std::find(remarks_.begin(), remarks_.end(), remark) == remarks_.end())
      remarks_.emplace_back(remark);
  }

  Device& device_;
  bool adapters_;
  TensorFiles weights_, optimizer_;
  HfWeights values_;
  std::vector<std::string> remarks_;
};

std::vector<std::byte> read_bytes(Env& env, const std::string& path) {
  ReadableFile file = env.open_read(path);
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  bytes.resize(file.read(bytes));
  return bytes;
}

// The scales belong to a recipe and format. If those differ, the run starts like a new one: the first micro-batch scales
// every tensor by its own values, and the histories start from there.
void restore_scales(Env& env, const Checkpoint& checkpoint, Device& device, Transformer& model,
                    std::vector<std::string>& remarks) {
  const bool fp8 = model.numerics().precision == Precision::Fp8 && model.scales().count() > 0;
  const bool saved = checkpoint.has_file(checkpoint_file::kFp8);
  if (!fp8) {
    if (saved)
      remarks.emplace_back(
          "from FP8: the FP8 scales of the checkpoint are dropped; weights and moments are kept");
    return;
  }
  const bool delayed = model.scales().config().recipe == Fp8Recipe::Delayed;
  const char* computed = delayed ? "computed from the first micro-batch"
                         : model.scales().any_delayed()
                             ? "computed from every tensor, those of the head from the first micro-batch"
                             : "computed from every tensor";
  // The model may have trained before. A frozen base has only its codes, and keeps the scales of these.
  const auto begin_anew = [&] {
    if (!model.has_adapters()) model.scales().initialise(device);
  };
  if (!saved) {
    begin_anew();
    remarks.push_back(fmt::format("to FP8: the scales are {}; weights and moments are kept", computed));
    return;
  }
  const std::string path = checkpoint.file_path(checkpoint_file::kFp8);
  try {
    model.scales().restore(device, read_bytes(env, path));
  } catch (const IoError&) {
    throw;
  } catch (const Error& reason) {
    begin_anew();
    remarks.push_back(fmt::format("FP8 scales are {}, not restored: {}", computed, reason.what()));
  }
}

}  // namespace

Restored restore_checkpoint(Env& env, const Checkpoint& checkpoint, Device& device, Transformer& model,
                            HostChannel* host) {
  const std::string state_path = checkpoint.file_path(checkpoint_file::kState);
  const bool adapters = model.has_adapters();
  Restored restored;
  std::optional<ParameterRestorer> parameters;
  agree(host, "checkpoint fits", [&] {
    restored.state = trainer_state_from_json(env.read_text(state_path), state_path);
    require(restored.state.step == checkpoint.step, "[{}] is of step {}, but the manifest says {}",
            state_path, restored.state.step, checkpoint.step);
    require(checkpoint.has_file(checkpoint_file::kAdapterWeights) == adapters,
            "[{}] holds {}, but this run trains {}", checkpoint.path,
            adapters ? "all weights of a model" : "adapters", adapters ? "adapters" : "all weights");
    parameters.emplace(env, checkpoint, device, adapters);
    parameters->check_fit(model.parameters());
  });
  agree(host, "checkpoint restored", [&] {
    parameters->restore(model.parameters());
    restored.remarks = parameters->remarks();
    restore_scales(env, checkpoint, device, model, restored.remarks);
  });
  model.weights_restored();
  return restored;
}

}  // namespace octet
