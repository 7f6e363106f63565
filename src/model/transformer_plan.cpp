// The tables of a Transformer: which buffers it has, how long each is needed, and where it lies.

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "model/transformer.h"

namespace octet {
namespace {

ParameterTypes parameter_types(const Numerics& numerics) {
  return {.weight = numerics.dense(),
          .gradient = numerics.gradients,
          .moments = numerics.moments,
          .remainder = numerics.remainder};
}

std::vector<std::string> hf_names(const ParameterSpec& weight) {
  std::vector<std::string> names;
  for (const HfPart& part : weight.hf) names.push_back(part.module());
  return names;
}

// All Linears in the order of the forward pass; the head is the last.
std::vector<LinearSite> linear_sites(const ModelConfig& config, const RunShape& shape,
                                     const Numerics& numerics) {
  std::map<std::string, ParameterSpec, std::less<>> table;
  for (ParameterSpec& spec : parameter_table(config)) table.emplace(spec.name, std::move(spec));
  std::vector<LinearSite> sites;
  const auto add = [&]<class Part>(int64_t layer, const Part*) {
    for (const auto& entry : Part::linears(config, KeepPolicy(Checkpointing::None))) {
      const std::string name = fmt::format("layers.{}.{}", layer, entry.name);
      sites.push_back({name, hf_names(table.at(name + ".weight")), layer, config.layers, entry.out, entry.in,
                       shape.tokens(), WorkKind::BaseMatrix});
    }
  };
  for (int64_t l = 0; l < config.layers; ++l) {
    add(l, static_cast<const AttentionPart*>(nullptr));
    add(l, static_cast<const MlpPart*>(nullptr));
  }
  // A last chunk that is not a multiple of 16 must count in the choice: then the site is the whole micro-batch.
  const int64_t head_tokens =
      shape.tokens() % 16 == 0 ? Head::chunk_rows(config, shape, numerics) : shape.tokens();
  sites.push_back({"head",
                   {"lm_head"},
                   -1,
                   config.layers,
                   config.padded_vocab(),
                   config.width,
                   head_tokens,
                   WorkKind::Head});
  return sites;
}

LinearChoices choose_linears(const ModelConfig& config, const RunShape& shape, const Numerics& numerics) {
  LinearChoices chosen{.sites = linear_sites(config, shape, numerics), .choices = {}};
  chosen.choices = choose_precision(chosen.sites, numerics.precision, numerics.fp8);
  return chosen;
}

// With adapters, the base is frozen. A matrix has only FP8 copies if both products that read it run in FP8. The head always
// keeps its dense weight: corrections read it, and so does a tied embedding. Ranks share what `sharding` says.
StoragePolicy storage_policy(const Finetuning& finetuning, const Numerics& numerics,
                             const LinearChoices& linears) {
  const auto& [sites, choices] = linears;
  const Sharding sharding = finetuning.sharding;
  const bool adapters = !finetuning.adapters.empty();
  if (finetuning.storage || (!adapters && !sharding.is_active())) return finetuning.storage;
  std::set<std::string, std::less<>> fp8_alone;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].kind == WorkKind::Head) continue;
    if (choices[i][Product::Forward].fp8 && choices[i][Product::Dgrad].fp8)
      fp8_alone.insert(sites[i].name + ".weight");
  }
  // The two copies of MXFP8 have different codes, so the dense weight travels, which is as large as both.
  const Granularity granularity = quantize_rule(numerics.fp8, Role::Weight).granularity;
  const bool codes_travel = granularity != Granularity::Row32;
  const int64_t layers = sites.front().layers;
  const int64_t code_rows = granularity == Granularity::Block128 ? 128 : 2;
  return [=, fp8_alone = std::move(fp8_alone)](const ParameterSpec& spec) {
    const bool frozen = adapters && !spec.is_adapter(), matrix = spec.shape.rank() == 2;
    const bool in_layer = matrix && !spec.is_adapter() && spec.layer >= 0 && spec.layer < layers;
    const bool fp8 = fp8_alone.contains(spec.name);
    const bool per_layer = sharding.shares_weights() && in_layer;
    ParameterStorage storage;
    const bool cut = sharding.is_active() && (!frozen || per_layer);
    if (cut) storage = cut_storage(spec, sharding, !matrix ? 8 : fp8 && codes_travel ? code_rows : 2);
    storage.trainable = !frozen;
    if (storage.is_shared()) {
      storage.sends_codes = fp8 && codes_travel;
      if (per_layer) storage.residency = Residency::PerLayer;
    } else if (frozen && fp8) {
      storage.residency = Residency::CodesOnly;
    }
    storage.gradient_per_layer = cut && !frozen && in_layer && sharding.shares_gradients();
    return storage;
  };
}

