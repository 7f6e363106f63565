// The tables of a Transformer: which buffers it has, how long each is needed, and where they lie.

#include <algorithm>
#include <atomic>

#include "model/transformer.h"

namespace octet {
namespace {

ParameterTypes parameter_types(const Numerics& numerics) {
  return {.weight = numerics.dense(),
          .gradient = numerics.gradients,
          .moments = numerics.moments,
          .stochastic = numerics.stochastic_weights};
}

std::vector<std::string> hf_names(const Parameter& weight) {
  std::vector<std::string> names;
  for (const HfPart& part : weight.spec.hf) names.push_back(part.name.substr(0, part.name.rfind(".weight")));
  return names;
}

// Rows of a chunk of the head. As few chunks as the memory allows, all of about one size: a short last one would run its
// products badly. Large chunks are whole GEMM tiles where that does not spoil either.
int64_t head_chunk_rows(int64_t tokens, int64_t most_rows) {
  const int64_t even_rows = div_up(tokens, div_up(tokens, most_rows));
  const int64_t tiled_rows = round_up(even_rows, 128);
  const int64_t last_rows = tokens - (div_up(tokens, tiled_rows) - 1) * tiled_rows;
  const bool tiled = even_rows >= 1024 && tiled_rows <= most_rows && 4 * last_rows >= 3 * tiled_rows;
  return std::min(tiled ? tiled_rows : round_up(even_rows, 16), tokens);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const RunShape& shape, const Numerics& numerics,
                         Device& device, ParameterSet* weights)
    : config_(config),
      shape_(shape),
      numerics_(numerics),
      device_(device),
      keep_(shape.checkpointing),
      time_{config.layers},
      own_parameters_(weights ? nullptr
                              : std::make_unique<ParameterSet>(config, parameter_types(numerics),
                                                               shape.training, planner_)),
      parameters_(weights ? *weights : *own_parameters_),
      scales_(numerics.fp8) {
  static std::atomic<int64_t> made{0};
  number_ = made++;
  config.validate();
  require(shape.rows > 0 && shape.length > 0, "[model] a micro-batch of {} x {} tokens has none", shape.rows,
          shape.length);
  require(!config.learned_positions || shape.length <= config.max_positions,
          "[model {}] a sequence of {} tokens is longer than the model's {} positions", config.name,
          shape.length, config.max_positions);
  plan_parameters();
  plan_activations();
  scales_.plan(planner_);
  plan_workspace();
  planner_.finish();
}

void Transformer::plan_parameters() {
  const AttentionShape a = config_.attention();
  const auto find = [&](const std::string& name) { return &parameters_[name]; };
  const auto norm = [&](const std::string& name) {
    return Norm{find(name + ".gain"), config_.norm == NormKind::LayerNorm ? find(name + ".bias") : nullptr};
  };

  wte_ = find("embedding.tokens");
  if (config_.learned_positions) wpe_ = find("embedding.positions");
  final_norm_ = norm("final_norm");

  struct Site {
    Linear* linear;
    LinearSite site;
    Parameter* weight;
    Parameter* bias;
  };
  std::vector<Site> places;
  blocks_.resize(static_cast<size_t>(config_.layers));
  const auto place = [&](Linear& linear, int64_t layer, const char* part, int64_t out, int64_t in,
                         bool bias) {
    const std::string name = fmt::format("layers.{}.{}", layer, part);
    Parameter* weight = find(name + ".weight");
    places.push_back(
        {&linear,
         {name, hf_names(*weight), layer, config_.layers, out, in, shape_.tokens(), WorkKind::BaseMatrix},
         weight,
         bias ? find(name + ".bias") : nullptr});
  };
  for (int64_t l = 0; l < config_.layers; ++l) {
    Block& block = blocks_[static_cast<size_t>(l)];
    block.attention_norm = norm(fmt::format("layers.{}.attention.norm", l));
    block.mlp_norm = norm(fmt::format("layers.{}.mlp.norm", l));
    if (config_.qk_norm) {
      block.q_norm.gain = find(fmt::format("layers.{}.attention.q_norm.gain", l));
      block.k_norm.gain = find(fmt::format("layers.{}.attention.k_norm.gain", l));
    }
    place(block.qkv, l, "attention.qkv", a.qkv_width(), config_.width, config_.qkv_bias);
    place(block.out, l, "attention.out", config_.width, a.out_width(), config_.out_bias);
    place(block.up, l, "mlp.up", config_.up_width(), config_.width, config_.out_bias);
    place(block.down, l, "mlp.down", config_.width, config_.ffn, config_.out_bias);
  }

  const int64_t row_bytes = config_.padded_vocab() * static_cast<int64_t>(size_of(numerics_.dense()));
  const int64_t most_rows = std::max<int64_t>(shape_.head_chunk_bytes / row_bytes / 16 * 16, 16);
  head_rows_ = head_chunk_rows(shape_.tokens(), most_rows);
  // A last chunk that is no multiple of 16 must count in the choice: then the site is the whole micro-batch.
  const int64_t head_tokens = shape_.tokens() % 16 == 0 ? head_rows_ : shape_.tokens();
  Parameter* head_weight = config_.tied_head ? wte_ : find("head.weight");
  places.push_back({&head_,
                    {"head",
                     {"lm_head"},
                     -1,
                     config_.layers,
                     config_.padded_vocab(),
                     config_.width,
                     head_tokens,
                     WorkKind::Head},
                    head_weight,
                    nullptr});

  std::vector<LinearSite> sites;
  for (const Site& p : places) sites.push_back(p.site);
  std::vector<LinearChoice> choices = choose_precision(sites, numerics_.precision, numerics_.fp8);
  for (size_t i = 0; i < places.size(); ++i) {
    Site& p = places[i];
    *p.linear = Linear(std::move(p.site), std::move(choices[i]), *p.weight, p.bias);
    p.linear->plan(planner_, scales_, shape_.training);
    linears_.push_back(p.linear);
  }
}

void Transformer::plan_activations() {
  const int64_t n = shape_.tokens(), c = config_.width;
  const AttentionShape a = config_.attention();
  const DType dense = numerics_.dense();
  const auto category = MemoryCategory::Activations;
  const Lifetime blocks_up_and_down = {time_.forward(0), time_.end()};
  const Lifetime down = {time_.head(), time_.end()};
  const bool layer_norm = config_.norm == NormKind::LayerNorm;

  // One list of a block's activations, read twice: for the shared copies of what is recomputed and for every block.
  struct Entry {
    Tensor Block::*view;
    const char* name;
    DType dtype;
    Shape shape;
    bool kept;
  };
  std::vector<Entry> entries = {
      {&Block::attention_inv, "attention.inv", DType::F32, {n}, keep_.attention},
      {&Block::attention_normed, "attention.normed", dense, {n, c}, keep_.norm_out},
      {&Block::qkv_out, "attention.qkv", dense, {n, a.qkv_width()}, keep_.attention},
      {&Block::attended, "attention.out", dense, {n, a.out_width()}, keep_.attention},
      {&Block::lse, "attention.lse", DType::F32, {a.heads, n}, keep_.attention},
      {&Block::residual_mid, "residual_mid", dense, {n, c}, keep_.attention},
      {&Block::mlp_inv, "mlp.inv", DType::F32, {n}, keep_.attention},
      {&Block::mlp_normed, "mlp.normed", dense, {n, c}, keep_.norm_out},
      {&Block::up_out, "mlp.up", dense, {n, config_.up_width()}, keep_.up_out},
      {&Block::act_out, "mlp.act", dense, {n, config_.ffn}, keep_.act_out},
  };
  if (config_.qk_norm && shape_.training) {
    const int64_t heads = a.heads + a.kv_heads;
    entries.push_back(
        {&Block::qk_raw, "attention.qk_raw", dense, {n, heads * a.head_dim}, keep_.attention});
    entries.push_back({&Block::qk_inv, "attention.qk_inv", DType::F32, {n, heads}, keep_.attention});
  }
  if (layer_norm) {
    entries.push_back({&Block::attention_mean, "attention.mean", DType::F32, {n}, keep_.attention});
    entries.push_back({&Block::mlp_mean, "mlp.mean", DType::F32, {n}, keep_.attention});
  }
  // A Linear may be dense in one layer and FP8 in another, so each block decides for its own dense inputs.
  const auto kept_in = [&](const Entry& entry, Block& block) {
    if (!shape_.training || !entry.kept) return false;
    if (entry.view == &Block::attention_normed) return block.qkv.input_needed_dense();
    if (entry.view == &Block::mlp_normed) return block.up.input_needed_dense();
    if (entry.view == &Block::act_out) return block.down.input_needed_dense();
    return true;
  };
  for (const Entry& entry : entries) {
    const bool any_shared =
        std::any_of(blocks_.begin(), blocks_.end(), [&](Block& block) { return !kept_in(entry, block); });
    if (any_shared) {
      planner_.add(shared_.recomputed.*entry.view, fmt::format("shared.{}", entry.name), entry.dtype,
                   entry.shape, category, blocks_up_and_down);
    }
  }

  // FP8 copies of the inputs that wgrad reads, and the scratch of all others.
  struct Input {
    Linear Block::*linear;
    ColwiseBuffers SharedBuffers::*shared;
    const char* name;
    bool kept;
  };
  const Input inputs[] = {
      {&Block::qkv, &SharedBuffers::qkv_input, "qkv", keep_.norm_out},
      {&Block::out, &SharedBuffers::out_input, "out", keep_.attention},
      {&Block::up, &SharedBuffers::up_input, "up", keep_.norm_out},
      {&Block::down, &SharedBuffers::down_input, "down", keep_.act_out},
  };
  const QuantizeRule input_rule = quantize_rule(numerics_.fp8, Role::Input);
  const QuantizeRule gradient_rule = quantize_rule(numerics_.fp8, Role::Gradient);
  const auto plan_bytes = [&](Tensor& view, const std::string& name, int64_t bytes, Lifetime lifetime) {
    planner_.add(view, name, DType::U8, {bytes}, category, lifetime);
  };
  const auto scale_bytes = [](Granularity granularity, int64_t rows, int64_t depth) {
    const Shape shape = scales_shape(granularity, rows, depth);
    return shape.rank() == 0 ? 0 : shape.numel() * static_cast<int64_t>(size_of(scales_dtype(granularity)));
  };

  int64_t input_codes = 0, input_scales = 0, gradient_codes = 0, gradient_row_scales = 0,
          gradient_col_scales = 0;
  for (Linear* linear : linears_) {
    if (!linear->choice().any_fp8()) continue;
    const LinearSite& site = linear->site();
    input_codes = std::max(input_codes, site.tokens * site.in);
    input_scales = std::max(input_scales, scale_bytes(input_rule.granularity, site.tokens, site.in));
    gradient_codes = std::max(gradient_codes, site.tokens * site.out);
    gradient_row_scales =
        std::max(gradient_row_scales, scale_bytes(gradient_rule.granularity, site.tokens, site.out));
    gradient_col_scales =
        std::max(gradient_col_scales, scale_bytes(gradient_rule.granularity, site.out, site.tokens));
  }
  QuantizedScratch& fp8 = shared_.fp8;
  fp8.gradient_rowwise.shape = fp8.gradient_colwise.shape = {0};
  if (input_codes > 0) {
    plan_bytes(fp8.input_rowwise, "fp8.input", input_codes, blocks_up_and_down);
    plan_bytes(fp8.input_rowwise_scales, "fp8.input.scales", input_scales, blocks_up_and_down);
  }
  if (gradient_codes > 0 && shape_.training) {
    plan_bytes(fp8.gradient_rowwise, "fp8.gradient", gradient_codes, down);
    plan_bytes(fp8.gradient_rowwise_scales, "fp8.gradient.scales", gradient_row_scales, down);
    plan_bytes(fp8.gradient_colwise, "fp8.gradient_transposed", gradient_codes, down);
    plan_bytes(fp8.gradient_colwise_scales, "fp8.gradient_transposed.scales", gradient_col_scales, down);
  }
  for (const Input& input : inputs) {
    const bool any_fp8 = std::any_of(blocks_.begin(), blocks_.end(), [&](Block& block) {
      return (block.*input.linear).choice()[Product::Wgrad].fp8;
    });
    if (!any_fp8 || (input.kept && shape_.training)) continue;
    const int64_t width = (blocks_[0].*input.linear).site().in;
    ColwiseBuffers& buffers = shared_.*input.shared;
    plan_bytes(buffers.codes, fmt::format("shared.{}.input.fp8_transposed", input.name), width * n,
               blocks_up_and_down);
    plan_bytes(buffers.scales, fmt::format("shared.{}.input.fp8_transposed.scales", input.name),
               scale_bytes(input_rule.granularity, width, n), blocks_up_and_down);
  }

  for (int64_t l = 0; l < config_.layers; ++l) {
    Block& block = blocks_[static_cast<size_t>(l)];
    const Lifetime kept = {time_.forward(l), time_.backward(l)};
    const Lifetime residual = {l == 0 ? time_.embedding() : kept.first,
                               shape_.training ? kept.last : kept.first};
    planner_.add(block.residual_in, fmt::format("layers.{}.residual_in", l), dense, {n, c}, category,
                 residual);
    for (const Entry& entry : entries) {
      if (kept_in(entry, block)) {
        planner_.add(block.*entry.view, fmt::format("layers.{}.{}", l, entry.name), entry.dtype, entry.shape,
                     category, kept);
      } else {
        planner_.alias(block.*entry.view, shared_.recomputed.*entry.view, entry.dtype, entry.shape);
      }
    }
    for (const Input& input : inputs) {
      Linear& linear = block.*input.linear;
      linear.attach_scratch(planner_, fp8, n);
      linear.attach_input(planner_, n, kept,
                          input.kept && shape_.training ? nullptr : &(shared_.*input.shared));
    }
  }

  const Lifetime at_head = {time_.head(), time_.head()};
  head_.attach_scratch(planner_, fp8, head_rows_);
  head_.attach_input(planner_, head_rows_, at_head, nullptr);
  planner_.add(final_residual_, "final.residual", dense, {n, c}, category,
               {time_.head() - 1, time_.head() + 1});
  if (layer_norm)
    planner_.add(final_mean_, "final.mean", DType::F32, {n}, category, {time_.head(), time_.head() + 1});
  planner_.add(final_inv_, "final.inv", DType::F32, {n}, category, {time_.head(), time_.head() + 1});
  planner_.add(final_normed_, "final.normed", dense, {n, c}, category, {time_.head(), time_.head() + 1});
  planner_.add(logits_, "logits", dense, {head_rows_, config_.padded_vocab()}, category, at_head);
  planner_.add(shared_.delta, "delta", dense, {n, c}, category, blocks_up_and_down);
  if (shape_.training) {
    planner_.add(dfinal_normed_, "final.dnormed", dense, {n, c}, category, {time_.head(), time_.head() + 1});
    planner_.add(shared_.dresidual, "dresidual", dense, {n, c}, category, down);
    planner_.add(shared_.dnormed, "dnormed", dense, {n, c}, category, down);
    planner_.add(shared_.dattended, "dattended", dense, {n, a.out_width()}, category, down);
    planner_.add(shared_.dqkv, "dqkv", dense, {n, a.qkv_width()}, category, down);
    planner_.add(shared_.dact, "dact", dense, {n, config_.ffn}, category, down);
    planner_.add(shared_.dup, "dup", dense, {n, config_.up_width()}, category, down);
  }
}

void Transformer::plan_workspace() {
  const int64_t n = shape_.tokens();
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape) {
    planner_.add(view, name, dtype, shape, MemoryCategory::Workspace, Lifetime::always());
  };
  add(tokens_, "batch.tokens", DType::I32, {n});
  add(targets_, "batch.targets", DType::I32, {n});
  add(positions_, "batch.positions", DType::I32, {n});
  add(document_starts_, "batch.document_starts", DType::I32, {n + 1});
  if (!config_.learned_positions)
    add(rope_table_, "rope.table", DType::F32, {shape_.length, config_.head_dim});
  add(loss_, "loss", DType::F32, {n});
  add(penalty_, "penalty", DType::F32, {n});
  add(correct_, "correct", DType::I32, {n});
  add(sums_, "sums", DType::F32, {2});

