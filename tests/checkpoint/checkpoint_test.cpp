// A run's state on its way to a checkpoint and back: forms that are converted, and what is refused.

#include "checkpoint/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "base/philox.h"
#include "io/safetensors.h"
#include "ops/stochastic.h"
#include "support/error_of.h"
#include "train/resume_support.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// An fp32 run that takes over a bf16 checkpoint begins with its exact master weights, and the way back is exact too.
TEST_F(Resume, MasterWeightsSurviveTheChangeOfPrecision) {
  ASSERT_EQ(train(config("bf16", {{"mixed_precision", "bf16"}})), kExitDone);
  const auto weights = [&](Precision precision, const std::string& path) {
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, {.precision = precision}, *device);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *device, model);
    std::vector<float> values;
    for (const Parameter& p : model.parameters().all()) {
      const auto more = ParameterSet::weight_values(*device, p);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  };
  const std::string path = checkpoint("bf16", 12, false);
  EXPECT_EQ(weights(Precision::Fp32, path), weights(Precision::Bf16, path));
}

// Weights may be stored with other bits from a checkpoint on: what the new form cannot hold is rounded to nearest, all
// else is kept, and every change is told.
TEST_F(Resume, WeightsAreConverted) {
  struct Form {
    const char* name;
    Numerics numerics;
  };
  const Form fp32{"fp32", {.precision = Precision::Fp32}}, exact{"exact", {.precision = Precision::Bf16}},
      compact{"compact", {.precision = Precision::Bf16, .remainder = RemainderKind::Compact}},
      stochastic{"stochastic", {.precision = Precision::Bf16, .remainder = RemainderKind::None}};
  struct Loaded {
    std::string path;  // saved again
    std::vector<float> matrices, vectors;
    std::vector<std::string> remarks;
  };
  const auto load = [&](const std::string& path, const Form& form) {
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, form.numerics, *device);
    model.allocate();
    Loaded loaded;
    loaded.remarks =
        restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *device, model).remarks;
    for (const Parameter& p : model.parameters().all()) {
      const auto more = ParameterSet::weight_values(*device, p);
      std::vector<float>& values = p.spec.shape.rank() == 1 ? loaded.vectors : loaded.matrices;
      values.insert(values.end(), more.begin(), more.end());
    }
    CheckpointStore store(
        posix_env(),
        fmt::format("{}/{}_{}", folder.path(), fs::path(path).parent_path().filename().string(), form.name));
    Snapshot snapshot;
    snapshot.take(*device, model, {.step = 1}, "");
    loaded.path =
        store.save(1, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0}).path;
    return loaded;
  };
  const auto rounded = [](std::vector<float> values, auto&& round) {
    for (float& x : values) x = std::bit_cast<float>(uint32_t{round(std::bit_cast<uint32_t>(x))});
    return values;
  };
  const auto to_bf16_bits = [](uint32_t bits) { return uint32_t{split_high(bits)} << 16; };
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const Loaded from_exact = load(checkpoint("run", 12, false), exact);
  EXPECT_THAT(from_exact.remarks, testing::IsEmpty());
  const std::vector<float> twenty = rounded(from_exact.matrices, compact_nearest);
  EXPECT_NE(twenty, from_exact.matrices);

  const Loaded to_compact = load(from_exact.path, compact), to_none = load(from_exact.path, stochastic),
               to_fp32 = load(from_exact.path, fp32);
  EXPECT_EQ(to_compact.matrices, twenty);
  EXPECT_EQ(to_compact.vectors, from_exact.vectors);
  EXPECT_THAT(to_compact.remarks,
              testing::ElementsAre("weights: rounded from 32 to 20 bits (bf16 plus 4 bits)"));
  EXPECT_EQ(to_none.matrices, rounded(from_exact.matrices, to_bf16_bits));
  EXPECT_THAT(to_none.remarks,
              testing::ElementsAre("weights: bf16 as in the checkpoint; its 16-bit remainders are dropped"));
  EXPECT_EQ(to_fp32.matrices, from_exact.matrices);
  EXPECT_THAT(to_fp32.remarks,
              testing::ElementsAre("weights: converted from bf16 plus remainder to exact fp32"));

  // A compact checkpoint: its own form keeps every byte, wider ones every bit.
  const Loaded again = load(to_compact.path, compact), widened = load(to_compact.path, exact),
               narrowed = load(to_compact.path, stochastic), as_fp32 = load(to_compact.path, fp32);
  for (const char* file : {"/optimizer.safetensors", "/model.safetensors"})
    EXPECT_TRUE(read_text(again.path + file) == read_text(to_compact.path + file)) << file;
  EXPECT_THAT(again.remarks, testing::IsEmpty());
  EXPECT_EQ(widened.matrices, twenty);
  EXPECT_THAT(widened.remarks,
              testing::ElementsAre("weights: the 4-bit remainders become exact ones of 16 bits"));
  EXPECT_EQ(as_fp32.matrices, twenty);
  EXPECT_EQ(as_fp32.vectors, from_exact.vectors);
  EXPECT_THAT(as_fp32.remarks, testing::Contains("weights: converted from bf16 plus 4 bits to fp32"));
  EXPECT_EQ(narrowed.matrices, rounded(twenty, to_bf16_bits));
  EXPECT_THAT(narrowed.remarks,
              testing::ElementsAre("weights: bf16 as in the checkpoint; its 4-bit remainders are dropped"));

  // An fp32 checkpoint, into all that have fewer bits for matrices. Vectors stay exact.
  const std::string split = "weights: split into bf16 and an exact remainder";
  const Loaded fp32_as_exact = load(to_fp32.path, exact), fp32_as_none = load(to_fp32.path, stochastic);
  EXPECT_EQ(fp32_as_exact.matrices, from_exact.matrices);
  EXPECT_THAT(fp32_as_exact.remarks, testing::ElementsAre(split));
  EXPECT_EQ(fp32_as_none.matrices, rounded(from_exact.matrices, to_bf16_bits));
  EXPECT_THAT(fp32_as_none.remarks,
              testing::UnorderedElementsAre(split, "weights: rounded from fp32 to bf16"));

  // And into compact from the two others.
  const Loaded from_none = load(to_none.path, compact), from_fp32 = load(to_fp32.path, compact);
  EXPECT_EQ(from_none.matrices, to_none.matrices);
  EXPECT_THAT(from_none.remarks, testing::ElementsAre("weights: split into bf16 and 4 more bits"));
  EXPECT_EQ(from_fp32.matrices, twenty);
  EXPECT_THAT(from_fp32.remarks,
              testing::UnorderedElementsAre(split, "weights: rounded from 32 to 20 bits (bf16 plus 4 bits)"));
  EXPECT_EQ(from_fp32.vectors, from_exact.vectors);
}

