// Checkpoints that several ranks save together, and any number of ranks resumes. Ranks are threads here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/export.h"
#include "checkpoint/model_folder.h"
#include "data/temporary_folder.h"
#include "support/thread_ranks.h"
#include "hf/hf_folder.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/lora_run.h"
#include "support/rank_run.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
namespace fs = std::filesystem;

struct Case {
  const char* name;
  ShardingMode mode;
  TinyRunOptions run;
  int group = 0;  // 0: all ranks
  // Nothing reads the slots of MX blocks. What they have seen of the weights differs: ranks record a weight when it is
  // used, and one rank alone when it is changed.
  bool equal_slots() const { return run.fp8.recipe != Fp8Recipe::Mxfp8; }
};

TinyRunOptions numerics(Precision precision, Fp8Recipe recipe = Fp8Recipe::Delayed) {
  TinyRunOptions o{.precision = precision, .threads = 1, .rows = 1, .length = 16};
  o.fp8.recipe = recipe;
  return o;
}

TinyRunOptions with_moments(TinyRunOptions o, DType moments) {
  o.moments = moments;
  return o;
}

TinyRunOptions compact(TinyRunOptions o) {
  o.moments = DType::E4M3;
  o.remainder = RemainderKind::Compact;
  return o;
}

TinyRunOptions with_lora(TinyRunOptions o) {
  o.adapters = lora_plan(o.preset);
  return o;
}

TinyRunOptions of_family(const char* preset, TinyRunOptions o) {
  o.preset = preset;
  return o;
}

// The whole training state by name, from all ranks, and what only the first one has.
struct State {
  std::map<std::string, std::vector<std::byte>> tensors;
  std::vector<std::byte> fp8;
  bool operator==(const State&) const = default;
};

class Collector {
 public:
  void add(TinyRun& run, int rank) {
    if (run.sync) run.sync->merge_slots();
    const std::lock_guard lock(mutex_);
    for (const Parameter& p : run.model->parameters().all()) {
      if (!p.storage.has_dense_rows()) continue;
      for (const auto& [name, tensor] : p.state()) {
        const int64_t row = tensor.bytes() / std::max<int64_t>(tensor.shape[0], 1);
        std::vector<std::byte>& whole = state_.tensors[name];
        if (tensor.bytes() == 0) continue;
        whole.resize(static_cast<size_t>(row * p.spec.shape[0]));
        run.device->copy_to_host(whole.data() + p.first_row() * row, tensor);
      }
    }
    if (rank == 0 && run.model->scales().count() > 0) state_.fp8 = run.model->scales().save(*run.device);
  }
  State take() { return std::move(state_); }

 private:
  std::mutex mutex_;
  State state_;
};

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, bytes] : a.tensors) EXPECT_TRUE(bytes == b.tensors.at(name)) << name;
  EXPECT_TRUE(a.fp8 == b.fp8);
}

// Calls body(run, ranks) on every rank; with one rank, `ranks` is null.
template <class Body>
void on_ranks(const Case& c, int ranks, Body&& body) {
  TinyRunOptions o = c.run;
  if (ranks == 1) {
    TinyRun run(o);
    body(run, nullptr);
    return;
  }
  run_thread_ranks(ranks, ranks, [&](Ranks& all) {
    const bool grouped = c.group > 0 && ranks % c.group == 0;
    const ShardingMode mode = c.mode == ShardingMode::Hsdp && !grouped ? ShardingMode::FsdpFull : c.mode;
    TinyRunOptions mine = o;
    mine.ranks = &all;
    mine.sharding =
        sharding_of({.mode = mode, .ranks = ranks, .group = grouped ? c.group : 0}, all.place().rank);
    TinyRun run(mine);
    body(run, &all);
  });
}

std::optional<RankSaving> saving_of(TinyRun& run, Ranks* ranks) {
  if (!ranks) return std::nullopt;
  RankSync* sync = run.sync.get();
  return RankSaving{
      .host = &ranks->host(),
      .sharding = run.model->sharding(),
      .gather = [sync](Tensor parts, Tensor part, std::string_view what) { sync->gather(parts, part, what); },
      .merge_slots = [sync] { sync->merge_slots(); }};
}

std::vector<NamedText> adapter_texts(const TinyRun& run) {
  if (!run.model->has_adapters()) return {};
  return {{checkpoint_file::kAdapterConfig,
           to_peft_config(run.model->config(), run.model->finetuning().adapters, "")}};
}