  std::vector<WorkspaceNeeds::Gemm> gemms;
  for (const Linear* linear : linears_) {
    const LinearSite& s = linear->site();
    gemms.push_back({s.tokens, s.out, s.in});
    if (!shape_.training) continue;
    gemms.push_back({s.tokens, s.in, s.out});
    gemms.push_back({s.out, s.in, s.tokens});
  }
  const WorkspaceNeeds needs{.gemms = gemms,
                             .dtype = numerics_.dense(),
                             .tokens = n,
                             .width = std::max({config_.width, config_.up_width(),
                                                config_.attention().qkv_width(), config_.padded_vocab()}),
                             .attention = config_.attention(),
                             .max_length = shape_.length,
                             .parameters = std::ssize(parameters_.all()),
                             .fp8 = scales_.count() > 0};
  add(workspace_, "workspace", DType::U8, {device_.workspace_bytes(needs)});
}

void Transformer::allocate() {
  memory_ = device_.allocate(plan().peak_bytes());
  allocated_bytes_ = plan().peak_bytes();
  planner_.bind(memory_.get());
  scales_.initialise(device_);
  for (Linear* linear : linears_) linear->bind(scales_);
  if (rope_table_) device_.copy_to_device(rope_table_, rope_table(config_, shape_.length).data());
  clear_sums();
}

}  // namespace octet
