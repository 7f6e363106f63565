#include "model/decoder.h"

#include <algorithm>
#include <bit>

namespace octet {
namespace {

constexpr int64_t kFewPositions = 512;

Tensor first_rows(const Tensor& tensor, int64_t rows) {
  Tensor view = tensor;
  view.shape = tensor.shape.rank() == 1 ? Shape{rows} : Shape{rows, tensor.cols()};
  return view;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const DecoderShape& shape, DType dtype, Device& device)
    : Decoder(config, shape, dtype, device, nullptr) {}

Decoder::Decoder(Transformer& trained, const DecoderShape& shape, Device& device)
    : Decoder(trained.config(), shape, trained.numerics().dense(), device, &trained) {}

Decoder::Decoder(const ModelConfig& config, const DecoderShape& shape, DType dtype, Device& device,
                 Transformer* trained)
    : config_(config),
      shape_(shape),
      dtype_(dtype),
      device_(device),
      trained_(trained),
      own_parameters_(
          trained ? nullptr
                  : std::make_unique<ParameterSet>(config, ParameterTypes{.weight = dtype}, false, planner_)),
      parameters_(trained ? trained->parameters() : *own_parameters_),
      lengths_(static_cast<size_t>(shape.sequences), 0) {
  config.validate();
  require(shape.sequences > 0 && shape.capacity > 0 && shape.chunk > 0,
          "[decoder] {} sequences of {} tokens in passes of {}, expected at least 1 of each", shape.sequences,
          shape.capacity, shape.chunk);
  require(!config.learned_positions || shape.capacity <= config.max_positions,
          "[model {}] a sequence of {} tokens is longer than the model's {} positions", config.name,
          shape.capacity, config.max_positions);
  make_linears();
  shape_.chunk = padded_tokens(shape.sequences * shape.capacity, round_up(shape.chunk, runs_fp8_ ? 16 : 1));
  plan_buffers();
  planner_.finish();
}

// Passes are padded to a few sizes, because a GPU's products are tuned per size. FP8 products need 16 rows.
int64_t Decoder::padded_tokens(int64_t tokens, int64_t most) const {
  const int64_t rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)));
  return std::min(std::max<int64_t>(rows, runs_fp8_ ? 16 : 1), most);
}

template <class Use>
void Decoder::for_linears(Use&& use) {
  for (Layer& layer : layers_) {
    for (Linear* linear : {&layer.attention.qkv, &layer.attention.out, &layer.mlp.up, &layer.mlp.down})
      use(*linear);
  }
  use(head_);
}

void Decoder::make_linears() {
  for (const Parameter& p : parameters_.all())
    require(p.storage.residency != Residency::PerLayer,
            "[decoder] {} is whole only while its layer is trained", p.spec.name);
  layers_.resize(static_cast<size_t>(config_.layers));
  const auto dense_linears = [&](auto& part, const std::string& layer) {
    for (const auto& entry :
         std::decay_t<decltype(part)>::linears(config_, KeepPolicy(Checkpointing::None))) {
      const std::string name = layer + entry.name;
      part.*entry.linear =
          Linear({.site = {.name = name, .out = entry.out, .in = entry.in}}, parameters_[name + ".weight"],
                 entry.bias ? &parameters_[name + ".bias"] : nullptr);
    }
  };
  wte_ = &parameters_["embedding.tokens"];
  if (config_.learned_positions) wpe_ = &parameters_["embedding.positions"];
  final_norm_ = Norm::find(parameters_, "final_norm", config_);
  for (int64_t l = 0; l < config_.layers; ++l) {
    const std::string name = fmt::format("layers.{}.", l);
    Layer& layer = layers_[static_cast<size_t>(l)];
    layer.attention.find_norms(parameters_, name, config_);
    layer.mlp.norm = Norm::find(parameters_, name + "mlp.norm", config_);
    if (trained_) {
      const Block& block = trained_->blocks()[static_cast<size_t>(l)];
      layer.attention.qkv = block.attention.qkv, layer.attention.out = block.attention.out;
      layer.mlp.up = block.mlp.up, layer.mlp.down = block.mlp.down;
    } else {
      dense_linears(layer.attention, name);
      dense_linears(layer.mlp, name);
    }
  }
  if (trained_) {
    head_ = *trained_->linears().back();
  } else {
    head_ = Linear({.site = {.name = "head", .out = config_.padded_vocab(), .in = config_.width}},
                   config_.tied_head ? *wte_ : parameters_["head.weight"], nullptr);
  }
  for_linears([&](const Linear& linear) { runs_fp8_ |= !linear.weight.has_dense(); });
}