// A checkpoint whose optimizer.safetensors says another type for one tensor.
struct AlteredCheckpoint : Resume {
  std::string error_of_restoring(const Settings& settings, const std::string& written,
                                 const std::string& altered, const Numerics& numerics) {
    Settings all = {{"mixed_precision", "bf16"}};
    all.insert(all.end(), settings.begin(), settings.end());
    EXPECT_EQ(train(config("run", all)), kExitDone);
    const std::string path = checkpoint("run", 12, false), file = path + "/optimizer.safetensors";
    std::string text = read_text(file);
    const size_t at = text.find(written);
    EXPECT_NE(at, std::string::npos);
    if (at == std::string::npos) return "";
    folder.write(fs::relative(file, folder.path()).string(), text.replace(at, written.size(), altered));
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, numerics, *device);
    model.allocate();
    return error_of(
        [&] { restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path, false), *device, model); });
  }
};

// Found before anything is changed.
TEST_F(AlteredCheckpoint, ARemainderOfAnotherTypeIsRefused) {
  EXPECT_THAT(error_of_restoring({{"master_weights", "compact"}}, "\"dtype\":\"U8\"", "\"dtype\":\"I8\"",
                                 {.precision = Precision::Bf16, .remainder = RemainderKind::Compact}),
              HasSubstr("is not the remainder of a weight of"));
}