// Waits until the step is saved, or has failed.
void save(CheckpointSaver& saver, TinyRun& run) {
  saver.save(*run.device, *run.model, {.step = run.done, .loader = run.batches->state()}, "", {"test", 1.0});
  saver.wait();
}

void restore(const std::string& path, TinyRun& run, Ranks* ranks) {
  const Checkpoint checkpoint = open_checkpoint(posix_env(), path);
  const Restored restored =
      restore_checkpoint(posix_env(), checkpoint, *run.device, *run.model, ranks ? &ranks->host() : nullptr);
  EXPECT_THAT(restored.remarks, testing::IsEmpty());
  run.batches->set_state(restored.state.loader);
  run.done = restored.state.step;
}

int rank_of(const Ranks* ranks) {
  return ranks ? ranks->place().rank : 0;
}

// All tensors of the safetensors files of a folder: type, shape and bytes by name.
using Tensors = std::map<std::string, std::tuple<SafeDType, std::vector<int64_t>, std::string>>;
Tensors tensors_of(const std::string& folder) {
  Tensors tensors;
  for (const std::string& name : posix_env().list(folder)) {
    if (!name.ends_with(".safetensors")) continue;
    const SafetensorsFile file = SafetensorsFile::open(posix_env(), folder + "/" + name);
    for (const SafeTensor& tensor : file.tensors()) {
      const auto* bytes = reinterpret_cast<const char*>(tensor.bytes.data());
      const bool is_new =
          tensors
              .emplace(
                  std::string(tensor.name),
                  std::tuple(tensor.dtype, std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()),
                             std::string(bytes, tensor.bytes.size())))
              .second;
      EXPECT_TRUE(is_new) << tensor.name << " is in two files";
    }
  }
  return tensors;
}

class RankCheckpoint : public testing::TestWithParam<Case> {
 protected:
  TemporaryFolder folder_;
};

constexpr int kRanks = 4, kSteps = 2;

TEST_P(RankCheckpoint, AnyNumberOfRanksContinues) {
  const Case& c = GetParam();
  Collector at_save, at_end;
  on_ranks(c, kRanks, [&](TinyRun& run, Ranks* ranks) {
    CheckpointSaver saver(posix_env(), folder_.file("of_4"),
                          {.texts = adapter_texts(run), .ranks = saving_of(run, ranks)});
    run.steps(kSteps);
    save(saver, run);
    EXPECT_EQ(saver.failures_in_a_row(), 0);
    at_save.add(run, rank_of(ranks));
    run.steps(kSteps);
    at_end.add(run, rank_of(ranks));
  });
  const State saved = at_save.take(), end = at_end.take();
  const std::string path = folder_.file("of_4/step_2");
  EXPECT_EQ(fs::exists(path + "/model.safetensors"), false);
  EXPECT_NE(fs::exists(path + "/model-00004-of-00004.safetensors"), c.run.adapters.adapters.size() > 0);
  EXPECT_TRUE(fs::exists(path + "/optimizer-00004-of-00004.safetensors"));

  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(fmt::format("on {} ranks", ranks));
    Collector resumed, continued;
    on_ranks(c, ranks, [&](TinyRun& run, Ranks* all) {
      run.step();  // what is not restored is wrong then
      restore(path, run, all);
      resumed.add(run, rank_of(all));
      if (ranks == 1) {
        CheckpointSaver saver(posix_env(), folder_.file("of_1"), {.texts = adapter_texts(run)});
        save(saver, run);
      }
      if (ranks != kRanks) return;
      run.steps(kSteps);
      continued.add(run, rank_of(all));
    });
    const State state = resumed.take();
    for (const auto& [name, bytes] : saved.tensors) EXPECT_TRUE(bytes == state.tensors.at(name)) << name;
    if (ranks > 1 || c.equal_slots()) {
      EXPECT_TRUE(saved.fp8 == state.fp8);
    }
    if (ranks == kRanks) expect_equal(continued.take(), end);
  }

  // Whole tensors under the same names, whoever writes them; everything else is the same files.
  const std::string alone = folder_.file("of_1/step_2");
  const Tensors by_four = tensors_of(path), by_one = tensors_of(alone);
  EXPECT_EQ(by_four.size(), by_one.size());
  for (const auto& [name, tensor] : by_one) EXPECT_TRUE(by_four.at(name) == tensor) << name;
  for (const char* name : {"config.json", "state.json", "fp8_state.bin", "adapter_model.safetensors"}) {
    ASSERT_EQ(fs::exists(path + "/" + name), fs::exists(alone + "/" + name)) << name;
    if (fs::exists(path + "/" + name) && (c.equal_slots() || std::string_view(name) != "fp8_state.bin")) {
      EXPECT_TRUE(posix_env().read_text(path + "/" + name) == posix_env().read_text(alone + "/" + name))
          << name;
    }
  }
}