// The memory between an op and the product that reads it.
void Decoder::plan_linears() {
  const int64_t n = shape_.chunk;
  int64_t codes = 0, scales = 0;
  for_linears([&](const Linear& linear) {
    codes = std::max(codes, n * linear.spec.site.in);
    scales = std::max(scales, 4 * n * div_up(linear.spec.site.in, 32));
  });
  const auto add_bytes = [&](Tensor& view, const char* name, int64_t bytes) {
    planner_.add(view, name, DType::U8, {bytes}, MemoryCategory::Activations, Lifetime::always());
  };
  if (runs_fp8_) {
    add_bytes(fp8_.input_rowwise, "fp8.input", codes);
    add_bytes(fp8_.input_rowwise_scales, "fp8.input.scales", scales);
  }
  for_linears([&](Linear& linear) { linear.operands.attach_decoding(planner_, fp8_, n, dtype_, adapters_); });
}

void Decoder::plan_buffers() {
  const AttentionShape a = config_.attention();
  const auto add = [&](Tensor& view, const std::string& name, DType dtype, Shape shape) {
    planner_.add(view, name, dtype, shape, MemoryCategory::Activations, Lifetime::always());
  };

  for (int64_t l = 0; l < config_.layers; ++l) {
    const std::string name = fmt::format("layers.{}.", l);
    Layer& layer = layers_[static_cast<size_t>(l)];
    const Shape cache = {shape_.sequences, shape_.capacity, a.kv_heads * a.head_dim};
    add(layer.cache.keys, name + "keys", dtype_, cache);
    add(layer.cache.values, name + "values", dtype_, cache);
  }
  plan_linears();

  const int64_t n = shape_.chunk, c = config_.width;
  if (config_.norm == NormKind::LayerNorm) add(mean_, "mean", DType::F32, {n});
  add(inv_, "inv", DType::F32, {n});
  add(residual_, "residual", dtype_, {n, c});
  add(delta_, "delta", dtype_, {n, c});
  add(normed_, "normed", dtype_, {n, c});
  add(qkv_, "qkv", dtype_, {n, a.qkv_width()});
  add(attended_, "attended", dtype_, {n, a.out_width()});
  add(up_, "up", dtype_, {n, config_.up_width()});
  add(act_, "act", dtype_, {n, config_.ffn});
  head_rows_ = std::min<int64_t>(padded_tokens(shape_.sequences, 16), shape_.chunk);
  // Logits may be wanted of every token, in groups of which the last is padded.
  add(inputs_, "inputs", DType::I32, {4 * n + head_rows_});
  add(choices_, "choices", DType::U8, {shape_.sequences * static_cast<int64_t>(sizeof(TokenChoice))});
  add(chosen_, "chosen", DType::I32, {shape_.sequences});
  add(head_in_, "head.input", dtype_, {head_rows_, c});
  add(logits_, "logits", DType::F32, {head_rows_, config_.padded_vocab()});
  if (!config_.learned_positions)
    add(rope_table_, "rope.table", DType::F32, {shape_.capacity, config_.head_dim});

  std::vector<WorkspaceNeeds::Gemm> gemms = {{n, a.qkv_width(), c},
                                             {n, c, a.out_width()},
                                             {n, config_.up_width(), c},
                                             {n, c, config_.ffn},
                                             {head_rows_, config_.padded_vocab(), c}};
  for_linears([&](const Linear& linear) {
    if (!linear.operands.has_adapter()) return;
    const std::vector<WorkspaceNeeds::Gemm> more = linear.operands.adapter().gemms(n, false);
    gemms.insert(gemms.end(), more.begin(), more.end());
  });
  const WorkspaceNeeds needs{
      .gemms = gemms,
      .dtype = dtype_,
      .tokens = n,
      .width = std::max({c, config_.up_width(), a.qkv_width(), config_.padded_vocab()}),
      .attention = a,
      .max_length = shape_.capacity,
      .parameters = std::ssize(parameters_.all()),
      .fp8 = runs_fp8_,
      .narrow = runs_fp8_,
      .decode = true};
  planner_.add(workspace_, "workspace", DType::U8, {device_.workspace_bytes(needs)},
               MemoryCategory::Workspace, Lifetime::always());
}