// Before anything is computed from them.
const ModelConfig& checked(const ModelConfig& config, const RunShape& shape) {
  config.validate();
  require(shape.rows > 0 && shape.length > 0,
          "[model] a micro-batch of {} x {} tokens, expected at least 1 x 1", shape.rows, shape.length);
  require(!shape.scoring || !shape.training, "[model] a run that trains cannot be made for scoring");
  require(!config.learned_positions || shape.length <= config.max_positions,
          "[model {}] a sequence of {} tokens is longer than the model's {} positions", config.name,
          shape.length, config.max_positions);
  return config;
}

int64_t scale_bytes(Granularity granularity, int64_t rows, int64_t depth) {
  const Shape shape = scales_shape(granularity, rows, depth);
  return shape.rank() == 0 ? 0 : shape.numel() * static_cast<int64_t>(size_of(scales_dtype(granularity)));
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const RunShape& shape, const Numerics& numerics,
                         Device& device, const Finetuning& finetuning)
    : config_(checked(config, shape)),
      shape_(shape),
      numerics_(numerics),
      device_(device),
      finetuning_(finetuning),
      keep_(shape.checkpointing),
      precision_(choose_linears(config, shape, numerics)),
      parameters_(config, parameter_types(numerics), shape.training, planner_,
                  storage_policy(finetuning, numerics, precision_), finetuning.adapters),
      scales_(numerics.fp8),
      head_(config, shape, numerics, device) {
  static std::atomic<int64_t> made{0};
  number_ = made++;
  finetuning_.sharding.validate();
  plan_parameters();
  make_groups();
  plan_rings();
  plan_fp8_scratch();
  plan_transposed_weight();
  plan_adapter_scratch();
  plan_layers();
  plan_head();
  if (shape.training) plan_gradients();
  scales_.plan(planner_);
  plan_rank_buffers();
  plan_workspace();
  planner_.finish();
}

void Transformer::plan_parameters() {
  embedding_.tokens = &parameters_["embedding.tokens"];
  if (config_.learned_positions) embedding_.positions = &parameters_["embedding.positions"];
  final_.norm = Norm::find(parameters_, "final_norm", config_);

  // Only products can read FP8 copies.
  for (const Parameter& p : parameters_.all()) {
    const bool of_linear = p.spec.shape.rank() == 2 && &p != embedding_.tokens && &p != embedding_.positions;
    require(p.storage.has_dense_rows() || of_linear,
            "[model] {} needs a dense weight: ops other than products read it", p.spec.name);
  }
  blocks_.resize(static_cast<size_t>(config_.layers));
  const auto place = [&](Linear& linear, Parameter& weight, Parameter* bias, bool dense_input) {
    const size_t index = linears_.size();
    const LinearSite& site = precision_.sites[index];
    linear = Linear({site, precision_.choices[index]}, weight, bias,
                    {.low_rank = find_low_rank(parameters_, finetuning_.adapters, weight.spec),
                     .drops = finetuning_.adapters.dropout > 0,
                     .dense_input = dense_input});
    const bool one_copy = site.layer >= 0 && site.layer < finetuning_.one_copy_layers;
    linear.plan(planner_, scales_, shape_.training, one_copy ? WeightCopies::One : WeightCopies::Two);
    linears_.push_back(&linear);
  };
  const auto place_part = [&](auto& part, int64_t layer) {
    for (const auto& entry : std::decay_t<decltype(part)>::linears(config_, keep_)) {
      const std::string name = fmt::format("layers.{}.{}", layer, entry.name);
      place(part.*entry.linear, parameters_[name + ".weight"],
            entry.bias ? &parameters_[name + ".bias"] : nullptr, entry.dense_input);
    }
  };
  for (int64_t l = 0; l < config_.layers; ++l) {
    Block& block = blocks_[static_cast<size_t>(l)];
    block.attention.find_norms(parameters_, fmt::format("layers.{}.", l), config_);
    block.mlp.norm = Norm::find(parameters_, fmt::format("layers.{}.mlp.norm", l), config_);
    place_part(block.attention, l);
    place_part(block.mlp, l);
  }
  place(head_.linear(), config_.tied_head ? *embedding_.tokens : parameters_["head.weight"], nullptr, false);
}

