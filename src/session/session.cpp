#include "octet/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "checkpoint/resume_path.h"
#include "checkpoint/snapshot.h"
#include "config/notes.h"
#include "generate/generate.h"
#include "hf/hf_folder.h"
#include "plan/data_loaders.h"
#include "plan/resolve.h"
#include "session/open_session.h"
#include "session/row_batches.h"
#include "step/training_session.h"
#include "train/evaluate.h"
#include "train/start.h"
#include "train/step.h"

namespace octet {
namespace {

// The steps of a session without a schedule are not known beforehand.
constexpr int64_t kEndless = int64_t{1} << 40;

// The learning rate where nobody has said how many steps there will be.
ScheduleConfig constant_rate(const ScheduleKeys& keys) {
  return {.type = ScheduleType::Constant,
          .peak_lr = keys.learning_rate,
          .warmup_steps = keys.warmup_steps,
          .max_steps = kEndless};
}

ResolvedRun open_run(const FileSettings& file, std::span<const KeySetting> flags) {
  const TrainConfig given = load_session_config(file, flags);
  if (!given.resume.empty())
    fail_config("{} is not for sessions: use load_checkpoint", given.origins.find("resume")->second);
  if (given.pretend_ranks != 0)
    fail_config("{} is not for sessions, which have one rank", given.origins.find("pretend_ranks")->second);
  tell_of_settings({&given, 1}, runs_on_gpu(given.device));
  const bool has_data = !given.dataset.empty(), has_schedule = has_data || given.max_steps > 0;
  ResolvedRun run = resolve(given, Wanted::by_session(has_data, has_schedule));
  if (!has_schedule) run.optimizer.schedule = constant_rate(run.keys);
  return run;
}

std::vector<KeySetting> settings_of(std::span<const std::string> arguments, std::string& path) {
  std::vector<std::string> errors;
  KeyArguments read = parse_key_arguments(train_keys().keys(), arguments, errors);
  throw_config_errors(errors);
  if (read.positionals.size() > 1)
    fail_config("{} follows {}; expected one configuration file", read.positionals[1], read.positionals[0]);
  if (!read.positionals.empty()) path = read.positionals[0];
  return std::move(read.settings);
}

void check_rate(std::optional<double> rate) {
  // AdamW takes it as fp32.
  if (rate && !(*rate >= 0 && std::isfinite(static_cast<float>(*rate))))
    fail_config("[lr] is {}; expected a number from 0 on", *rate);
}

void check_path(const std::string& path) {
  if (path.empty()) fail_config("[path] is empty; expected a folder");
}

bool has_targets(std::span<const Batch> batches) {
  return std::ranges::any_of(batches, [](const Batch& batch) { return batch.target_count > 0; });
}

// The limits of `octet generate`.
void check_sampling(const SessionSampling& sampling) {
  const auto check = [](bool is_right, const char* name, auto value, const char* expected) {
    if (!is_right) fail_config("[{}] is {}; expected {}", name, value, expected);
  };
  const double temperature = sampling.temperature;
  check(sampling.max_new_tokens >= 1, "max_new_tokens", sampling.max_new_tokens, "at least 1");
  check(std::isfinite(temperature) && temperature >= 0, "temperature", temperature, "at least 0");
  check(sampling.top_k >= 0, "top_k", sampling.top_k, "at least 0");
  check(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "0 to 1");
}

struct BytesSink : Sink {
  std::vector<std::byte> bytes;
  void append(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

}  // namespace

class Session::State {
 public:
  TrainingState training;
  LoaderState loader;
  int64_t step = 0, tokens = 0;
};

// The parts of a session, in the order in which they are made.
struct Session::Impl {
  Impl(const FileSettings& file, std::span<const KeySetting> flags)
      : run(reading_input([&] { return open_run(file, flags); })),
        model(run.model.config, run.plan.shape, run.plan.numerics, *run.device, run.plan.finetuning) {
    Console quiet(ConsoleMode::Quiet);
    adapter_files = start_weights(env, run, model, quiet, *ranks).adapter_files;
    if (has_data()) loader = make_train_loader(run.loading, run.data, run.plan.shape.rows);
    training.emplace(model, *run.device, run.optimizer, run.penalty);
    set_facts();
  }