void Decoder::allocate() {
  // The Linears were copied when the decoder was made, with their views of the weights.
  for_linears([&](Linear& linear) {
    const bool has_weight = linear.weight.has_dense() ? bool(linear.weight.parameter().weight)
                                                      : linear.weight.copies() != nullptr;
    require(!trained_ || has_weight, "[decoder] was made before allocate() of the model in training");
  });
  memory_ = device_.allocate(plan().peak_bytes());
  planner_.bind(memory_.get());
  if (rope_table_) device_.copy_to_device(rope_table_, rope_table(config_, shape_.capacity).data());
}

std::vector<Decoder::Token> Decoder::append(std::span<const Continuation> continuations, bool every_token) {
  require(memory_ != nullptr, "[decoder] read() before allocate()");
  std::vector<Token> tokens;
  for (const Continuation& c : continuations) {
    require(c.sequence >= 0 && c.sequence < shape_.sequences && !c.ids.empty(),
            "[decoder] {} ids for sequence {} of {}, expected at least one", c.ids.size(), c.sequence,
            shape_.sequences);
    int64_t& length = lengths_[static_cast<size_t>(c.sequence)];
    require(length + std::ssize(c.ids) <= shape_.capacity,
            "[decoder] {} tokens after {} in sequence {}, which holds at most {}", c.ids.size(), length,
            c.sequence, shape_.capacity);
    for (size_t i = 0; i < c.ids.size(); ++i) {
      require(c.ids[i] >= 0 && c.ids[i] < config_.vocab, "[decoder] token id {}, expected 0 to {}", c.ids[i],
              config_.vocab - 1);
      tokens.push_back({c.ids[i], static_cast<int32_t>(c.sequence), static_cast<int32_t>(length++),
                        every_token || i + 1 == c.ids.size()});
    }
  }
  return tokens;
}

template <class Use>
void Decoder::run(std::span<const Token> tokens, const Use& use) {
  ops().set_workspace(workspace_);  // others may use the same device in between
  if (trained_) trained_->scales().push_slots(device_);
  const auto restore = [&] {
    if (trained_) trained_->scales().pop_slots(device_);
  };
  try {
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(shape_.chunk)) {
      const size_t count = std::min(tokens.size() - begin, static_cast<size_t>(shape_.chunk));
      use(send(tokens.subspan(begin, count)));
    }
  } catch (...) {  // training goes on without the text
    restore();
    throw;
  }
  restore();
}

std::vector<Decoder::Logits> Decoder::read(std::span<const Continuation> continuations, bool every_token) {
  const auto padded = static_cast<size_t>(config_.padded_vocab());
  std::vector<Logits> logits;
  std::vector<float> values;
  run(append(continuations, every_token), [&](const Pass& pass) {
    layers(pass);
    for (const HeadRows& wanted : pass.wanted) {
      const Tensor out = head(wanted);
      values.resize(static_cast<size_t>(wanted.count) * padded);
      device_.copy_to_host(values.data(), out);
      for (int64_t i = 0; i < wanted.count; ++i) {
        const auto row = values.begin() + i * static_cast<std::ptrdiff_t>(padded);
        logits.emplace_back(row, row + config_.vocab);
      }
    }
  });
  return logits;
}

std::vector<int32_t> Decoder::choose(std::span<const Continuation> continuations,
                                     std::span<const TokenChoice> choices) {
  require(choices.size() == continuations.size(), "[decoder] {} choices for {} continuations", choices.size(),
          continuations.size());
  const std::vector<Token> tokens = append(continuations, false);
  constexpr int64_t kEach = sizeof(TokenChoice);
  const int64_t count = std::ssize(choices);
  device_.copy_to_device(choices_.part(0, kEach * count), choices.data());
  int64_t first = 0;  // continuations whose tokens are chosen
  run(tokens, [&](const Pass& pass) {
    const auto work = [&] {
      layers(pass);
      int64_t next = first;
      for (const HeadRows& wanted : pass.wanted) {
        ops().choose_tokens(chosen_.part(next, wanted.count), head(wanted), config_.vocab,
                            choices_.part(kEach * next, kEach * wanted.count));
        next += wanted.count;
      }
    };
    // The ops of a model in training may change.
    if (trained_) {
      work();
    } else {
      device_.repeat(fmt::format("decoder {}: {} tokens, {} of {} chosen, {} positions", serial_,
                                 pass.tokens.numel(), pass.chosen(), first, pass.longest),
                     work);
    }
    first += pass.chosen();
  });
  std::vector<int32_t> ids(choices.size());
  device_.copy_to_host(ids.data(), chosen_.part(0, count));
  return ids;
}

