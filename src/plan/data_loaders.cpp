#include "plan/data_loaders.h"

#include <fmt/format.h>

#include "data/loading/prefetcher.h"

namespace octet {
namespace {

PackedLoaderOptions packed_options(const TrainConfig& keys, const Tokenizer& tokenizer, int64_t rows,
                                   int64_t length) {
  return {.rows = rows,
          .length = length,
          .packing = keys.packing == TrainConfig::Packing::None ? Packing::None : Packing::BestFit,
          .shuffle = false,
          .seed = static_cast<uint64_t>(keys.seed),
          .padding_id = tokenizer.eos().value_or(0)};
}

SampleOrder sample_order(TrainConfig::DataOrder order) {
  switch (order) {
    case TrainConfig::DataOrder::Shuffled:
      return SampleOrder::Shuffled;
    case TrainConfig::DataOrder::Random:
      return SampleOrder::RandomCrops;
    case TrainConfig::DataOrder::Sequential:
      break;
  }
  return SampleOrder::Sequential;
}

// The demo's stories are short and each stands on its own; other streams are one text.
std::optional<int32_t> document_end(bool is_demo, const Tokenizer& tokenizer) {
  return is_demo ? tokenizer.eos() : std::nullopt;
}

EvalLoaderFactory packed_eval_loaders(const TrainingData& data, const TrainConfig& keys,
                                      const Tokenizer& tokenizer) {
  return [documents = data.eval_documents, plan = data.eval_plan,
          options = packed_options(keys, tokenizer, 1, 1)](int64_t rows,
                                                           int64_t length) -> std::unique_ptr<SampleLoader> {
    if (plan->rows() == 0) return nullptr;
    PackedLoaderOptions shaped = options;
    shaped.rows = rows;
    shaped.length = length;
    return std::make_unique<PackedLoader>(documents, shaped, plan);
  };
}

}  // namespace

std::unique_ptr<BatchSource> make_train_loader(const TrainConfig& keys, const DataChoice& data, int64_t rows,
                                               int rank, int ranks) {
  const int64_t length = keys.max_seq_length;
  const TrainingData& source = data.data;
  if (source.train_plan) {
    PackedLoaderOptions options = packed_options(keys, *data.tokenizer, rows, length);
    options.shuffle = keys.data_order != TrainConfig::DataOrder::Sequential;
    options.rank = rank;
    options.ranks = ranks;
    return std::make_unique<Prefetcher>(
        std::make_unique<PackedLoader>(source.train_documents, options, source.train_plan));
  }
  LoaderOptions options{.rows = rows,
                        .length = length,
                        .order = sample_order(keys.data_order),
                        .seed = static_cast<uint64_t>(keys.seed),
                        .rank = rank,
                        .ranks = ranks};
  options.eos = document_end(keys.is_demo(), *data.tokenizer);
  options.respect_documents = options.align_to_documents = options.eos.has_value();
  return std::make_unique<Prefetcher>(std::make_unique<Loader>(source.train, options));
}

EvalLoaderFactory make_eval_loader_factory(const TrainConfig& keys, const DataChoice& data) {
  if (data.data.eval_plan) return packed_eval_loaders(data.data, keys, *data.tokenizer);
  return stream_eval_loaders(data.data.eval, document_end(keys.is_demo(), *data.tokenizer));
}

EvalLoaderFactory open_evaluation_data(const TrainConfig& keys, int64_t vocab_size,
                                       const Tokenizer& tokenizer) {
  TrainingData data = open_eval_data(keys, vocab_size, tokenizer);
  if (data.eval_plan) return packed_eval_loaders(data, keys, tokenizer);
  return stream_eval_loaders(std::move(data.eval), document_end(keys.eval_dataset == "demo", tokenizer));
}

EvalLoaderFactory stream_eval_loaders(TokenSource tokens, std::optional<int32_t> eos) {
  return [source = std::move(tokens), eos](int64_t rows, int64_t length) -> std::unique_ptr<SampleLoader> {
    if (source.size() < length + 1) return nullptr;
    return std::make_unique<Loader>(source, LoaderOptions{.rows = rows,
                                                          .length = length,
                                                          .order = SampleOrder::Sequential,
                                                          .eos = eos,
                                                          .respect_documents = eos.has_value()});
  };
}

std::string no_evaluation_reason(const TrainConfig& keys, const TrainingData& data) {
  if (data.eval_plan) return data.eval_plan->rows() > 0 ? "" : "no document is held out";
  if (data.eval.size() > keys.max_seq_length) return "";
  return fmt::format("only {} tokens are held out, but one sequence needs {}", data.eval.size(),
                     keys.max_seq_length + 1);
}

std::string packing_text(const TrainConfig& keys, const TrainingData& data) {
  if (!data.train_plan) return "";
  const ShardCounts& counts = data.train_documents.counts();
  const auto positions =
      static_cast<double>(data.train_plan->rows()) * static_cast<double>(keys.max_seq_length);
  return fmt::format(
      "{}: {} documents in {} sequences; packing efficiency {:.1f} %; loss is taken on {:.1f} % of positions",
      keys.packing == TrainConfig::Packing::None ? "padded" : "best_fit", counts.documents,
      data.train_plan->rows(), 100 * data.train_plan->utilisation(),
      100 * static_cast<double>(counts.targets) / positions);
}

}  // namespace octet
