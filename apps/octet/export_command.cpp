#include <fmt/format.h>

#include <filesystem>

#include "base/input_errors.h"
#include "base/print.h"
#include "checkpoint/export.h"
#include "command.h"
#include "report/text.h"

namespace octet {
namespace {

struct Options {
  std::string model, output, dtype, tokenizer, adapter_name_or_path, format, outtype;
  bool best = false, adapter = false, merge = false;
  static constexpr double kShardSize = 5;
  double max_shard_size_gb = kShardSize;
};

std::string tokenizer_text(const Exported& exported) {
  if (exported.tokenizer.empty()) return "none, the model has no tokenizer";
  if (exported.chat_end.empty()) return exported.tokenizer;
  return fmt::format("{}, with the chat template; answers end with {}", exported.tokenizer,
                     exported.chat_end);
}

int write_adapter(const Options& options, const ModelFolder& model, ExportOptions to) {
  // A base that is named here counts more than what the adapter says of it.
  if (!options.adapter_name_or_path.empty()) {
    const bool is_path = posix_env().exists(options.model);
    to.base = is_path ? std::filesystem::absolute(options.model).lexically_normal().string() : options.model;
  }
  const ExportedAdapter exported = export_adapter(posix_env(), model, options.output, to);
  print_stdout("{}\n{}: {} tensors, {}, fp32; tokenizer: {}\n", model.adapter->source, options.output,
               exported.tensors, human_bytes(static_cast<double>(exported.bytes)), tokenizer_text(exported));
  if (exported.base.empty()) {
    print_stdout("base: none, it has random weights; other programs need a merged model: use --merge\n");
    return kExitDone;
  }
  print_stdout("base: {}\n", exported.base);
  for (const std::string& line : adapter_loaders(model.config, exported.plan)) print_stdout("{}\n", line);
  return kExitDone;
}

int write_gguf(const Options& options, const ModelFolder& model, const ExportOptions& to) {
  const GgmlType type = options.outtype == "f32"    ? GgmlType::F32
                        : options.outtype == "f16"  ? GgmlType::F16
                        : options.outtype == "q8_0" ? GgmlType::Q8_0
                                                    : GgmlType::BF16;
  const Exported exported = export_gguf(posix_env(), model, options.output, type, to);
  const std::string answers =
      exported.chat_end.empty() ? "" : fmt::format("; answers end with {}", exported.chat_end);
  print_stdout(
      "{}\n{}: {} tensors, {}, {}; tokenizer: {}\n", model.adapter ? model.adapter->source : model.source,
      options.output, exported.tensors, human_bytes(static_cast<double>(exported.bytes)), name_of(type),
      exported.tokenizer.empty() ? "none, the model has no tokenizer" : exported.tokenizer + answers);
  return kExitDone;
}

int run(const Options& options) {
  ExportOptions to;
  to.tokenizer = options.tokenizer;
  if (!options.dtype.empty()) to.dtype = options.dtype == "bf16" ? SafeDType::BF16 : SafeDType::F32;
  to.shard_bytes = static_cast<int64_t>(options.max_shard_size_gb * 1e9);

  const ModelFolder model =
      reading_input([&] { return find_model(options.model, options.best, options.adapter_name_or_path); });
  if (options.format == "gguf") return write_gguf(options, model, to);
  if (model.adapter && !options.adapter && !options.merge) {
    fail_config(
        "[{}] is an adapter; choose --adapter to write it as a PEFT folder, or --merge to write the whole model with "
        "the adapter merged into its weights",
        model.adapter->folder);
  }
  if (!model.adapter && (options.adapter || options.merge)) {
    fail_config("[{}] has no adapter, so --{} cannot be used; pass an adapter with --adapter_name_or_path",
                model.folder, options.adapter ? "adapter" : "merge");
  }
  if (options.adapter) return write_adapter(options, model, to);
  const Exported exported = export_model(posix_env(), model, options.output, to);
  print_stdout("{}\n{}: {} tensors, {} in {} file{}, {}; tokenizer: {}\n", model.source, options.output,
               exported.tensors, human_bytes(static_cast<double>(exported.bytes)), exported.files,
               exported.files == 1 ? "" : "s", exported.dtype == SafeDType::F32 ? "fp32" : "bf16",
               tokenizer_text(exported));
  return kExitDone;
}

void check(const Options& options, std::vector<std::string>& errors) {
  if (options.adapter && options.merge)
    errors.emplace_back("--adapter and --merge exclude each other: an adapter alone, or a merged model");
  if (options.adapter && !options.dtype.empty())
    errors.emplace_back("--dtype is for whole models; an adapter is always written in fp32");
  if (options.format != "gguf") {
    if (!options.outtype.empty()) errors.emplace_back("--outtype is for --format gguf; use --dtype");
    return;
  }
  if (options.adapter)
    errors.emplace_back("--adapter writes a PEFT folder; with --format gguf the adapter is merged");
  if (options.merge)
    errors.emplace_back("--merge is for folders; with --format gguf an adapter is always merged");
  if (options.max_shard_size_gb != Options::kShardSize)
    errors.emplace_back("--max_shard_size_gb is for folders; --format gguf writes one file");
  if (!options.dtype.empty()) errors.emplace_back("--dtype is for folders; with --format gguf use --outtype");
  if (!options.output.empty() && !options.output.ends_with(".gguf"))
    errors.emplace_back(fmt::format("--output is '{}', expected a name that ends in .gguf", options.output));
}

}  // namespace

Command export_command() {
  CommandBuilder<Options> builder("export",
                                  "Write a model as a Hugging Face folder or GGUF, or an adapter for PEFT");
  builder.line.about =
      "Writes a model as a Hugging Face folder that Transformers can load, as a GGUF file for llama.cpp and Ollama, or "
      "an adapter as a PEFT folder.";
  builder.word(&Options::model, {.name = "MODEL", .what = "model", .help = kModelHelp});
  builder.keys
      .add("output", &Options::output,
           "Folder to create. An existing folder must be empty. With --format gguf: file to create.")
      .value("DIR")
      .short_flag('o')
      .must_be_given();
  builder.keys.add("best", &Options::best, kBestHelp);
  add_adapter_key(builder.keys);
  builder.keys.add("adapter", &Options::adapter,
                   "Write only the adapter, as a PEFT folder. Says which programs can load it.");
  builder.keys.add("merge", &Options::merge,
                   "Write the whole model with its adapter merged in fp32 and rounded once.");
  builder.keys
      .add("format", &Options::format, {"hf", "gguf"},
           "hf: a Hugging Face folder. gguf: one file for llama.cpp and Ollama, with tokenizer and chat "
           "template; an adapter is merged.")
      .note("hf");
  builder.keys
      .add("outtype", &Options::outtype, {"bf16", "f16", "q8_0", "f32"},
           "With --format gguf: how matrices are stored. q8_0: 8 bits with a scale per 32 values.")
      .alias("gguf_type")
      .note("bf16");
  builder.keys.add("dtype", &Options::dtype, {"bf16", "fp32"}, "Data type of the written weights.")
      .note("the type they are stored in");
  builder.keys.add("tokenizer", &Options::tokenizer, "Tokenizer file or folder to copy into the output.")
      .value("FILE_OR_FOLDER")
      .note("the tokenizer of the model");
  builder.keys
      .add("max_shard_size_gb", &Options::max_shard_size_gb,
           "Maximum size of a weight file in GB. Larger models are split into several files.")
      .above(0);
  builder.check(check);
  return builder.command(run);
}

}  // namespace octet
