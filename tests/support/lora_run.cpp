#include "support/lora_run.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace octet::test {
namespace {

std::vector<float> normal_values(const Parameter& p, uint64_t seed, float mean, float deviation) {
  const Philox random(seed, p.stream());
  std::vector<float> values(static_cast<size_t>(p.spec.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = mean + deviation * static_cast<float>(random.normal(i));
  return values;
}

}  // namespace

AdapterPlan lora_plan(const char* preset, const LoraConfig& lora) {
  return plan_adapters(two_layers(preset), lora);
}

void fill_adapters(Device& device, ParameterSet& parameters, uint64_t seed) {
  for (Parameter& p : parameters.all()) {
    if (!p.spec.is_adapter()) continue;
    // B A x is then of about the size of W x.
    const bool is_a = p.spec.adapter == ParameterSpec::Adapter::A;
    const float deviation = is_a ? 1.0f / std::sqrt(static_cast<float>(p.spec.shape[1])) : 0.02f;
    ParameterSet::set_weight(device, p, normal_values(p, seed, 0, deviation));
  }
}

void fill_vectors(Device& device, ParameterSet& parameters, uint64_t seed) {
  for (Parameter& p : parameters.all()) {
    if (p.spec.shape.rank() == 1)
      ParameterSet::set_weight(device, p, normal_values(p, seed, p.spec.init == Init::One ? 1 : 0, 0.1f));
  }
}

void merge_into(TinyRun& full, TinyRun& lora) {
  for (const Parameter& from : lora.model->parameters().all()) {
    if (!from.spec.is_adapter())
      ParameterSet::set_weight(*full.device, full.model->parameters()[from.spec.name],
                               ParameterSet::weight_values(*lora.device, from));
  }
  for (const Linear* linear : lora.model->linears()) {
    if (!linear->operands.adapter()) continue;
    const int64_t in = linear->spec.site.in;
    std::vector<float> weight = ParameterSet::weight_values(*lora.device, linear->weight.parameter());
    const std::vector<float> a = ParameterSet::weight_values(*lora.device, linear->operands.adapter().a());
    for (const LowRank::Part& part : linear->operands.adapter().parts()) {
      const std::vector<float> b = ParameterSet::weight_values(*lora.device, *part.b);
      for (int64_t row = 0; row < part.columns; ++row) {
        for (int64_t col = 0; col < in; ++col) {
          double sum = 0;
          for (int64_t r = 0; r < part.rank; ++r)
            sum += static_cast<double>(b[static_cast<size_t>(row * part.rank + r)]) *
                   static_cast<double>(a[static_cast<size_t>((part.first_rank + r) * in + col)]);
          float& to = weight[static_cast<size_t>((part.first_column + row) * in + col)];
          to = static_cast<float>(static_cast<double>(to) + static_cast<double>(part.scale) * sum);
        }
      }
    }
    ParameterSet::set_weight(*full.device, full.model->parameters()[linear->weight.parameter().spec.name],
                             weight);
  }
  full.model->weights_changed();
}

double pass(TinyRun& run, const Batch& batch, bool first, uint64_t dropout_seed, int64_t targets) {
  const auto count = static_cast<float>(targets > 0 ? targets : std::max<int64_t>(batch.target_count, 1));
  run.model->load(host_view(batch), 1.0f / count, dropout_seed);
  run.model->clear_sums();
  run.model->forward_backward({}, first, false);
  return run.model->sums().loss / static_cast<double>(std::max<int64_t>(batch.target_count, 1));
}

Batch next_batch(TinyRun& run) {
  Batch batch;
  run.batches->next(batch);
  return batch;
}

std::vector<float> gradient_of(TinyRun& run, const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.gradient.numel()));
  run.device->copy_to_host(values.data(), parameter.gradient);
  return values;
}

std::vector<float> adapter_gradients(TinyRun& run) {
  std::vector<float> all;
  for (const Parameter& p : run.model->parameters().all()) {
    if (!p.spec.is_adapter()) continue;
    const std::vector<float> values = gradient_of(run, p);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> adapter_weights(TinyRun& run) {
  std::vector<float> all;
  for (const Parameter& p : run.model->parameters().all()) {
    if (!p.spec.is_adapter()) continue;
    const std::vector<float> values = ParameterSet::weight_values(*run.device, p);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double difference = a.size() == b.size() ? 0 : INFINITY, largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    difference = d <= difference ? difference : d;  // NaN stays
    largest = std::max(largest, std::fabs(static_cast<double>(b[i])));
  }
  return difference / largest;
}

double norm_difference(std::span<const float> a, std::span<const float> b) {
  double difference = a.size() == b.size() ? 0 : INFINITY, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

}  // namespace octet::test
