#include "plan/data_loaders.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "data/loading/mixed_loader.h"
#include "data/loading/packed_loader.h"
#include "data/loading/prefetcher.h"

namespace octet {
namespace {

PackedLoaderOptions packed_options(const LoadingOptions& options, const Tokenizer* tokenizer, int64_t rows,
                                   int64_t length) {
  return {.rows = rows,
          .length = length,
          .packing = options.packing,
          .shuffle = false,
          .seed = options.seed,
          .padding_id = tokenizer ? tokenizer->eos().value_or(0) : 0};
}

std::unique_ptr<SampleLoader> packed_loader(const DataPart& part, const PackedLoaderOptions& options) {
  return std::make_unique<PackedLoader>(part.documents, options, part.plan);
}

std::unique_ptr<SampleLoader> part_loader(const LoadingOptions& run, const DataPart& part,
                                          const Tokenizer& tokenizer, const BatchShape& shape) {
  if (part.plan) {
    PackedLoaderOptions options = packed_options(run, &tokenizer, shape.rows, shape.length);
    options.shuffle = run.order != SampleOrder::Sequential;
    options.rank = shape.rank;
    options.ranks = shape.ranks;
    return packed_loader(part, options);
  }
  LoaderOptions options{.rows = shape.rows,
                        .length = shape.length,
                        .order = run.order,
                        .seed = shape.seed,
                        .rank = shape.rank,
                        .ranks = shape.ranks};
  options.eos = part.document_end;
  options.respect_documents = options.align_to_documents = options.eos.has_value();
  return std::make_unique<Loader>(part.tokens, options);
}

// One per part, or none.
std::vector<double> weights_of(const TrainingData& data) {
  std::vector<double> weights;
  for (const DataPart& part : data.train) {
    if (part.weight > 0) weights.push_back(part.weight);
  }
  return weights;
}

std::unique_ptr<SampleLoader> train_samples(const LoadingOptions& options, const DataChoice& data, int64_t rows,
                                            int rank, int ranks) {
  const BatchShape shape{.rows = rows,
                         .length = options.length,
                         .seed = options.seed,
                         .rank = rank,
                         .ranks = ranks};
  std::vector<std::unique_ptr<SampleLoader>> parts;
  for (const DataPart& part : data.data.train) {
    for (int64_t pass = 0; pass < part.passes; ++pass)
      parts.push_back(part_loader(options, part, *data.tokenizer, shape));
  }
  if (parts.size() == 1) return std::move(parts[0]);
  return std::make_unique<MixedLoader>(std::move(parts), weights_of(data.data),
                                       options.order != SampleOrder::Sequential, shape);
}

SampleOrder sample_order(DataOrder order) {
  switch (order) {
    case DataOrder::Shuffled:
      return SampleOrder::Shuffled;
    case DataOrder::Random:
      return SampleOrder::RandomCrops;
    case DataOrder::Sequential:
      break;
  }
  return SampleOrder::Sequential;
}

}  // namespace

LoadingOptions loading_options(const DataKeys& keys) {
  return {.length = keys.max_seq_length,
          .order = sample_order(keys.data_order),
          .packing = keys.packing == PackingKey::None ? Packing::None : Packing::BestFit,
          .seed = static_cast<uint64_t>(keys.seed)};
}

std::unique_ptr<BatchSource> make_train_loader(const LoadingOptions& options, const DataChoice& data,
                                               int64_t rows, int rank, int ranks) {
  return std::make_unique<Prefetcher>(train_samples(options, data, rows, rank, ranks));
}

DataHashes data_hashes(const LoadingOptions& options, const DataChoice& data) {
  Hash64 evaluation;
  for (const EvalSet& set : make_eval_sets(options, data.data.eval, data.tokenizer.get())) {
    const std::unique_ptr<SampleLoader> loader = set.make_loader(1, options.length);
    evaluation.add(set.name).add(loader ? loader->state().data_hash : 0);
  }
  return {.training = train_samples(options, data, 1, 0, 1)->state().data_hash,
          .evaluation = data.data.eval.empty() ? 0 : evaluation.value(),
          .tokenizer = data.tokenizer ? data.tokenizer->fingerprint() : 0};
}

std::vector<EvalSet> make_eval_sets(const LoadingOptions& options, const std::vector<DataPart>& parts,
                                    const Tokenizer* tokenizer) {
  std::vector<EvalSet> sets;
  for (const DataPart& part : parts) {
    EvalSet set{.name = part.name, .weight = part.weight, .make_loader = nullptr};
    if (part.plan) {
      set.make_loader = [part, packed = packed_options(options, tokenizer, 1, 1)](
                            int64_t rows, int64_t length) -> std::unique_ptr<SampleLoader> {
        if (part.plan->rows() == 0) return nullptr;
        PackedLoaderOptions shaped = packed;
        shaped.rows = rows;
        shaped.length = length;
        return packed_loader(part, shaped);
      };
    } else {
      set.make_loader = stream_eval_loaders(part.tokens, part.document_end);
    }
    sets.push_back(std::move(set));
  }
  return sets;
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

std::string no_evaluation_reason(const LoadingOptions& options, const TrainingData& data) {
  int64_t documents_apart = 0, most_tokens = 0;
  for (const DataPart& part : data.eval) {
    if (part.sequences(options.length) > 0) return "";
    documents_apart += part.plan != nullptr;
    most_tokens = std::max(most_tokens, part.tokens.size());
  }
  if (documents_apart == std::ssize(data.eval)) return "no document is held out";
  return fmt::format("only {} tokens are held out, but one sequence needs {}", most_tokens,
                     options.length + 1);
}

std::string packing_text(const LoadingOptions& options, const TrainingData& data) {
  ShardCounts counts;
  int64_t rows = 0, inputs = 0;
  for (const DataPart& part : data.train) {
    if (!part.plan) continue;
    counts += part.documents.counts();
    rows += part.plan->rows();
    inputs += part.plan->totals().inputs;
  }
  if (rows == 0) return "";
  const auto positions = static_cast<double>(rows) * static_cast<double>(options.length);
  return fmt::format(
      "{}: {} documents in {} sequences; packing efficiency {:.1f} %; loss is taken on {:.1f} % of positions",
      options.packing == Packing::None ? "padded" : "best_fit", counts.documents, rows,
      100 * static_cast<double>(inputs) / positions, 100 * static_cast<double>(counts.targets) / positions);
}

std::vector<MixShare> mix_shares(const LoadingOptions& options, const TrainingData& data) {
  std::vector<int64_t> sequences;
  for (const DataPart& part : data.train)
    sequences.push_back(part.passes * part.sequences(options.length));
  const MixSchedule schedule(std::move(sequences), weights_of(data), true);
  std::vector<MixShare> shares(data.train.size());
  double tokens = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].sequences = schedule.share(i);
    shares[i].tokens = shares[i].sequences * data.train[i].utilisation();
    tokens += shares[i].tokens;
  }
  for (MixShare& share : shares) share.tokens /= tokens;
  return shares;
}

double utilisation(const LoadingOptions& options, const TrainingData& data) {
  const std::vector<MixShare> shares = mix_shares(options, data);
  double used = 0;
  for (size_t i = 0; i < shares.size(); ++i) used += shares[i].sequences * data.train[i].utilisation();
  return used;
}

}  // namespace octet
