// How parameters are stored: frozen ones, those that live on FP8 copies alone, shares of ranks, host memory; and the
// calls of the mover around layers.

#include <gtest/gtest.h>

#include "backend/cpu/cpu_device.h"
#include "model/transformer.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

bool is_matrix_of_a_layer(const ParameterSpec& spec) {
  return spec.shape.rank() == 2 && spec.name.starts_with("layers.");
}

struct StoredRun {
  explicit StoredRun(const StoragePolicy& policy, Precision precision = Precision::Fp8,
                     Checkpointing level = Checkpointing::None)
      : device(1),
        model(two_layers("llama-tiny"), {.rows = 2, .length = 32, .checkpointing = level},
              {.precision = precision, .fp8 = {.recipe = Fp8Recipe::Current}}, device, {.storage = policy}) {
    model.allocate();
    model.parameters().initialise(device, 7);
    model.weights_changed();
  }
  // One micro-batch up and down.
  void step() {
    RandomBatches batches(2, 32, model.config().vocab, 11);
    Batch batch;
    batches.next(batch);
    model.load(host_view(batch), 1.0f / 64);
    model.clear_sums();
    model.forward_backward({}, true, false);
  }
  std::vector<float> gradient(const std::string& name) {
    const Tensor tensor = model.parameters()[name].gradient;
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    device.copy_to_host(values.data(), tensor);
    return values;
  }

  CpuDevice device;
  Transformer model;
};

TEST(Storage, AFrozenWeightHasNoGradientNoMomentsAndNoInputKept) {
  const StoragePolicy frozen = [](const ParameterSpec& spec) {
    return ParameterStorage{.trainable = !is_matrix_of_a_layer(spec)};
  };
  for (const Precision precision : {Precision::Bf16, Precision::Fp8}) {
    StoredRun all({}, precision), part(frozen, precision);
    for (const Parameter& p : part.model.parameters().all()) {
      const bool trains = !is_matrix_of_a_layer(p.spec);
      EXPECT_EQ(static_cast<bool>(p.gradient), trains) << p.spec.name;
      EXPECT_EQ(static_cast<bool>(p.m), trains) << p.spec.name;
      EXPECT_EQ(static_cast<bool>(p.remainder), trains) << p.spec.name;
    }
    EXPECT_GT(
        planned_bytes(all.model.plan(), precision == Precision::Fp8 ? "input.fp8_transposed" : "mlp.act"), 0);
    EXPECT_EQ(planned_bytes(part.model.plan(), "input.fp8_transposed"), 0);
    EXPECT_LT(part.model.plan().peak_bytes(), all.model.plan().peak_bytes());
    EXPECT_EQ(std::ssize(part.model.optimizer_view(0.1f)),
              std::ssize(all.model.optimizer_view(0.1f)) - 4 * all.model.config().layers);
    // What is trained has the same gradient as before.
    all.step();
    part.step();
    EXPECT_EQ(part.model.sums().loss, all.model.sums().loss);
    for (const char* name : {"embedding.tokens", "layers.0.attention.norm.gain", "final_norm.gain"})
      EXPECT_EQ(part.gradient(name), all.gradient(name)) << name;
  }
}

TEST(Storage, LayersLiveOnFp8CopiesAlone) {
  const auto storage = [](bool dense) {
    return [dense](const ParameterSpec& spec) {
      const bool layer = is_matrix_of_a_layer(spec);
      return ParameterStorage{.trainable = !layer,
                              .residency = dense || !layer ? Residency::Resident : Residency::CodesOnly};
    };
  };
  for (const Checkpointing level : {Checkpointing::None, Checkpointing::Block}) {
    StoredRun with(storage(true), Precision::Fp8, level), without(storage(false), Precision::Fp8, level);
    for (Linear* linear : without.model.linears()) {
      const std::string& name = linear->weight.parameter().spec.name;
      if (!is_matrix_of_a_layer(linear->weight.parameter().spec)) continue;
      EXPECT_FALSE(linear->weight.parameter().weight) << name;
      EXPECT_FALSE(linear->weight.parameter().own_rows) << name;
      without.device.ops().quantize(
          {.dense = with.model.parameters()[name].weight, .fp8 = linear->weight.copies()});
    }
    EXPECT_LT(without.model.plan().peak_bytes(), with.model.plan().peak_bytes());
    with.step();
    without.step();
    EXPECT_EQ(without.model.sums().loss, with.model.sums().loss);
    EXPECT_EQ(without.gradient("embedding.tokens"), with.gradient("embedding.tokens"));
    // A pass in BF16 still runs these layers in FP8: there is nothing else.
    without.model.clear_sums();
    without.model.forward_loss({}, false);
    EXPECT_TRUE(std::isfinite(without.model.sums().loss));
  }
}