TEST_F(AlteredCheckpoint, AMomentOfAnotherTypeIsRefused) {
  const std::string v = "layers.1.mlp.up.weight.v\":{\"dtype\":\"";
  EXPECT_THAT(error_of_restoring({{"optimizer_state", "fp8"}}, v + "U8", v + "I8",
                                 {.precision = Precision::Bf16, .moments = DType::E4M3}),
              HasSubstr("layers.1.mlp.up.weight.v is I8, expected F32, BF16, or U8 with its scales"));
}

// Moments may be kept in another form from a checkpoint on: each is what its form holds of the one before.
TEST_F(Resume, MomentsAreConverted) {
  const auto moments = [&](DType form, const std::string& path) {
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8},
                      {.precision = Precision::Bf16, .moments = form}, *device);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *device, model);
    CheckpointStore store(
        posix_env(), fmt::format("{}/{}_{}", folder.path(), fs::path(path).parent_path().filename().string(),
                                 name_of(form)));
    Snapshot snapshot;
    snapshot.take(*device, model, {.step = 1}, "");
    return store.save(1, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0}).path;
  };
  // The values of a moment, whatever its form, through a model that keeps fp32.
  const auto values = [&](const std::string& path, bool squares) {
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                      *device);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *device, model);
    const Parameter& p = model.parameters()["layers.1.mlp.up.weight"];
    std::vector<float> result(static_cast<size_t>(p.m.numel()));
    device->copy_to_host(result.data(), squares ? p.v : p.m);
    return result;
  };
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string fp32 = checkpoint("run", 12, false);
  const std::string bf16 = moments(DType::BF16, fp32), fp8 = moments(DType::E4M3, fp32);
  for (const bool squares : {false, true}) {
    const std::vector<float> exact = values(fp32, squares), half = values(bf16, squares),
                             small = values(fp8, squares);
    float largest = 0;
    for (const float value : exact) largest = std::max(largest, std::fabs(value));
    ASSERT_GT(largest, 0);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(half[i], exact[i], std::fabs(exact[i]) / 256) << i;
      // e4m3 has 3 bits of mantissa: 1/16 of the value; below its normal range 2^-10 / 448 of the largest of the
      // block. A root has 4 bits of mantissa: 1/32, twice that for its square; none is below 2^-12 of the largest.
      const float relative = squares ? 0.065f : 0.0625f, absolute = squares ? 0x1p-23f : 4e-6f;
      ASSERT_NEAR(small[i], exact[i], std::fabs(exact[i]) * relative + largest * absolute) << i;
      if (squares) {
        ASSERT_EQ(small[i] > 0, exact[i] > 0) << i;
      }
    }
  }
  // fp8 to bf16 too, and a form that is not changed keeps its bytes.
  const std::string again = moments(DType::E4M3, fp8);
  EXPECT_TRUE(read_text(again + "/optimizer.safetensors") == read_text(fp8 + "/optimizer.safetensors"));
  moments(DType::BF16, fp8);
}

// The optimizer's file as it was before roots had a code of their own: v is F8_E4M3, here with codes of all sizes.
std::string with_e4m3_roots(const std::string& text) {
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  auto header = nlohmann::ordered_json::parse(text.substr(8, length));
  std::string data = text.substr(8 + length);
  for (auto& [name, tensor] : header.items()) {
    if (!name.ends_with(".v") || tensor["dtype"] != "U8") continue;
    tensor["dtype"] = "F8_E4M3";
    for (size_t i = tensor["data_offsets"][0]; i < tensor["data_offsets"][1]; ++i)
      data[i] = static_cast<char>(1 + Philox(6).below(i, 126));
  }
  std::string start = header.dump();
  start.resize((start.size() + 7) / 8 * 8, ' ');
  length = start.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix + start + data;
}