const Case kCases[] = {
    {"fp32_zero1", ShardingMode::Zero1, numerics(Precision::Fp32)},
    {"bf16_zero2", ShardingMode::Zero2, numerics(Precision::Bf16)},
    {"delayed_fsdp_full", ShardingMode::FsdpFull, numerics(Precision::Fp8)},
    {"current_hsdp", ShardingMode::Hsdp, numerics(Precision::Fp8, Fp8Recipe::Current), 2},
    {"delayed_hsdp", ShardingMode::Hsdp, numerics(Precision::Fp8), 2},
    {"block_zero1", ShardingMode::Zero1, numerics(Precision::Fp8, Fp8Recipe::Block)},
    {"delayed_none", ShardingMode::None, numerics(Precision::Fp8)},
    {"mxfp8_fsdp_full", ShardingMode::FsdpFull, numerics(Precision::Fp8, Fp8Recipe::Mxfp8)},
    {"gpt2_zero2", ShardingMode::Zero2, of_family("gpt2-tiny", numerics(Precision::Bf16))},
    {"e4m3_moments", ShardingMode::FsdpFull, with_moments(numerics(Precision::Bf16), DType::E4M3)},
    {"compact_weights", ShardingMode::FsdpFull, compact(numerics(Precision::Fp8))},
    {"lora_bf16_zero1", ShardingMode::Zero1, with_lora(numerics(Precision::Bf16))},
    {"lora_delayed_fsdp_full", ShardingMode::FsdpFull, with_lora(numerics(Precision::Fp8))},
    {"lora_block_none", ShardingMode::None, with_lora(numerics(Precision::Fp8, Fp8Recipe::Block))},
};
INSTANTIATE_TEST_SUITE_P(Modes, RankCheckpoint, testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

// ---- files ----

class RankFiles : public testing::Test {
 protected:
  // Saves one state of four ranks; returns its folder.
  std::string saved(const Case& c = kBf16) {
    on_ranks(c, kRanks, [&](TinyRun& run, Ranks* ranks) {
      CheckpointSaver saver(posix_env(), folder_.file("run"), {.ranks = saving_of(run, ranks)});
      run.step();
      save(saver, run);
    });
    return folder_.file("run/step_1");
  }
  // An export in fp32 has the values of the checkpoint.
  void export_and_restore(const Case& c) {
    const std::string path = saved(c);
    const ModelFolder model = find_model(path);
    const std::string out = folder_.file("out");
    export_model(posix_env(), model, out, {.dtype = SafeDType::F32});
    // The weights with their remainders.
    TinyRun run(c.run);
    restore(path, run, nullptr);
    const SafetensorsFolder exported = SafetensorsFolder::open(posix_env(), out);
    for (const Parameter& p : run.model->parameters().all()) {
      const std::vector<float> values = ParameterSet::weight_values(*run.device, p);
      for (const HfPart& part : p.spec.hf) {
        const SafeTensor& tensor = exported.at(part.name);
        EXPECT_EQ(
            std::memcmp(tensor.bytes.data(), values.data() + part.row_begin * p.width(), tensor.bytes.size()),
            0)
            << part.name;
      }
    }
  }
  static inline const Case kBf16{"", ShardingMode::FsdpFull, numerics(Precision::Bf16)};
  TemporaryFolder folder_;
};

TEST_F(RankFiles, AreTheShardedFormOfHuggingFace) {
  const std::string path = saved();
  const auto index = nlohmann::json::parse(posix_env().read_text(path + "/model.safetensors.index.json"));
  const SafetensorsFolder folder = SafetensorsFolder::open(posix_env(), path);
  EXPECT_EQ(folder.files().size(), 4u);
  int64_t total = 0, most = 0;
  for (const SafetensorsFile& file : folder.files()) {
    int64_t bytes = 0;
    for (const SafeTensor& tensor : file.tensors()) bytes += std::ssize(tensor.bytes);
    total += bytes;
    most = std::max(most, bytes);
    EXPECT_EQ(file.metadata().at("format"), "pt");
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"].size(), folder.tensor_count());
  // The largest tensor is indivisible: nobody has more than that and an even share.
  EXPECT_LT(most, total / 2);
  EXPECT_TRUE(open_checkpoint(posix_env(), path).has_file("model.safetensors.index.json"));
}

TEST_F(RankFiles, ExportAndRestoreReadThem) {
  export_and_restore(kBf16);
}
TEST_F(RankFiles, ExportAndRestoreReadCompactWeights) {
  const Case packed{"", ShardingMode::FsdpFull, compact(numerics(Precision::Bf16))};
  export_and_restore(packed);
}

TEST_F(RankFiles, AMissingOrDamagedPartIsRefusedByName) {
  const std::string path = saved();
  const std::string weights = path + "/model-00003-of-00004.safetensors";
  const std::string optimizer = path + "/optimizer-00002-of-00004.safetensors";
  const auto refusal = [&] { return error_of([&] { open_checkpoint(posix_env(), path); }); };
  const auto refusal_of_ranks = [&] {
    const Checkpoint checkpoint = open_checkpoint(posix_env(), path, false);
    std::vector<std::string> broken(3);
    run_thread_ranks(3, 3, [&](Ranks& ranks) {
      broken[static_cast<size_t>(ranks.place().rank)] =
          check_files_together(posix_env(), checkpoint, ranks.host());
    });
    EXPECT_THAT(broken, Each(broken.front()));
    return broken.front();
  };
  EXPECT_EQ(refusal_of_ranks(), "");
  const std::string bytes = posix_env().read_text(optimizer);
  std::string damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  std::ofstream(optimizer, std::ios::binary) << damaged;
  EXPECT_THAT(refusal(), HasSubstr("optimizer-00002-of-00004.safetensors has checksum"));
  EXPECT_THAT(refusal_of_ranks(), HasSubstr("optimizer-00002-of-00004.safetensors has checksum"));
  // A model is read without the training state, except for its remainders.
  EXPECT_NO_THROW(export_model(posix_env(), find_model(path), folder_.file("bf16"), {}));
  EXPECT_THAT(error_of([&] {
                export_model(posix_env(), find_model(path), folder_.file("fp32"), {.dtype = SafeDType::F32});
              }),
              HasSubstr("optimizer-00002-of-00004.safetensors has checksum"));
  std::ofstream(optimizer, std::ios::binary) << bytes;
  EXPECT_EQ(refusal_of_ranks(), "");
  fs::remove(weights);
  EXPECT_THAT(refusal(), HasSubstr("model-00003-of-00004.safetensors is missing"));
  EXPECT_THAT(error_of([&] { find_model(path); }), HasSubstr("model-00003-of-00004.safetensors is missing"));
}

// What does not fit one rank is told by all, and nothing is changed.
TEST_F(RankFiles, ACheckpointThatDoesNotFitIsRefusedByAllRanks) {
  const std::string path = saved();
  Case other = kBf16;
  other.run.preset = "qwen2.5-tiny";
  Collector before, after;
  on_ranks(other, 2, [&](TinyRun& run, Ranks* ranks) {
    before.add(run, rank_of(ranks));
    EXPECT_THAT(error_of([&] { restore(path, run, ranks); }),
                AllOf(HasSubstr("optimizer-*-of-00004.safetensors] does not fit the model"),
                      HasSubstr("layers.0.attention.qkv.bias.m is missing")));
    after.add(run, rank_of(ranks));
  });
  expect_equal(before.take(), after.take());
}

// A run that starts from the folder: each rank loads its rows, also where it keeps only FP8 codes of them.
TEST_F(RankFiles, RanksLoadTheirRowsOfAFolder) {
  const std::string path = saved();
  const SafetensorsFolder files = SafetensorsFolder::open(posix_env(), path);
  const HfWeights weights([&](std::string_view name) { return files.find(name); }, path);
  for (const Precision precision : {Precision::Bf16, Precision::Fp32}) {
    on_ranks({"", ShardingMode::FsdpFull, numerics(precision)}, 3, [&](TinyRun& run, Ranks*) {
      load_hf_folder(*run.device, *run.model, path);
      for (const Parameter& p : run.model->parameters().all()) {
        EXPECT_TRUE(ParameterSet::weight_values(*run.device, p) ==
                    weights.values(p.spec, p.first_row(), p.shape()[0]))
            << p.spec.name;
      }
    });
  }
  const auto loss = [&](ShardingMode mode) {
    double first = 0;
    on_ranks({"", mode, with_lora(numerics(Precision::Fp8))}, 2, [&](TinyRun& run, Ranks* ranks) {
      load_hf_folder(*run.device, *run.model, path);
      run.model->weights_changed();
      const StepResult result = run.step();
      if (rank_of(ranks) == 0) first = result.loss;
    });
    return first;
  };
  EXPECT_EQ(loss(ShardingMode::None), loss(ShardingMode::FsdpFull));
}

// A tensor that is larger than the buffer travels in pieces.
TEST_F(RankFiles, PiecesArriveInTheOrderOfTheWholeTensor) {
  for (const int group : {0, 2}) {
    const Case c{"", group > 0 ? ShardingMode::Hsdp : ShardingMode::Zero1, numerics(Precision::Bf16), group};
    Collector all;
    std::map<std::string, std::vector<std::byte>> gathered;
    on_ranks(c, kRanks, [&](TinyRun& run, Ranks* ranks) {
      all.add(run, rank_of(ranks));
      PartGatherer gatherer(8192);
      const SaveLayout layout(run.model->parameters(), run.model->sharding());
      EXPECT_LE(gatherer.buffer_bytes(layout), 8192);
      gatherer.reserve(*run.device, layout);
      for (const SavedTensor& tensor : layout.tensors()) {
        std::vector<std::byte> whole(static_cast<size_t>(tensor.bytes()));
        const bool mine = rank_of(ranks) == 1;
        gatherer.gather(tensor, mine ? whole.data() : nullptr, *saving_of(run, ranks));
        if (mine) gathered[tensor.name] = std::move(whole);
      }
    });
    EXPECT_TRUE(gathered == all.take().tensors);
  }
}

// ---- failures ----

// A disk that is full as soon as it is told so.
class FullDisk final : public Env {
 public:
  bool full = false;
  ssize_t sys_write(int fd, const void* data, size_t size) override {
    return full ? -ENOSPC : Env::sys_write(fd, data, size);
  }
};

// FAULTS 10: a part that was not written is never taken for a checkpoint.
TEST_F(RankFiles, AFailureOnOneRankIsOneOnAll) {
  const CapturedLog log;
  for (const int bad : {2, 0}) {
    const std::string directory = folder_.file(fmt::format("run_{}", bad));
    on_ranks(kBf16, kRanks, [&](TinyRun& run, Ranks* ranks) {
      FullDisk disk;
      CheckpointSaver saver(disk, directory, {.total_limit = 2, .ranks = saving_of(run, ranks)});
      const auto step = [&](bool full, int failures) {
        disk.full = full && ranks->place().rank == bad;
        run.step();
        save(saver, run);
        EXPECT_EQ(saver.failures_in_a_row(), failures);
        EXPECT_EQ(saver.take_cost().has_value(), failures == 0);
        ranks->host().barrier("looked");
      };
      const auto names = [&] { return posix_env().list(directory); };
      step(false, 0);
      step(true, 1);
      step(true, 2);
      EXPECT_THAT(names(), UnorderedElementsAre("best", "latest", "step_1"));
      EXPECT_EQ(open_checkpoint(posix_env(), directory + "/step_1").step, 1);
      ranks->host().barrier("listed");
      step(false, 0);
      EXPECT_THAT(names(), UnorderedElementsAre("best", "latest", "step_1", "step_4"));
    });
    EXPECT_EQ(CheckpointStore(posix_env(), directory).open_latest()->step, 4);
  }
  int told = 0;
  for (const std::string& message : log.messages) told += message.find("rank 2: [") != message.npos;
  EXPECT_EQ(told, 2 * kRanks);
}

// A value that is not finite is found by the rank that writes it, whoever computed it.
TEST_F(RankFiles, AStateThatIsNotFiniteIsNotPublished) {
  const CapturedLog log;
  on_ranks(kBf16, kRanks, [&](TinyRun& run, Ranks* ranks) {
    CheckpointSaver saver(posix_env(), folder_.file("run"), {.ranks = saving_of(run, ranks)});
    Parameter& p = run.model->parameters()["layers.1.mlp.down.weight"];
    if (ranks->place().rank == 3) {
      std::vector<float> values = ParameterSet::weight_values(*run.device, p);
      ASSERT_FALSE(values.empty());
      values.back() = NAN;
      ParameterSet::set_rows(*run.device, p, values);
    }
    save(saver, run);
    EXPECT_EQ(saver.failures_in_a_row(), 1);
  });
  EXPECT_THAT(log.messages,
              AllOf(testing::SizeIs(kRanks), Each(HasSubstr("layers.1.mlp.down.weight holds values"))));
  EXPECT_FALSE(CheckpointStore(posix_env(), folder_.file("run")).open_latest().has_value());
}

}  // namespace
}  // namespace octet::test