TEST(Storage, FalsePoliciesAreRefused) {
  CpuDevice device(1);
  const auto make = [&](Precision precision, ParameterStorage storage) {
    Transformer(two_layers("llama-tiny"), {.rows = 1, .length = 16}, {.precision = precision}, device,
                {.storage = [storage](const ParameterSpec& spec) {
                  return is_matrix_of_a_layer(spec) ? storage : ParameterStorage{};
                }});
  };
  EXPECT_THROW(make(Precision::Fp8, {.trainable = true, .residency = Residency::CodesOnly}), Error);
  EXPECT_THROW(make(Precision::Bf16, {.trainable = false, .residency = Residency::CodesOnly}), Error);
  EXPECT_NO_THROW(make(Precision::Fp8, {.trainable = false, .residency = Residency::CodesOnly}));
}

// The shares of all ranks side by side are the whole parameter, padding and stochastic rounding included.
class SharedStorage : public testing::TestWithParam<RemainderKind> {};

TEST_P(SharedStorage, SharesOfRanksMakeUpTheWhole) {
  const ModelConfig config = two_layers("gpt2-tiny");
  struct Rank {
    Rank(CpuDevice& device, const ModelConfig& model, RemainderKind kind, int64_t rank, int64_t ranks)
        : set(model, {.weight = DType::BF16, .remainder = kind}, true, planner,
              [=](const ParameterSpec& spec) {
                return cut_storage(
                    spec, {.mode = ShardingMode::Zero1, .rank = rank, .ranks = ranks, .group = ranks});
              }) {
      planner.finish();
      memory = device.allocate(planner.plan().peak_bytes(), Place::Device);
      planner.bind(memory.get());
      set.initialise(device, 5);
    }
    BufferPlanner planner;
    ParameterSet set;
    std::shared_ptr<void> memory;
  };
  CpuDevice device(1);
  std::vector<uint8_t> workspace(1 << 20);
  device.ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
  const auto update = [&](Parameter& p) {
    const Tensor summed = p.summed_gradient();
    std::vector<float> gradient(static_cast<size_t>(summed.numel()), 0.25f);
    device.copy_to_device(summed, gradient.data());
    std::vector<float> clip = {1.0f, 1.0f};
    const AdamWParameter entry{.weight = p.own_rows,
                               .remainder = p.remainder,
                               .gradient = summed,
                               .m = p.m,
                               .v = p.v,
                               .stream = p.stream(),
                               .first_row = p.first_row()};
    if (p.own_rows.numel() > 0)
      device.ops().adamw({&entry, 1}, {clip.data(), DType::F32, {2}}, {.learning_rate = 1e-3f, .seed = 3});
  };
  Rank whole(device, config, GetParam(), 0, 1);
  for (const int64_t ranks : {2, 3, 7}) {
    std::vector<std::unique_ptr<Rank>> parts;
    for (int64_t rank = 0; rank < ranks; ++rank)
      parts.push_back(std::make_unique<Rank>(device, config, GetParam(), rank, ranks));
    for (size_t i = 0; i < whole.set.all().size(); ++i) {
      Parameter fresh = whole.set.all()[i];
      const std::vector<float> before = ParameterSet::weight_values(device, fresh);
      std::vector<float> joined;
      for (auto& part : parts) {
        const std::vector<float> values = ParameterSet::weight_values(device, part->set.all()[i]);
        EXPECT_EQ(part->set.all()[i].first_row() % 2, 0);
        joined.insert(joined.end(), values.begin(), values.end());
      }
      EXPECT_EQ(joined, before) << fresh.spec.name << " of " << ranks << " ranks";
      // The same values written from the outside, and a step of the optimizer with stochastic rounding.
      joined.clear();
      for (auto& part : parts) {
        Parameter& p = part->set.all()[i];
        ParameterSet::set_weight(device, p, before);
        update(p);
        const std::vector<float> values = ParameterSet::weight_values(device, p);
        joined.insert(joined.end(), values.begin(), values.end());
      }
      Rank again(device, config, GetParam(), 0, 1);
      update(again.set.all()[i]);
      EXPECT_EQ(joined, ParameterSet::weight_values(device, again.set.all()[i])) << fresh.spec.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, SharedStorage, testing::Values(RemainderKind::None, RemainderKind::Compact),
                         [](const auto& test) {
                           return test.param == RemainderKind::None ? "Stochastic" : "Compact";
                         });

// A compact weight is 2.5 bytes, its values are those of an exact one to 2^-12, and vectors stay exact.
TEST(Storage, CompactWeightsAreInitialisedToNearest) {
  const ModelConfig config = two_layers("gpt2-tiny");
  CpuDevice device(1);
  const auto make = [&](RemainderKind kind, std::vector<std::vector<float>>& values) {
    BufferPlanner planner;
    ParameterSet set(config, {.weight = DType::BF16, .remainder = kind}, true, planner);
    planner.finish();
    const std::shared_ptr<void> memory = device.allocate(planner.plan().peak_bytes(), Place::Device);
    planner.bind(memory.get());
    set.initialise(device, 5);
    for (const Parameter& p : set.all()) {
      values.push_back(ParameterSet::weight_values(device, p));
      const bool vector = p.spec.shape.rank() == 1;
      if (kind != RemainderKind::Compact) continue;
      EXPECT_EQ(p.remainder.dtype, vector ? DType::U16 : DType::U8) << p.spec.name;
      if (!vector) {
        EXPECT_EQ(p.remainder.shape, (Shape{p.shape()[0], (p.shape()[1] + 1) / 2}));
      }
    }
  };
  std::vector<std::vector<float>> exact, compact;
  make(RemainderKind::Exact, exact);
  make(RemainderKind::Compact, compact);
  bool differs = false;
  for (size_t i = 0; i < exact.size(); ++i) {
    for (size_t j = 0; j < exact[i].size(); ++j) {
      ASSERT_LE(std::fabs(compact[i][j] - exact[i][j]), std::fabs(exact[i][j]) * 0x1p-12f);
      differs |= compact[i][j] != exact[i][j];
    }
  }
  EXPECT_TRUE(differs);
}

TEST(Storage, HostMemoryIsPlannedApart) {
  const StoragePolicy on_host = [](const ParameterSpec& spec) {
    return ParameterStorage{.place = is_matrix_of_a_layer(spec) ? Place::Host : Place::Device};
  };
  StoredRun device_only({}, Precision::Bf16), split(on_host, Precision::Bf16);
  EXPECT_EQ(device_only.model.plan().host_bytes(), 0);
  EXPECT_GT(split.model.plan().host_bytes(), 0);
  EXPECT_EQ(split.model.plan().host_bytes() + split.model.plan().peak_bytes(),
            device_only.model.plan().peak_bytes());
  device_only.step();
  split.step();
  EXPECT_EQ(split.model.sums().loss, device_only.model.sums().loss);
  EXPECT_EQ(split.gradient("embedding.tokens"), device_only.gradient("embedding.tokens"));
}

// Writes down what it is asked for.
class NotingMover : public WeightMover {
 public:
  std::vector<std::string> calls;
  void begin_micro_batch(bool, bool) override {}
  void acquire(int64_t group, Sweep sweep) override { note("+", group, sweep); }
  void release(int64_t group, Sweep sweep) override { note("-", group, sweep); }
  void update(Tensor, const AdamWOptions&, float, float) override {}
  void publish() override { calls.emplace_back("publish"); }
  void settle() override { calls.emplace_back("settle"); }

 private:
  void note(const char* what, int64_t group, Sweep sweep) {
    calls.push_back(fmt::format("{}{} {}", what, group, sweep == Sweep::Forward ? "up" : "down"));
  }
};

TEST(Mover, AcquiresAndReleasesEveryGroup) {
  StoredRun run({}, Precision::Bf16, Checkpointing::Block);
  NotingMover mover;
  run.model.set_mover(&mover);
  run.step();
  const std::vector<std::string> forward = {"+0 up", "+1 up", "-1 up", "+2 up", "-2 up", "+3 up"};
  std::vector<std::string> expected = forward;
  for (const char* call : {"-3 down", "+2 down", "-2 down", "+1 down", "-1 down", "-0 down"})
    expected.emplace_back(call);
  EXPECT_EQ(mover.calls, expected);

  mover.calls.clear();
  run.model.forward_loss({}, true);
  expected = forward;
  expected.insert(expected.begin(), "settle");
  for (const char* call : {"-3 up", "-0 up"}) expected.emplace_back(call);
  EXPECT_EQ(mover.calls, expected);
}

// Rounded-up numbers of documents change no bit.
TEST(Documents, RoundedNumbersGiveTheSameBits) {
  const auto loss_of = [](bool graphs) {
    CpuDevice device(1);
    Transformer model(two_layers("llama-tiny"), {.rows = 2, .length = 32, .graphs = graphs},
                      {.precision = Precision::Bf16}, device);
    model.allocate();
    model.parameters().initialise(device, 7);
    model.weights_changed();
    RandomBatches batches(2, 32, model.config().vocab, 11);
    Batch batch;
    batches.next(batch);
    batch.document_starts = {0,  5,  11,
                             32, 33, 60};  // five documents of up to 27 tokens, four tokens of padding
    model.load(host_view(batch), 1.0f / 64);
    model.clear_sums();
    model.forward_backward({}, true, false);
    std::vector<float> gradient(static_cast<size_t>(model.parameters()["embedding.tokens"].gradient.numel()));
    device.copy_to_host(gradient.data(), model.parameters()["embedding.tokens"].gradient);
    return std::pair(model.sums().loss, gradient);
  };
  EXPECT_EQ(loss_of(true), loss_of(false));
}

}  // namespace
}  // namespace octet::test
