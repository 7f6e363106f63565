#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel_for.h"
#include "base/philox.h"
#include "model/family.h"
#include "ops/remainder.h"
#include "ops/stochastic.h"
#include "tensor/floats.h"

namespace octet {
namespace {

// Builds the table of one model.
class TableBuilder {
 public:
  TableBuilder(const ModelConfig& config, const AdapterPlan& adapters)
      : c_(config), hf_(config.family->tensors), adapters_(adapters) {}

  std::vector<ParameterSpec> build() {
    matrix("embedding.tokens", c_.padded_vocab(), c_.width, c_.init_std,
           {{hf_.embedding + ".weight", 0, c_.vocab}});
    table_.back().summed = c_.tied_head;
    if (c_.learned_positions) {
      summed_matrix("embedding.positions", c_.max_positions, c_.width, c_.init_std,
                    {{hf_.positions + ".weight", 0, c_.max_positions}});
      table_.back().decay = false;
    }
    for (layer_ = 0; layer_ < c_.layers; ++layer_) block(layer_);
    norm("final_norm", hf_.final_norm);
    if (!c_.tied_head) {
      summed_matrix("head.weight", c_.padded_vocab(), c_.width, c_.init_std,
                    {{hf_.head + ".weight", 0, c_.vocab}});
    }
    return std::move(table_);
  }

 private:
  void add(ParameterSpec spec) {
    spec.layer = layer_;
    table_.push_back(std::move(spec));
  }

  void block(int64_t l) {
    const std::string ours = fmt::format("layers.{}.", l);
    const std::string theirs = fmt::format("{}.{}.", hf_.block, l);
    const AttentionShape a = c_.attention();
    const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
    const float residual_std =
        c_.scaled_residual_init ? c_.init_std / std::sqrt(2.0f * static_cast<float>(c_.layers)) : c_.init_std;

    norm(ours + "attention.norm", theirs + hf_.attention_norm);
    linear(ours + "attention.qkv", q + 2 * kv, c_.width, c_.init_std, c_.qkv_bias,
           parts(theirs, hf_.qkv, {q, kv, kv}));
    if (c_.qk_norm) {
      gain(ours + "attention.q_norm", theirs + hf_.q_norm, a.head_dim);
      gain(ours + "attention.k_norm", theirs + hf_.k_norm, a.head_dim);
    }
    linear(ours + "attention.out", c_.width, q, residual_std, c_.out_bias,
           parts(theirs, {hf_.out}, {c_.width}));
    norm(ours + "mlp.norm", theirs + hf_.mlp_norm);
    linear(ours + "mlp.up", c_.up_width(), c_.width, c_.init_std, c_.out_bias,
           parts(theirs, hf_.up, {c_.ffn, c_.up_width() - c_.ffn}));
    linear(ours + "mlp.down", c_.width, c_.ffn, residual_std, c_.out_bias,
           parts(theirs, {hf_.down}, {c_.width}));
  }

  // Splits the rows of one of octet's matrices over these names; a single name gets all rows.
  std::vector<HfPart> parts(const std::string& prefix, const std::vector<std::string>& names,
                            const std::vector<int64_t>& rows) const {
    if (names.size() == 1) {
      return {{prefix + names[0], 0, std::accumulate(rows.begin(), rows.end(), int64_t{0}), hf_.transposed}};
    }
    std::vector<HfPart> result;
    int64_t begin = 0;
    for (size_t i = 0; i < names.size(); begin += rows[i++])
      result.push_back({prefix + names[i], begin, rows[i], hf_.transposed});
    return result;
  }

  // The gradient of the head, and of an embedding tied to it, is summed chunk by chunk. A separate embedding is added
  // to once per token that occurs, with the sum over all its places.
  void summed_matrix(std::string name, int64_t rows, int64_t cols, float std, std::vector<HfPart> hf) {
    matrix(std::move(name), rows, cols, std, std::move(hf));
    table_.back().summed = true;
  }

  void matrix(std::string name, int64_t rows, int64_t cols, float std, std::vector<HfPart> hf) {
    add({std::move(name), {rows, cols}, Init::Normal, std, true, false, std::move(hf)});
  }