  bool has_data() const { return !run.data.data.train.empty(); }
  void need_data(const char* what) const {
    if (!has_data()) fail_config("[session] there is no dataset: pass {}, or set dataset", what);
  }

  const Tokenizer& tokenizer() {
    if (!run.data.tokenizer) {
      std::string name = choose_tokenizer(run.keys, run.model.tokenizer), source = name;
      run.data.tokenizer = read_tokenizer(run.keys, name, source, InNeed::Error);
      run.data.tokenizer_name = name;
      run.data.tokenizer_source = source;
    }
    return *run.data.tokenizer;
  }

  SessionStep train(std::span<const Batch> batches, std::optional<double> rate, Clock::time_point start) {
    const std::vector<HostBatch> views = host_views(batches);
    const StepResult result =
        training->step({.step = step,
                        .micro_batches = views,
                        .learning_rate = rate.value_or(learning_rate(run.schedule(), step))});
    if (step++ == 0) first_loss = result.loss;
    last_loss = result.loss;
    tokens += result.tokens;
    return {.step = step,
            .loss = result.loss,
            .penalty = result.penalty,
            .grad_norm = result.grad_norm,
            .learning_rate = result.learning_rate,
            .tokens = result.tokens,
            .seconds = seconds_since(start),
            .skipped = result.skipped};
  }

  // Finds what export writes besides the weights.
  ModelFolder about() {
    ModelFolder about = run.model.start.value_or(ModelFolder{.source = "the model of the session"});
    about.config = model.config();
    about.checkpoint.reset();
    about.adapter.reset();
    try {
      tokenizer();
      about.tokenizer = run.data.tokenizer_source;
    } catch (const ConfigError& error) {
      log_warning("the model is saved without a tokenizer: {}", error.what());
      about.tokenizer.clear();
    }
    return about;
  }

  // As train_config.yaml of a checkpoint has it.
  std::string settings() const {
    TrainConfig config = run.config;
    if (!run.data.tokenizer_name.empty()) config.tokenizer = run.data.tokenizer_name;
    return to_yaml(config);
  }

  std::vector<NamedText> checkpoint_texts() const {
    std::vector<NamedText> texts = adapter_files;
    const DataChoice& data = run.data;
    if (!data.tokenizer_source.empty()) {
      for (NamedText& text : read_tokenizer_texts(env, data.tokenizer_source))
        texts.push_back(std::move(text));
    }
    if (const auto chat = data.data.chat()) texts.push_back({checkpoint_file::kChat, to_chat_json(*chat)});
    return texts;
  }

  // Adapters on another base would be another model.
  void check_base(const Checkpoint& checkpoint) const {
    const auto own = std::ranges::find(adapter_files, checkpoint_file::kBase, &NamedText::name);
    if (own == adapter_files.end() || !checkpoint.has_file(checkpoint_file::kBase)) return;
    const std::string path = checkpoint.file_path(checkpoint_file::kBase);
    const std::string text = differences(base_identity_from_json(env.read_text(path), path),
                                         base_identity_from_json(own->text, own->name));
    if (!text.empty()) fail("[{}] {}", path, text);
  }

  Env& env = posix_env();
  std::unique_ptr<Ranks> ranks = make_single_rank();
  ResolvedRun run;
  Transformer model;
  std::vector<NamedText> adapter_files;
  std::unique_ptr<BatchSource> loader;
  std::optional<TrainingSession> training;  // once the weights are there
  std::unique_ptr<Generator> generator;     // once something was generated, for so many prompts:
  int64_t generator_rows = 0;
  std::vector<Batch> drawn;
  int64_t step = 0, tokens = 0;
  double first_loss = 0, last_loss = 0;
  SessionFacts facts;