int64_t Transformer::transposing_layers() const {
  std::set<int64_t> layers;
  for (const Linear* linear : linears_) {
    if (linear->weight.transposes()) layers.insert(linear->spec.site.layer);
  }
  return std::ssize(layers);
}

int64_t Transformer::bytes_moved_to_save_memory() const {
  int64_t bytes = 0;
  for (const Linear* linear : linears_) {
    if (linear->weight.transposes()) bytes += 2 * linear->spec.site.out * linear->spec.site.in;
  }
  return bytes + head_.bytes_moved_by_chunks();
}

// Memory for the transposed weight of a Linear that keeps one copy, until its dgrad has read it.
void Transformer::plan_transposed_weight() {
  int64_t codes = 0, scales = 0;
  for (const Linear* linear : linears_) {
    if (!linear->weight.transposes()) continue;
    const LinearSite& site = linear->spec.site;
    const Granularity granularity = quantize_rule(numerics_.fp8, Role::Weight).granularity;
    codes = std::max(codes, site.out * site.in);
    scales = std::max(scales, scale_bytes(granularity, site.in, site.out));
  }
  if (codes > 0) plan_bytes(shared_.transposed_weight.codes, "fp8.weight_transposed", codes, down());
  if (scales > 0)
    plan_bytes(shared_.transposed_weight.scales, "fp8.weight_transposed.scales", scales, down());
}

// Memory that all adapters share.
void Transformer::plan_adapter_scratch() {
  int64_t ranks = 0, widest = 0;
  for (const Linear* linear : linears_) {
    if (linear->operands.has_adapter()) ranks = std::max(ranks, linear->operands.adapter().ranks());
    if (linear->operands.has_adapter()) widest = std::max(widest, linear->spec.site.in);
  }
  AdapterScratch& adapter = shared_.adapter;
  if (ranks > 0 && shape_.training) {
    planner_.add(adapter.dhidden, "lora.dhidden", numerics_.dense(), {shape_.tokens(), ranks},
                 MemoryCategory::Activations, down());
  }
  adapter.dropout.probability = static_cast<float>(finetuning_.adapters.dropout);
  if (ranks > 0 && adapter.dropout.probability > 0 && shape_.training) {
    planner_.add(adapter.dropout.scratch, "lora.dropout", numerics_.dense(), {shape_.tokens(), widest},
                 MemoryCategory::Activations, up_and_down());
  }
}

void Transformer::plan_bytes(Tensor& view, const std::string& name, int64_t bytes, Lifetime lifetime) {
  planner_.add(view, name, DType::U8, {bytes}, MemoryCategory::Activations, lifetime);
}

// Memory for the FP8 copies that live from the op that makes them to the product that reads them.
void Transformer::plan_fp8_scratch() {
  int64_t input_codes = 0, input_scales = 0, gradient_codes = 0, gradient_row_scales = 0,
          gradient_col_codes = 0, gradient_col_scales = 0;
  for (const Linear* linear : linears_) {
    if (!linear->spec.choice.any_fp8()) continue;
    const LinearSite& site = linear->spec.site;
    const Fp8Config settings = settings_of(site, numerics_.fp8);
    const QuantizeRule input_rule = quantize_rule(settings, Role::Input);
    const QuantizeRule gradient_rule = quantize_rule(settings, Role::Gradient);
    if (!linear->operands.adapter_keeps_input_codes()) {
      input_codes = std::max(input_codes, site.tokens * site.in);
      input_scales = std::max(input_scales, scale_bytes(input_rule.granularity, site.tokens, site.in));
    }
    gradient_codes = std::max(gradient_codes, site.tokens * site.out);
    gradient_row_scales =
        std::max(gradient_row_scales, scale_bytes(gradient_rule.granularity, site.tokens, site.out));
    if (!linear->operands.input_needed_colwise()) continue;  // no weight gradient in FP8
    gradient_col_codes = std::max(gradient_col_codes, site.tokens * site.out);
    gradient_col_scales =
        std::max(gradient_col_scales, scale_bytes(gradient_rule.granularity, site.out, site.tokens));
  }
  QuantizedScratch& fp8 = shared_.fp8;
  fp8.gradient_rowwise.shape = fp8.gradient_colwise.shape = {0};
  if (input_codes > 0) {
    plan_bytes(fp8.input_rowwise, "fp8.input", input_codes, up_and_down());
    plan_bytes(fp8.input_rowwise_scales, "fp8.input.scales", input_scales, up_and_down());
  }
  if (gradient_codes > 0 && shape_.training) {
    plan_bytes(fp8.gradient_rowwise, "fp8.gradient", gradient_codes, down());
    plan_bytes(fp8.gradient_rowwise_scales, "fp8.gradient.scales", gradient_row_scales, down());
  }
  if (gradient_col_codes > 0 && shape_.training) {
    plan_bytes(fp8.gradient_colwise, "fp8.gradient_transposed", gradient_col_codes, down());
    plan_bytes(fp8.gradient_colwise_scales, "fp8.gradient_transposed.scales", gradient_col_scales, down());
  }
}