  void linear(const std::string& name, int64_t out, int64_t in, float std, bool bias,
              std::vector<HfPart> parts) {
    std::vector<HfPart> weights = parts, biases = parts;
    for (HfPart& part : weights) part.name += ".weight";
    for (HfPart& part : biases) part.name += ".bias", part.transposed = false;
    matrix(name + ".weight", out, in, std, std::move(weights));
    if (bias) add({name + ".bias", {out}, Init::Zero, 0, false, false, std::move(biases)});
    adapters(name, in, parts);
  }

  // As PEFT initialises them: A uniform within 1 / sqrt(in), B zero.
  void adapters(const std::string& name, int64_t in, const std::vector<HfPart>& parts) {
    std::vector<HfPart> stacked;
    std::vector<ParameterSpec> lifts;
    int64_t ranks = 0;
    for (const HfPart& part : parts) {
      const Adapter* adapter = adapters_.find(part.name);
      if (!adapter) continue;
      stacked.push_back({peft_tensor_name(part.name, 'A'), ranks, adapter->rank});
      ranks += adapter->rank;
      lifts.push_back({lora_b_name(name, part.name),
                       {part.rows, adapter->rank},
                       Init::Zero,
                       0,
                       true,
                       false,
                       {{peft_tensor_name(part.name, 'B'), 0, part.rows}},
                       ParameterSpec::Adapter::B});
    }
    if (stacked.empty()) return;
    const float bound = 1.0f / std::sqrt(static_cast<float>(in));
    add({lora_a_name(name),
         {ranks, in},
         Init::Uniform,
         bound,
         true,
         false,
         std::move(stacked),
         ParameterSpec::Adapter::A});
    for (ParameterSpec& lift : lifts) add(std::move(lift));
  }

  void norm(const std::string& name, const std::string& theirs) {
    gain(name, theirs, c_.width);
    if (c_.norm == NormKind::LayerNorm) {
      add({name + ".bias", {c_.width}, Init::Zero, 0, false, false, {{theirs + ".bias", 0, c_.width}}});
    }
  }

  void gain(const std::string& name, const std::string& theirs, int64_t width) {
    add({name + ".gain", {width}, Init::One, 0, false, false, {{theirs + ".weight", 0, width}}});
  }