TEST_F(Resume, RootsOfOldCheckpointsAreConverted) {
  const std::string name = "layers.1.mlp.up.weight";
  struct Loaded {
    std::vector<std::string> remarks;
    std::vector<double> m, v;
  };
  const auto load = [&](const std::string& path, DType form) {
    const auto device = make_cpu_device(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8},
                      {.precision = Precision::Bf16, .moments = form}, *device);
    model.allocate();
    Loaded loaded;
    loaded.remarks =
        restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *device, model).remarks;
    const Parameter& p = model.parameters()[name];
    const int64_t cols = p.m.cols(), blocks = div_up(cols, kMomentBlock);
    const auto values = [&](const Tensor& x, const Tensor& scales) {
      std::vector<double> result(static_cast<size_t>(x.numel()));
      const auto* factors = static_cast<const float*>(scales.data);
      for (size_t i = 0; i < result.size(); ++i) {
        if (x.dtype == DType::F32) {
          result[i] = static_cast<double>(x.as<float>()[i]);
          continue;
        }
        const uint8_t code = x.as<uint8_t>()[i];
        const float value = x.dtype == DType::U8 ? root_value(code) : from_e4m3(code);
        const auto at = static_cast<int64_t>(i);
        result[i] = static_cast<double>(value * factors[at / cols * blocks + at % cols / kMomentBlock]);
        if (x.dtype == DType::U8) result[i] *= result[i];
      }
      return result;
    };
    loaded.m = values(p.m, p.m_scales), loaded.v = values(p.v, p.v_scales);
    return loaded;
  };
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}, {"optimizer_state", "fp8"}})), kExitDone);
  const std::string now = checkpoint("run", 12, false), optimizer = "optimizer.safetensors";
  const SafetensorsFile tensors = SafetensorsFile::open(posix_env(), now + "/" + optimizer);
  EXPECT_EQ(tensors.at(name + ".v").dtype, SafeDType::U8);
  EXPECT_EQ(tensors.at(name + ".m").dtype, SafeDType::F8_E4M3);
  EXPECT_THAT(load(now, DType::E4M3).remarks, testing::IsEmpty());

  CheckpointStore store(posix_env(), folder.path() + "/old");
  const auto copy = [&](CheckpointWriter& writer) {
    for (const CheckpointFile& file : open_checkpoint(posix_env(), now).files) {
      const std::string text = read_text(now + "/" + file.name);
      writer.file(file.name,
                  [&](Sink& sink) { sink.append(file.name == optimizer ? with_e4m3_roots(text) : text); });
    }
  };
  const std::string path = store.save(12, copy, {"bf16", 1.0}).path;
  EXPECT_EQ(SafetensorsFile::open(posix_env(), path + "/" + optimizer).at(name + ".v").dtype,
            SafeDType::F8_E4M3);
  const Loaded exact = load(path, DType::F32), small = load(path, DType::E4M3);
  EXPECT_THAT(
      small.remarks,
      testing::ElementsAre("AdamW's second moments: converted from F8_E4M3 to the 8-bit code of roots"));
  EXPECT_THAT(exact.remarks, testing::ElementsAre("AdamW's moments: converted from fp8 to fp32"));
  EXPECT_EQ(small.m, exact.m);
  const int64_t cols = tensors.at(name + ".v").shape[1];
  for (int64_t i = 0; i < std::ssize(exact.v); ++i) {
    const int64_t row = i / cols * cols, block = row + (i - row) / kMomentBlock * kMomentBlock;
    const int64_t end = std::min(row + cols, block + kMomentBlock);
    const double largest = std::sqrt(*std::max_element(exact.v.begin() + block, exact.v.begin() + end));
    const double root = std::max(std::sqrt(exact.v[static_cast<size_t>(i)]), largest / 4032);
    ASSERT_NEAR(std::sqrt(small.v[static_cast<size_t>(i)]), root,
                root / (root < largest / 15.75 ? 32 : 64) * 1.001)
        << i;
  }
}

TEST_F(Resume, AllThatDoesNotFitIsListed) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const auto device = make_cpu_device(1);
  Transformer model(model_preset("llama-tiny"), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *device);
  model.allocate();
  const Checkpoint other = open_checkpoint(posix_env(), checkpoint("run", 6, false));
  EXPECT_THAT(error_of([&] { restore_checkpoint(posix_env(), other, *device, model); }),
              AllOf(HasSubstr("does not fit the model"), HasSubstr("layers.3.mlp.down.weight.m is missing"),
                    HasSubstr("layers.0.attention.qkv.weight.m has shape")));
}

