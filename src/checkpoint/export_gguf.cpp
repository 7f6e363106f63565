#include <algorithm>
#include <filesystem>

#include "base/input_errors.h"
#include "base/log.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/export.h"
#include "checkpoint/export_tokenizer_choice.h"
#include "checkpoint/model_weights.h"
#include "data/tokenizer/stream_decoder.h"
#include "hf/gguf_model.h"
#include "hf/gguf_tokenizer.h"
#include "io/temporary_file.h"
#include "model/family.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// Reads the rows of tensors from the weights of a model.
class GgufRows {
 public:
  GgufRows(const ModelConfig& config, std::span<const ParameterSpec> table, const ModelWeights& weights,
           const std::vector<GgufSource>& sources, const std::vector<GgufTensor>& tensors)
      : factors_(rope_factors(config)),
        table_(table),
        weights_(weights),
        sources_(sources),
        tensors_(tensors) {}

  std::vector<float> operator()(size_t tensor, int64_t begin, int64_t rows) const {
    const GgufSource& source = sources_[tensor];
    const int64_t columns = tensors_[tensor].columns;
    if (source.parameter == GgufSource::kRopeFactors) return factors_;
    const ParameterSpec& spec = table_[source.parameter];
    // A vector counts as rows of one element there.
    if (tensors_[tensor].rows == 0 && source.head_dim == 0)
      return weights_.rows(spec, source.row_begin, columns);
    if (source.head_dim == 0) return weights_.rows(spec, source.row_begin + begin, rows);
    // Whole heads, because rows move inside their head.
    const int64_t width = tensors_[tensor].rows == 0 ? 1 : columns;
    const int64_t count = tensors_[tensor].rows == 0 ? columns : rows;
    const int64_t first = begin / source.head_dim * source.head_dim;
    const int64_t end = (begin + count + source.head_dim - 1) / source.head_dim * source.head_dim;
    const std::vector<float> heads = weights_.rows(spec, source.row_begin + first, end - first);
    std::vector<float> result;
    result.reserve(static_cast<size_t>(count * width));
    for (int64_t row = begin; row < begin + count; ++row) {
      const auto from = heads.begin() + (source.source_row(row) - source.row_begin - first) * width;
      result.insert(result.end(), from, from + width);
    }
    return result;
  }

 private:
  std::vector<float> factors_;
  std::span<const ParameterSpec> table_;
  const ModelWeights& weights_;
  const std::vector<GgufSource>& sources_;
  const std::vector<GgufTensor>& tensors_;
};

// The folder of the model or of its run: not that of a checkpoint in it, and not the commit in the hub's cache.
std::string name_of_model(const ModelFolder& model) {
  fs::path path = fs::absolute(model.adapter ? model.adapter->folder : model.folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  constexpr std::string_view kHubFolder = "models--";
  if (path.parent_path().filename() == "snapshots") {
    const std::string hub = path.parent_path().parent_path().filename().string();
    if (hub.starts_with(kHubFolder)) return hub.substr(hub.rfind("--") + 2);
  }
  const bool is_checkpoint =
      model.adapter ? model.adapter->checkpoint.has_value() : model.checkpoint.has_value();
  if (is_checkpoint) {
    path = path.parent_path();
    if (std::ranges::find(kCheckpointFolders, path.filename()) != std::end(kCheckpointFolders))
      path = path.parent_path();
  }
  return repair_utf8(path.filename().string());
}

void warn_of_differences(const ModelConfig& config) {
  if (config.window > 0 && config.window < config.max_positions)
    log_warning(
        "llama.cpp does not know the sliding window of this family: texts of more than {} tokens give other "
        "results there",
        config.window);
}

// A tokenizer that is given brings its own template. Without one, that of the model stays.
std::string chat_jinja(const ModelFolder& model, const ExportOptions& options) {
  if (!options.tokenizer.empty()) {
    ModelFolder given;
    given.tokenizer = options.tokenizer;
    if (std::string jinja = find_chat_jinja(given); !jinja.empty()) return jinja;
  }
  return find_chat_jinja(model);
}

}  // namespace

Exported export_gguf(Env& env, const ModelFolder& model, const std::string& output, GgmlType type,
                     const ExportOptions& options) {
  if (env.exists(output)) fail_config("[{}] already exists; choose another --output", output);
  ModelConfig config = model.config;
  if (config.family->gguf_architecture.empty())
    fail_config("[{}] llama.cpp has no architecture for {}", model.source, config.family->architecture);
  const TokenizerChoice tokenizer = reading_input([&] { return choose_tokenizer(model, options, config); });
  const std::vector<ParameterSpec> table = parameter_table(config);
  const std::unique_ptr<Device> cpu = make_cpu_device(0);
  ModelWeights weights = reading_input([&] { return ModelWeights(model, table, *cpu); });
  // bf16 has the weights as the run computes with them; all others are made of the exact ones.
  if (type != GgmlType::BF16 && model.checkpoint && !model.adapter)
    reading_input([&] { weights.open_remainders(env, *model.checkpoint); });
  warn_of_differences(config);

  if (const std::string name = name_of_model(model); !name.empty()) config.name = name;
  GgufWriter writer;
  const std::vector<GgufSource> sources = add_gguf_model(writer, config, table, type);
  Exported exported;
  if (!tokenizer.name.empty()) {
    std::optional<int32_t> eos;
    if (!config.eos_ids.empty()) eos = config.eos_ids.front();
    exported.tokenizer = add_gguf_tokenizer(
        writer, {.name = tokenizer.name,
                 .vocab = config.vocab,
                 .chat_end = tokenizer.chat ? eos : std::nullopt,
                 .bos = config.bos_id,
                 .eos = eos,
                 .pad = tokenizer.pad,
                 .chat_jinja = tokenizer.chat ? tokenizer.chat->jinja : chat_jinja(model, options)});
    if (tokenizer.chat) exported.chat_end = tokenizer.chat->end;
  } else {
    writer.add("tokenizer.ggml.model", "no_vocab");
  }
  exported.tensors = std::ssize(writer.tensors());
  exported.bytes = writer.tensor_bytes();
  exported.files = 1;

  env.make_directories(parent_path(output));
  WritableFile file = create_temporary(env, output);
  try {
    writer.write(file, GgufRows(config, table, weights, sources, writer.tensors()));
    file.sync();
    file.close();
    env.rename(file.path(), output);
  } catch (const std::exception&) {
    env.sys_unlink(file.path());
    throw;
  }
  env.sync_directory(parent_path(output));
  return exported;
}

}  // namespace octet