Decoder::Pass Decoder::send(std::span<const Token> tokens) {
  const int64_t n = padded_tokens(std::ssize(tokens), shape_.chunk);
  Pass pass{.tokens = inputs_.part(0, n),
            .sequences = inputs_.part(n, n),
            .positions = inputs_.part(2 * n, n),
            .longest = 1};
  std::vector<int32_t> ids(static_cast<size_t>(n), 0), sequences(ids.size(), -1), positions(ids.size(), 0);
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ids[i] = tokens[i].id;
    sequences[i] = tokens[i].sequence;
    positions[i] = tokens[i].position;
    pass.longest = std::max<int64_t>(pass.longest, tokens[i].position + 1);
    if (tokens[i].wanted) wanted.push_back(static_cast<int32_t>(i));
  }
  // Few different values, so that recorded passes are replayed.
  const auto longest = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(pass.longest)));
  pass.longest = std::min(std::max(longest, kFewPositions), shape_.capacity);
  std::vector<int32_t> inputs;
  for (const std::vector<int32_t>* part : {&ids, &sequences, &positions})
    inputs.insert(inputs.end(), part->begin(), part->end());
  for (int64_t begin = 0; begin < std::ssize(wanted); begin += head_rows_) {
    const int64_t count = std::min(std::ssize(wanted) - begin, head_rows_);
    const int64_t rows = padded_tokens(count, head_rows_);
    pass.wanted.push_back({inputs_.part(std::ssize(inputs), rows), count});
    inputs.insert(inputs.end(), wanted.begin() + begin, wanted.begin() + begin + count);
    inputs.insert(inputs.end(), static_cast<size_t>(rows - count), -1);
  }
  device_.copy_to_device(inputs_.part(0, std::ssize(inputs)), inputs.data());
  return pass;
}

void Decoder::layers(const Pass& pass) {
  const int64_t n = pass.tokens.numel();
  const auto rows = [n](const Tensor& tensor) { return tensor ? first_rows(tensor, n) : Tensor{}; };
  const Tensor residual = rows(residual_), delta = rows(delta_), normed = rows(normed_);
  const LayerPass layer_pass{.ops = ops(),
                             .config = config_,
                             .keep = KeepPolicy(Checkpointing::None),
                             .fp8 = false,
                             .positions = pass.positions,
                             .rope_table = rope_table_,
                             .sequences = pass.sequences,
                             .longest = pass.longest};

  // All layers use the same buffers, because nothing is kept for backward.
  const AttentionPart::Activations attention{.residual = residual,
                                             .mean = rows(mean_),
                                             .inv = rows(inv_),
                                             .normed = normed,
                                             .qkv = rows(qkv_),
                                             .attended = rows(attended_)};
  const MlpPart::Activations mlp{.residual = residual,
                                 .mean = rows(mean_),
                                 .inv = rows(inv_),
                                 .normed = normed,
                                 .up = rows(up_),
                                 .act = rows(act_)};
  for (Layer& layer : layers_) {
    for (Linear* linear : {&layer.attention.qkv, &layer.attention.out, &layer.mlp.up, &layer.mlp.down})
      linear->operands.set_decoding_rows(n);
  }
  ops().embedding_forward(residual, pass.tokens, pass.positions, wte_->weight,
                          wpe_ ? wpe_->weight : Tensor{});
  Tensor added;  // what the previous layer adds to the residual; absent before the first
  for (Layer& layer : layers_) {
    layer.attention.forward(layer_pass, attention, residual, added, delta, &layer.cache);
    layer.mlp.forward(layer_pass, mlp, residual, delta, delta);
    added = delta;
  }
  final_norm_.forward(layer_pass, {.dense = normed}, residual, rows(mean_), rows(inv_), residual, delta);
}

Tensor Decoder::head(const HeadRows& wanted) {
  const int64_t rows = wanted.rows.numel();
  const Tensor in = head_in_.row_range(0, rows), out = logits_.row_range(0, rows);
  ops().gather_rows(in, normed_, wanted.rows);
  head_.operands.set_decoding_rows(rows);
  const Operand x = head_.input(in, false);
  if (x.fp8) ops().quantize(x);
  head_.forward(ops(), out, x);
  return out.row_range(0, wanted.count);
}

}  // namespace octet