  const ModelConfig& c_;
  const TensorNames& hf_;
  const AdapterPlan& adapters_;
  int64_t layer_ = -1;  // of the rows that are added
  std::vector<ParameterSpec> table_;
};

int64_t covered_elements(const ParameterSpec& spec) {
  int64_t rows = 0;
  for (const HfPart& part : spec.hf) rows = std::max(rows, part.row_begin + part.rows);
  return spec.shape.rank() == 1 ? rows : rows * spec.shape[1];
}

}  // namespace

// FNV-1a.
uint64_t Parameter::stream() const {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : spec.name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

std::vector<NamedTensor> Parameter::state() const {
  std::vector<NamedTensor> result;
  const auto add = [&](const char* suffix, const Tensor& tensor) {
    if (tensor) result.push_back({spec.name + suffix, tensor});
  };
  add("", own_rows);
  add(".remainder", remainder);
  add(".m", m);
  add(".v", v);
  add(".m.scales", m_scales);
  add(".v.scales", v_scales);
  return result;
}

std::string lora_a_name(std::string_view linear) {
  return fmt::format("{}.lora_a", linear);
}

std::string lora_b_name(std::string_view linear, std::string_view module) {
  return fmt::format("{}.lora_b.{}", linear, module.substr(module.rfind('.') + 1));
}

std::vector<ParameterSpec> parameter_table(const ModelConfig& config, const AdapterPlan& adapters) {
  return TableBuilder(config, adapters).build();
}

std::vector<ParameterSpec> base_of(std::vector<ParameterSpec> table) {
  std::erase_if(table, &ParameterSpec::is_adapter);
  return table;
}

std::vector<ParameterSpec> adapters_of(std::vector<ParameterSpec> table) {
  std::erase_if(table, [](const ParameterSpec& spec) { return !spec.is_adapter(); });
  return table;
}

ParameterStorage cut_storage(const ParameterSpec& spec, const Sharding& sharding, int64_t unit) {
  sharding.validate();
  const RowShare share = row_share(spec.shape[0], sharding.part(), sharding.ranks, unit);
  return {.residency = sharding.shares_state() ? Residency::Parts : Residency::Resident,
          .cut = {.part = sharding.part(),
                  .parts = sharding.ranks,
                  .part_rows = share.size,
                  .groups = sharding.groups()}};
}

namespace {

void plan_weight(Parameter& p, DType dtype, BufferPlanner& planner) {
  if (!p.storage.has_dense_rows()) return;
  if (p.storage.is_shared()) return plan_shared_weight(p, dtype, planner);
  planner.add(p.weight, p.spec.name, dtype, p.spec.shape, MemoryCategory::Weights, Lifetime::always(),
              p.storage.place);
  planner.alias(p.own_rows, p.weight, dtype, p.spec.shape);
}

void plan_gradient(Parameter& p, DType dtype, BufferPlanner& planner) {
  if (p.storage.cut) return plan_cut_gradient(p, dtype, planner);
  planner.add(p.gradient, p.spec.name + ".gradient", dtype, p.spec.shape, MemoryCategory::Gradients,
              Lifetime::always(), p.storage.place);
}

}  // namespace

ParameterSet::ParameterSet(const ModelConfig& config, ParameterTypes types, bool training,
                           BufferPlanner& planner, const StoragePolicy& policy, const AdapterPlan& adapters) {
  for (ParameterSpec& spec : parameter_table(config, adapters)) {
    const ParameterStorage storage = policy ? policy(spec) : ParameterStorage{};
    require(storage.residency != Residency::CodesOnly || !storage.trainable,
            "[parameters] {} is trained and so needs a dense weight", spec.name);
    parameters_.push_back({.spec = std::move(spec), .storage = storage});
    if (storage.cut) parameters_.back().parts = &parts_.emplace_back();
  }
  for (Parameter& p : parameters_) {
    const Shape shape = p.shape();
    const auto plan_shape = [&](Tensor& view, const char* what, DType dtype, MemoryCategory category,
                                const Shape& of) {
      planner.add(view, p.spec.name + what, dtype, of, category, Lifetime::always(), p.storage.place);
    };
    const auto plan = [&](Tensor& view, const char* what, DType dtype, MemoryCategory category) {
      plan_shape(view, what, dtype, category, shape);
    };
    plan_weight(p, types.weight, planner);
    if (!training || !p.storage.trainable) continue;
    const bool vector = p.spec.shape.rank() == 1, adapter = p.spec.is_adapter();
    const RemainderKind remainder = vector || adapter ? RemainderKind::Exact : types.remainder;
    if (types.weight == DType::BF16 && remainder == RemainderKind::Exact) {
      plan(p.remainder, ".remainder", DType::U16, MemoryCategory::Optimizer);
    } else if (types.weight == DType::BF16 && remainder == RemainderKind::Compact) {
      plan_shape(p.remainder, ".remainder", DType::U8, MemoryCategory::Optimizer,
                 {shape[0], compact_row_bytes(shape[1])});
    }
    plan_gradient(p, vector || adapter || p.spec.summed ? DType::F32 : types.gradient, planner);
    const DType moments = vector && types.moments == DType::E4M3 ? DType::F32 : types.moments;
    plan(p.m, ".m", moments, MemoryCategory::Optimizer);
    plan(p.v, ".v", dtype_of_v(moments), MemoryCategory::Optimizer);
    if (moments != DType::E4M3) continue;
    const Shape scales{shape[0], div_up(shape[1], kMomentBlock)};
    plan_shape(p.m_scales, ".m.scales", DType::F32, MemoryCategory::Optimizer, scales);
    plan_shape(p.v_scales, ".v.scales", DType::F32, MemoryCategory::Optimizer, scales);
  }
}

Parameter& ParameterSet::operator[](std::string_view name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.spec.name == name) return parameter;
  }
  fail("[parameters] there is no '{}'", name);
}