  void set_facts() {
    facts = {.vocab_size = model.config().vocab,
             .rows = model.shape().rows,
             .length = model.shape().length,
             .accumulation = run.plan.accumulation,
             .precision = run.plan.precision_label,
             .device = run.device->name(),
             .has_data = has_data()};
    std::vector<ParameterSpec> table;
    const std::vector<Parameter>& parameters = model.parameters().all();
    for (const Parameter& parameter : parameters) table.push_back(parameter.spec);
    for (const HfTensor& tensor : hf_tensors(table)) {
      const SafeTensorSpec spec = tensor.as(SafeDType::F32);
      const int64_t count = spec.byte_size() / static_cast<int64_t>(sizeof(float));  // without padding
      const ParameterStorage& storage = parameters[tensor.parameter].storage;
      facts.parameters += count;
      if (storage.trainable) facts.trainable_parameters += count;
      if (storage.has_dense_rows()) facts.tensors.push_back({spec.name, spec.shape});
    }
  }
};

Session::Session(std::span<const std::string> arguments) {
  std::string path;
  const std::vector<KeySetting> flags = settings_of(arguments, path);
  run_ = std::make_unique<Impl>(read_config_file(path), flags);
}

Session::Session(std::unique_ptr<Impl> impl) : run_(std::move(impl)) {}

Session open_session(const FileSettings& file, std::span<const KeySetting> flags) {
  return Session(std::make_unique<Session::Impl>(file, flags));
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const SessionFacts& Session::facts() const {
  return run_->facts;
}

int64_t Session::steps_done() const {
  return run_->step;
}

SessionStep Session::step(const Rows& rows, std::optional<double> rate) {
  const auto start = Clock::now();
  check_rate(rate);
  const std::vector<Batch> batches = row_batches(rows, run_->model.shape(), run_->model.config().vocab);
  if (!has_targets(batches)) fail_config("[labels] no place of this step is trained");
  return run_->train(batches, rate, start);
}

SessionStep Session::step(std::optional<double> rate) {
  const auto start = Clock::now();
  check_rate(rate);
  run_->need_data("input_ids");
  const LoaderState before = run_->loader->state();
  run_->drawn.resize(static_cast<size_t>(run_->run.plan.accumulation));
  for (Batch& batch : run_->drawn) run_->loader->next(batch);
  if (!has_targets(run_->drawn)) {
    run_->loader->set_state(before);
    fail_config("[dataset] no place of this step is trained");
  }
  return run_->train(run_->drawn, rate, start);
}

SessionScore Session::evaluate(const Rows& rows) {
  Transformer& model = run_->model;
  SessionScore score;
  for (const Batch& batch : row_batches(rows, model.shape(), model.config().vocab)) {
    model.load(host_view(batch));
    model.forward_loss({}, run_->run.evaluation.fp8);
    for (const float loss : model.target_losses()) score.loss += static_cast<double>(loss);
    score.accuracy += static_cast<double>(model.correct_targets());
    score.targets += batch.target_count;
  }
  model.clear_sums();
  if (score.targets == 0) fail_config("[labels] no place is evaluated");
  score.loss /= static_cast<double>(score.targets);
  score.accuracy /= static_cast<double>(score.targets);
  return score;
}

SessionScore Session::evaluate() {
  run_->need_data("input_ids");
  const RunSpec& run = run_->run;
  const Evaluator evaluator(make_eval_sets(run.loading, run.data.data.eval, run.data.tokenizer.get()),
                            run.evaluation.batches);
  const std::optional<Evaluation> found = evaluator.evaluate(run_->model, run.evaluation.fp8);
  if (!found) fail_config("[session] no evaluation: {}", no_evaluation_reason(run.loading, run.data.data));
  return {.loss = found->loss, .accuracy = found->accuracy, .targets = found->targets};
}

std::vector<std::string> Session::generate(std::span<const std::string> prompts,
                                           const SessionSampling& sampling) {
  constexpr int64_t kMostTogether = 16;  // each needs memory for a whole context
  check_sampling(sampling);
  if (prompts.empty()) return {};
  const Tokenizer& tokenizer = run_->tokenizer();
  const int64_t rows = std::min<int64_t>(std::ssize(prompts), kMostTogether);
  if (!run_->generator || run_->generator_rows < rows) {
    run_->generator.reset();
    run_->generator = std::make_unique<Generator>(run_->model, *run_->run.device, tokenizer, rows,
                                                  run_->model.shape().length, run_->run.data.data.chat());
    run_->generator_rows = rows;
  }
  return run_->generator->continue_prompts({prompts.begin(), prompts.end()},
                                           {.max_tokens = sampling.max_new_tokens,
                                            .temperature = sampling.temperature,
                                            .top_k = sampling.top_k,
                                            .top_p = sampling.top_p,
                                            .seed = sampling.seed});
}

std::vector<int32_t> Session::encode(const std::string& text) {
  return run_->tokenizer().encode(text);
}

std::string Session::decode(std::span<const int32_t> ids) {
  return reading_input([&] { return run_->tokenizer().decode(ids); });
}

std::shared_ptr<const Session::State> Session::snapshot() const {
  const auto state = std::make_shared<State>();
  state->training = run_->training->snapshot();
  if (run_->loader) state->loader = run_->loader->state();
  state->step = run_->step;
  state->tokens = run_->tokens;
  return state;
}

void Session::restore(const State& state) {
  run_->training->restore(state.training);
  if (run_->loader) run_->loader->set_state(state.loader);
  run_->step = state.step;
  run_->tokens = state.tokens;
}

std::string Session::save_checkpoint(const std::string& folder) {
  check_path(folder);
  const RunSpec& run = run_->run;
  Snapshot snapshot;
  TrainerState state{.step = run_->step,
                     .tokens = run_->tokens,
                     .first_loss = run_->first_loss,
                     .last_loss = run_->last_loss,
                     .sequences_per_step = run.plan.sequences_per_step()};
  if (run_->loader) state.loader = run_->loader->state();
  snapshot.take(*run.device, run_->model, std::move(state), run_->settings(), true);
  snapshot.check();
  const std::vector<NamedText> texts = run_->checkpoint_texts();
  const auto write = [&](CheckpointWriter& writer) {
    snapshot.write(writer);
    for (const NamedText& file : texts) writer.file(file.name, [&](Sink& sink) { sink.append(file.text); });
  };
  return CheckpointStore(run_->env, folder)
      .save(run_->step, write, {.precision = run.plan.precision_label})
      .path;
}

void Session::load_checkpoint(const std::string& path) {
  check_path(path);
  const bool is_one = run_->env.exists(join_path(path, checkpoint_file::kState));
  const auto newest =
      is_one ? std::nullopt : newest_checkpoint(run_->env, checkpoint_folders(run_->env, path));
  if (!is_one && !newest) fail_config("[{}] holds no checkpoint", path);
  const Checkpoint checkpoint = open_checkpoint(run_->env, is_one ? path : newest->checkpoint.path);
  run_->check_base(checkpoint);
  const Restored restored = restore_checkpoint(run_->env, checkpoint, *run_->run.device, run_->model);
  for (const std::string& remark : restored.remarks) log_info("{}: {}", checkpoint.path, remark);
  if (run_->loader) run_->loader->set_state(restored.state.loader);
  run_->step = restored.state.step;
  run_->tokens = restored.state.tokens;
  run_->first_loss = restored.state.first_loss;
  run_->last_loss = restored.state.last_loss;
}

void Session::save(const std::string& folder) {
  check_path(folder);
  for (const Parameter& parameter : run_->model.parameters().all()) {
    if (!parameter.storage.trainable) continue;
    const std::vector<float> values = ParameterSet::weight_values(*run_->run.device, parameter);
    require(all_finite(std::as_bytes(std::span(values)), DType::F32),
            "[save] {} holds values that are not finite; the model is not saved", parameter.spec.name);
  }
  export_trained(run_->env, *run_->run.device, run_->model, run_->about(), run_->run.data.data.chat(),
                 run_->run.model.base_name, folder);
}

std::vector<float> Session::tensor(const std::string& name) const {
  const ParameterSet& parameters = run_->model.parameters();
  std::vector<ParameterSpec> table;
  for (const Parameter& parameter : parameters.all()) table.push_back(parameter.spec);
  for (const HfTensor& tensor : hf_tensors(table)) {
    const SafeTensorSpec spec = tensor.as(SafeDType::F32);
    if (spec.name != name) continue;
    if (!parameters.all()[tensor.parameter].storage.has_dense_rows())
      fail_config("[{}] is kept only in FP8, because it is frozen", name);
    // As a file that holds this tensor alone, in the layout of Hugging Face: the values follow the header.
    BytesSink file;
    write_hf_tensors(file, {&tensor, 1}, SafeDType::F32,
                     device_weight_rows(*run_->run.device, parameters, SafeDType::F32));
    std::vector<float> values(static_cast<size_t>(spec.byte_size()) / sizeof(float));
    std::memcpy(values.data(), file.bytes.data() + file.bytes.size() - values.size() * sizeof(float),
                values.size() * sizeof(float));
    return values;
  }
  fail_config("[tensor] there is no {}", name);
}

}  // namespace octet
