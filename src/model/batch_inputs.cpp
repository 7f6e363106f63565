#include "model/batch_inputs.h"

#include <algorithm>
#include <bit>

namespace octet {

void BatchInputs::plan(BufferPlanner& planner, int64_t count, bool dropout) {
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape) {
    planner.add(view, name, dtype, shape, MemoryCategory::Workspace, Lifetime::always());
  };
  add(tokens, "batch.tokens", DType::I32, {count});
  add(targets, "batch.targets", DType::I32, {count});
  add(positions, "batch.positions", DType::I32, {count});
  add(document_starts, "batch.document_starts", DType::I32, {count + 1});
  add(gradient_scale, "batch.gradient_scale", DType::F32, {1});
  if (dropout) add(dropout_seed, "batch.dropout_seed", DType::I32, {2});
}

void BatchInputs::load(const HostBatch& batch, const RunShape& shape, std::vector<InputCopy>& copies) {
  const auto n = static_cast<size_t>(shape.tokens());
  require(batch.tokens.size() == n && batch.targets.size() == n && batch.positions.size() == n,
          "[model] a micro-batch of {} tokens, {} targets and {} positions, expected {} of each",
          batch.tokens.size(), batch.targets.size(), batch.positions.size(), n);
  const auto fits = [n](size_t size) { return size == 0 || size == n; };
  require(fits(batch.weights.size()) && fits(batch.sequences.size()),
          "[model] {} weights and {} sequence numbers for {} tokens, expected one each or none",
          batch.weights.size(), batch.sequences.size(), n);
  const size_t count = batch.document_starts.size() - 1;
  require(batch.document_starts.size() >= 2 && count <= n, "[model] {} documents in {} tokens", count, n);
  documents = {document_starts, static_cast<int64_t>(count), 0};
  for (size_t i = 0; i < count; ++i) {
    documents.max_length =
        std::max<int64_t>(documents.max_length, batch.document_starts[i + 1] - batch.document_starts[i]);
  }
  starts_on_host.assign(batch.document_starts.begin(), batch.document_starts.end());
  // A recording contains these two numbers. They are rounded up, so that few different recordings occur. The added
  // documents are empty. This is done only if the documents cover all tokens, because count * max_length == tokens
  // means that all documents have one length.
  const bool covers = batch.document_starts.front() == 0 && batch.document_starts.back() == shape.tokens();
  if (shape.graphs && covers && documents.count * documents.max_length != shape.tokens()) {
    const auto power_of_two = [](int64_t value, int64_t most) {
      return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value))), most);
    };
    documents.count = power_of_two(documents.count, shape.tokens());
    documents.max_length = power_of_two(documents.max_length, shape.length);
    starts_on_host.resize(static_cast<size_t>(documents.count) + 1, batch.document_starts.back());
  }
  Tensor starts = document_starts;
  starts.shape = {std::ssize(starts_on_host)};
  copies.push_back({tokens, batch.tokens.data()});
  copies.push_back({targets, batch.targets.data()});
  copies.push_back({positions, batch.positions.data()});
  copies.push_back({starts, starts_on_host.data()});
}

int64_t BatchInputs::staged_bytes() const {
  return octet::staged_bytes({tokens, targets, positions, document_starts, gradient_scale, dropout_seed});
}

int64_t staged_bytes(std::initializer_list<Tensor> inputs) {
  int64_t bytes = 0;
  for (const Tensor& input : inputs)
    if (input) bytes += round_up(input.bytes(), 256);
  return bytes;
}

}  // namespace octet