// FAULTS 9: what is not finite is neither published nor loaded.
TEST_F(Resume, WeightsThatAreNotFiniteAreNeitherSavedNorLoaded) {
  const auto device = make_cpu_device(1);
  Transformer model(read_hf_config(model_folder()), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *device);
  model.allocate();
  model.parameters().initialise(*device, 1);
  CheckpointStore store(posix_env(), folder.path() + "/store");
  Snapshot snapshot;
  const auto save = [&](int64_t step) {
    snapshot.take(*device, model, {.step = step}, "");
    store.save(step, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0});
  };
  save(1);
  Parameter& bad = model.parameters()["layers.1.mlp.down.weight"];
  std::vector<float> values = ParameterSet::weight_values(*device, bad);
  values[17] = std::nanf("");
  ParameterSet::set_weight(*device, bad, values);
  save(2);  // past the check, as a flipped bit in memory would be
  EXPECT_THAT(error_of([&] { snapshot.check(); }), HasSubstr("layers.1.mlp.down.weight"));
  EXPECT_THAT(error_of([&] { restore_checkpoint(posix_env(), *store.open_latest(), *device, model); }),
              HasSubstr("model.layers.1.mlp.down_proj.weight"));
}

// Where host memory is short the state is written from where it is: the same bytes.
TEST_F(Resume, ASnapshotInPlaceWritesTheSameBytes) {
  const auto device = make_cpu_device(1);
  Transformer model(read_hf_config(model_folder()), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *device);
  model.allocate();
  model.parameters().initialise(*device, 1);
  std::vector<std::string> paths;
  for (const bool in_place : {false, true}) {
    CheckpointStore store(posix_env(), folder.path() + (in_place ? "/in_place" : "/copied"));
    Snapshot snapshot;
    snapshot.take(*device, model, {.step = 1}, "", in_place);
    snapshot.check();
    paths.push_back(
        store.save(1, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0}).path);
  }
  expect_equal_states(paths[0], paths[1]);
}

TEST(TrainerState, SurvivesItsFile) {
  const TrainerState state{.step = 7,
                           .tokens = int64_t{1} << 50,
                           .skipped_steps = 3,
                           .skipped_in_a_row = 1,
                           .loader = {.seed = ~uint64_t{0}, .next_sample = 12345678901},
                           .first_loss = 0.1 + 0.2,
                           .last_loss = INFINITY,
                           .first_eval = 1.0 / 3,
                           .best_eval = {},
                           .loss_window = {1.0 / 7, INFINITY, 2.5},
                           .spikes_in_a_row = 2,
                           .first_level = 1.0 / 9};
  EXPECT_EQ(trainer_state_from_json(to_json(state), "state.json"), state);
  EXPECT_THROW(trainer_state_from_json("{}", "state.json"), Error);
  EXPECT_THROW(
      trainer_state_from_json(R"({"format": "octet trainer state", "version": 1, "step": "x"})", "s"), Error);
}

TEST(TrainerState, ValuesOfOtherKindsAreRefused) {
  const auto error_with = [](const std::string& key, const nlohmann::json& value) {
    nlohmann::json state = nlohmann::json::parse(to_json(TrainerState{.step = 7}));
    state[key] = value;
    return octet::error_of([&] { trainer_state_from_json(state.dump(), "s"); });
  };
  EXPECT_EQ(error_with("step", 8), "nothing was thrown");
  EXPECT_EQ(error_with("format", 5), "[s] is not the state of an octet trainer");
  EXPECT_EQ(error_with("version", 2), "[s] has version 2, this program reads 1");
  EXPECT_EQ(error_with("step", 1e300), "[s] \"step\" is 1e+300, expected an integer");
  EXPECT_EQ(error_with("tokens", 0.5), "[s] \"tokens\" is 0.5, expected an integer");
  EXPECT_EQ(error_with("spikes_in_a_row", int64_t{1} << 40),
            "[s] \"spikes_in_a_row\" is 1099511627776, which is too large");
  EXPECT_EQ(error_with("last_loss", "NaN"),
            "[s] \"last_loss\" is \"NaN\", expected a number, nan, inf or -inf");
  EXPECT_EQ(error_with("loss_window", nlohmann::json::array({1, nullptr})),
            "[s] \"loss_window\" is null, expected a number, nan, inf or -inf");
  EXPECT_EQ(error_with("loader", 3), "[s] the loader's state is not an object");
}

}  // namespace
}  // namespace octet::test