void Transformer::plan_layers() {
  const DType dense = numerics_.dense();
  planner_.add(shared_.delta, "delta", dense, {shape_.tokens(), config_.width}, MemoryCategory::Activations,
               up_and_down());
  for (int64_t l = 0; l < config_.layers; ++l) {
    const Lifetime kept = {time().forward(l), time().backward(l)};
    planner_.add(blocks_[static_cast<size_t>(l)].attention_acts.residual,
                 fmt::format("layers.{}.residual_in", l), dense, {shape_.tokens(), config_.width},
                 MemoryCategory::Activations,
                 {l == 0 ? time().embedding() : kept.first, shape_.training ? kept.last : kept.first});
  }
  plan_part(&Block::attention, &Block::attention_acts, shared_.attention_acts, shared_.attention_inputs);
  plan_part(&Block::mlp, &Block::mlp_acts, shared_.mlp_acts, shared_.mlp_inputs);
}

// The activations of one part in all layers. Kept ones have a buffer per layer; the others share one buffer, one
// layer at a time. The same holds for the FP8 input copies that backward reads.
template <class Part>
void Transformer::plan_part(Part Block::*part, typename Part::Activations Block::*activations,
                            typename Part::Activations& shared, std::span<QuantizedBuffers> shared_inputs) {
  const auto category = MemoryCategory::Activations;
  const auto lifetime = [&](size_t l) {
    return Lifetime{time().forward(static_cast<int64_t>(l)), time().backward(static_cast<int64_t>(l))};
  };
  for (const ActivationEntry<Part>& entry :
       Part::activations(config_, keep_, shape_.tokens(), numerics_.dense())) {
    // A Linear may be dense in one layer and FP8 in another, so each layer decides for its own inputs.
    const auto kept_in = [&](Block& block) {
      return shape_.training && entry.kept &&
             (!entry.input_of || (block.*part.*entry.input_of).operands.input_needed_dense());
    };
    if (!std::all_of(blocks_.begin(), blocks_.end(), kept_in)) {
      planner_.add(shared.*entry.view, fmt::format("shared.{}", entry.name), entry.dtype, entry.shape,
                   category, up_and_down());
    }
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Tensor& view = blocks_[l].*activations.*entry.view;
      if (kept_in(blocks_[l])) {
        planner_.add(view, fmt::format("layers.{}.{}", l, entry.name), entry.dtype, entry.shape, category,
                     lifetime(l));
      } else {
        planner_.alias(view, shared.*entry.view, entry.dtype, entry.shape);
      }
    }
  }
  const std::vector<LinearEntry<Part>> linears = Part::linears(config_, keep_);
  for (size_t i = 0; i < linears.size(); ++i) {
    const LinearEntry<Part>& entry = linears[i];
    const bool kept = entry.input_kept && shape_.training;
    const bool any = std::any_of(blocks_.begin(), blocks_.end(), [&](Block& block) {
      return (block.*part.*entry.linear).operands.input_needed_fp8_later();
    });
    QuantizedBuffers& buffers = shared_inputs[i];
    if (any && !kept) {
      const Granularity granularity = quantize_rule(numerics_.fp8, Role::Input).granularity;
      const std::string name = fmt::format("shared.{}.input.fp8", entry.name);
      plan_bytes(buffers.codes, name, entry.in * shape_.tokens(), up_and_down());
      plan_bytes(buffers.scales, name + ".scales", scale_bytes(granularity, entry.in, shape_.tokens()),
                 up_and_down());
    }
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Linear& linear = blocks_[l].*part.*entry.linear;
      linear.operands.attach_scratch(planner_, shared_.fp8, shape_.tokens());
      linear.operands.attach_input(planner_, shape_.tokens(), lifetime(l), kept ? nullptr : &buffers);
      linear.operands.attach_adapter(planner_, shape_.tokens(), numerics_.dense(), lifetime(l),
                                     shared_.adapter);
      linear.weight.attach_transposed(planner_, shared_.transposed_weight);
    }
  }
}