void ParameterSet::initialise(Device& device, uint64_t seed, bool base) {
  for (Parameter& p : parameters_) {
    if (!p.own_rows) continue;  // a Linear with only FP8 copies is filled by its owner
    const int64_t begin = p.first_row() * p.width();
    const int64_t covered = std::clamp<int64_t>(covered_elements(p.spec) - begin, 0, p.own_rows.numel());
    // The covered rows.
    const auto first = [&](const Tensor& x) {
      if (!x || x.shape.rank() == 1) return x ? Tensor{x.data, x.dtype, {covered}} : Tensor{};
      return Tensor{x.data, x.dtype, {covered / p.width(), x.shape[1]}};
    };
    const ParameterParts parts = p.parts ? *p.parts : ParameterParts{};
    for (const Tensor& x :
         {p.m, p.v, p.m_scales, p.v_scales, p.gradient, parts.gradient_parts, parts.sum_part}) {
      if (x) device.zero(x);
    }
    if (!base && !p.spec.is_adapter()) continue;
    switch (p.spec.init) {
      case Init::One:
        set_weight(device, p, std::vector<float>(static_cast<size_t>(p.spec.shape.numel()), 1.0f));
        break;
      case Init::Uniform: {
        const Philox random(seed, p.stream());
        std::vector<float> values(static_cast<size_t>(p.spec.shape.numel()));
        parallel_for(std::ssize(values), kElementsPerPiece, [&](int64_t from, int64_t to) {
          for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(to); ++i)
            values[i] = p.spec.init_scale * (2 * static_cast<float>(random.uniform(i)) - 1);
        });
        set_weight(device, p, values);
        break;
      }
      case Init::Normal:  // padding rows stay zero
        device.zero(p.own_rows);
        if (p.remainder) device.zero(p.remainder);
        device.ops().fill_normal(first(p.own_rows), first(p.remainder), p.spec.init_scale, seed, p.stream(),
                                 begin);
        break;
      case Init::Zero:
        device.zero(p.own_rows);
        if (p.remainder) device.zero(p.remainder);
        break;
    }
  }
}

void ParameterSet::set_weight(Device& device, Parameter& p, const std::vector<float>& whole) {
  require(static_cast<int64_t>(whole.size()) == p.spec.shape.numel(),
          "[parameters] {}: {} values for shape {}", p.spec.name, whole.size(), p.spec.shape.to_string());
  if (p.own_rows.numel() == 0) return;  // a share without rows
  set_rows(device, p,
           std::span(whole).subspan(static_cast<size_t>(p.first_row() * p.width()),
                                    static_cast<size_t>(p.own_rows.numel())));
}

void ParameterSet::set_rows(Device& device, Parameter& p, std::span<const float> values) {
  require(static_cast<bool>(p.own_rows), "[parameters] {} has no dense weight to write", p.spec.name);
  require(static_cast<int64_t>(values.size()) == p.own_rows.numel(),
          "[parameters] {}: {} values for the {} of this rank", p.spec.name, values.size(),
          p.own_rows.numel());
  if (values.empty()) return;  // a share without rows
  if (p.own_rows.dtype == DType::F32) {
    device.copy_to_device(p.own_rows, values.data());
    return;
  }
  std::vector<uint16_t> high(values.size());
  std::vector<std::byte> low(p.remainder ? static_cast<size_t>(p.remainder.bytes()) : 0);
  split_weights(values, p.width(), kind_of_remainder(p.remainder), high.data(), low.data());
  device.copy_to_device(p.own_rows, high.data());
  if (p.remainder) device.copy_to_device(p.remainder, low.data());
}

std::vector<float> ParameterSet::weight_values(Device& device, const Parameter& p) {
  std::vector<float> values(static_cast<size_t>(p.own_rows.numel()));
  if (p.own_rows.dtype == DType::F32) {
    device.copy_to_host(values.data(), p.own_rows);
    return values;
  }
  std::vector<Bf16> high(values.size());
  std::vector<std::byte> low(p.remainder ? static_cast<size_t>(p.remainder.bytes()) : 0);
  device.copy_to_host(high.data(), p.own_rows);
  if (p.remainder) device.copy_to_host(low.data(), p.remainder);
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(high[i]);
  add_remainders(values, p.width(), kind_of_remainder(p.remainder), low.data());
  return values;
}

bool has_adapters(const ParameterSet& parameters) {
  return std::ranges::any_of(parameters.all(), [](const Parameter& p) { return p.spec.is_adapter(); });
}

void fill_rows(Device& device, Tensor rows, const Parameter& p, uint64_t seed, int64_t begin) {
  require(p.spec.init == Init::Normal, "[parameters] {} is not drawn from a normal distribution",
          p.spec.name);
  const int64_t first = begin * rows.cols();
  const int64_t covered = std::clamp<int64_t>(covered_elements(p.spec) - first, 0, rows.numel());
  if (covered < rows.numel()) device.zero(rows);
  device.ops().fill_normal({rows.data, rows.dtype, {covered}}, {}, p.spec.init_scale, seed, p.stream(),
                           first);
}

}  // namespace octet
