// Whatever the bytes: as a configuration of a run, a sweep, questions of a task, a model's config.json or the manifest
// of a dataset they give an Error; or what was read is the same after it was written and read again. The first byte
// chooses which.

#include "base/error.h"
#include "base/log.h"
#include "config/config.h"
#include "data/records/record_reader.h"
#include "data/shards/manifest.h"
#include "eval/task_formats.h"
#include "fuzz_support.h"
#include "model/config.h"
#include "model/parameters.h"
#include "sweep/sweep_spec.h"

namespace {

using namespace octet;

TrainConfig read_run(const std::string& text, const std::string& name) {
  FileSettings file{.path = name, .settings = {}, .errors = {}};
  file.settings = parse_settings(text, name, file.errors);
  return load_train_config(std::move(file), {});
}

void check_run(const std::string& text) {
  const TrainConfig run = read_run(text, "fuzz.yaml");
  must_succeed([&] {
    const std::string written = to_yaml(run);
    expect(to_yaml(read_run(written, "written.yaml")) == written);
  });
}

void check_sweep(const std::string& text) {
  const SweepSpec spec = parse_sweep(text, "fuzz.yaml");
  spec.identity();
  spec.grid_size();
  for (const SweepParameter& parameter : spec.parameters) {
    const Distribution& distribution = parameter.distribution;
    const int64_t count = distribution.count().value_or(0);
    for (int64_t i = 0; i < std::min<int64_t>(count, 3); ++i) expect(!distribution.value_at(i).empty());
    if (count > 0) distribution.value_at(count - 1);
    for (const double u : {0.0, 1e-9, 0.3, 0.5, 0.999, 1.0}) {
      const std::string value = distribution.value_of(u);
      for (const double place : distribution.coordinates(value)) expect(place >= 0 && place <= 1);
    }
  }
}

void check_question(const TaskQuestion& question) {
  expect(!question.choices.empty());
  expect(question.label >= 0 && question.label < std::ssize(question.choices));
}

void check_task(const std::string& text) {
  const std::unique_ptr<RecordReader> reader = json_lines(memory_byte_stream(text, "fuzz"));
  Record record;
  while (reader->next(record)) {
    for (const TaskFormat& format : task_formats()) {
      try {
        check_question(format.read(record.value, reader->place()));
      } catch (const ConfigError&) {
      }
    }
    guess_task_format(record.value, reader->place());
  }
}

void check_model(const std::string& text) {
  const ModelConfig config = model_config_from_hf(text, "fuzz");
  expect(config.parameter_count() > 0);
  if (config.layers <= 100) expect(!parameter_table(config).empty());
  must_succeed([&] {
    const ModelConfig again = model_config_from_hf(to_hf_config(config, DType::BF16), "written");
    expect(again.width == config.width && again.layers == config.layers && again.vocab == config.vocab);
  });
}

void check_dataset(const std::string& text) {
  const DatasetManifest manifest = parse_dataset_manifest(sealed(text), "fuzz");
  must_succeed(
      [&] { expect(parse_dataset_manifest(dataset_manifest_text(manifest), "written") == manifest); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const LogSink silent = set_log_sink([](LogLevel, std::string_view) {});
  constexpr void (*kChecks[])(const std::string&) = {check_run, check_sweep, check_task, check_model,
                                                     check_dataset};
  const auto [reader, text] = take_choice(data, size, std::size(kChecks));
  try {
    kChecks[reader](text);
  } catch (const Error&) {
  }
  return 0;
}