void Transformer::plan_head() {
  const int64_t n = shape_.tokens();
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape, Lifetime lifetime) {
    planner_.add(view, name, dtype, shape, MemoryCategory::Activations, lifetime);
  };
  const Lifetime into_backward = {time().head(), time().head() + 1};
  add(final_.residual, "final.residual", numerics_.dense(), {n, config_.width},
      {time().head() - 1, time().head() + 1});
  if (config_.norm == NormKind::LayerNorm) add(final_.mean, "final.mean", DType::F32, {n}, into_backward);
  add(final_.inv, "final.inv", DType::F32, {n}, into_backward);
  head_.plan(planner_, shared_.fp8, time());
}

void Transformer::plan_gradients() {
  const int64_t n = shape_.tokens();
  const AttentionShape a = config_.attention();
  GradientBuffers& gradients = shared_.gradients;
  const auto add = [&](Tensor& view, const char* name, int64_t width) {
    planner_.add(view, name, numerics_.dense(), {n, width}, MemoryCategory::Activations, down());
  };
  add(gradients.dresidual, "dresidual", config_.width);
  add(gradients.dnormed, "dnormed", config_.width);
  add(gradients.dattended, "dattended", a.out_width());
  add(gradients.dqkv, "dqkv", a.qkv_width());
  add(gradients.dact, "dact", config_.ffn);
  add(gradients.dup, "dup", config_.up_width());
}

void Transformer::plan_workspace() {
  const int64_t n = shape_.tokens();
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape) {
    planner_.add(view, name, dtype, shape, MemoryCategory::Workspace, Lifetime::always());
  };
  const bool dropout = finetuning_.adapters.dropout > 0;
  inputs_.plan(planner_, n, dropout);
  if (dropout) planner_.alias(shared_.adapter.dropout.seed, inputs_.dropout_seed, DType::I32, {2});
  plan_staging();
  if (!config_.learned_positions)
    add(rope_table_, "rope.table", DType::F32, {shape_.length, config_.head_dim});

  std::vector<WorkspaceNeeds::Gemm> gemms;
  for (const Linear* linear : linears_) {
    const LinearSite& s = linear->spec.site;
    gemms.push_back({s.tokens, s.out, s.in});
    if (const LowRank& adapter = linear->operands.adapter()) {
      const std::vector<WorkspaceNeeds::Gemm> more = adapter.gemms(s.tokens, shape_.training);
      gemms.insert(gemms.end(), more.begin(), more.end());
    }
    if (!shape_.training) continue;
    gemms.push_back({s.tokens, s.in, s.out});
    if (linear->weight.trains()) gemms.push_back({s.out, s.in, s.tokens});
  }
  const WorkspaceNeeds needs{.gemms = gemms,
                             .dtype = numerics_.dense(),
                             .tokens = n,
                             .width = std::max({config_.width, config_.up_width(),
                                                config_.attention().qkv_width(), config_.padded_vocab()}),
                             .attention = config_.attention(),
                             .max_length = shape_.length,
                             .parameters = std::ssize(parameters_.all()),
                             .fp8 = scales_.count() > 0,
                             .narrow = has_adapters() && scales_.count() > 0};
  add(workspace_, "workspace", DType::U8, {device_.workspace_bytes(needs)});
}

// Memory to fill Linears that have only FP8 copies. Activations use it later.
void Transformer::plan_staging() {
  constexpr int64_t kStagingBytes = int64_t{64} << 20;
  int64_t bytes = 0;
  for (const Linear* linear : linears_) {
    if (linear->weight.parameter().storage.has_dense_rows()) continue;
    const int64_t row = linear->spec.site.in * static_cast<int64_t>(size_of(numerics_.dense()));
    bytes = std::max(bytes, row * linear->weight.fill_rows(kStagingBytes / row));
  }
  const Lifetime before = {time().embedding() - 1, time().embedding() - 1};
  if (bytes > 0) plan_bytes(staging_, "staging", bytes, before);
}

void Transformer::allocate() {
  require(device_.capabilities().computes, "[device] {} can only be planned for", device_.description());
  memory_.device = device_.allocate(plan().peak_bytes());
  if (plan().host_bytes() > 0) memory_.host = device_.allocate(plan().host_bytes(), Place::Host);
  planner_.bind(memory_.device.get(), memory_.host.get());
  device_.reserve_inputs(inputs_.staged_bytes() + head_.staged_bytes());
  scales_.initialise(device_);
  if (rope_table_) device_.copy_to_device(rope_table_, rope_table(config_, shape_.length).data());
  clear_sums();
}

}  // namespace octet
