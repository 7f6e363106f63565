#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "octet/error.h"
#include "octet/log.h"

// Training as a library: this is the one header that other programs include. They link the CMake target octet::octet.

namespace octet {

// Rows of token ids, row after row, all of one length. A row is one document. A label is the token itself, at its own
// place: the model learns to predict the label at place t + 1 from the tokens up to t. -100 is not trained.
struct Rows {
  std::span<const int32_t> input_ids;
  int64_t length = 0;                    // of a row
  std::span<const int32_t> labels = {};  // as many as input_ids; empty: the input_ids
};

struct SessionStep {
  int64_t step = 0;  // counted from 1
  double loss = 0;   // mean over all targets of the step
  double penalty = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;    // without padding, and without what follows the last label of a row
  double seconds = 0;    // of the whole call, with drawing or cutting its rows
  bool skipped = false;  // loss or norm was not finite: nothing has changed
};

struct SessionScore {
  double loss = 0;
  double accuracy = 0;  // share of targets that were the likeliest token
  int64_t targets = 0;
};

struct SessionSampling {
  int64_t max_new_tokens = 64;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // 0: all
  double top_p = 1;
  uint64_t seed = 0;
};

// A weight of the model.
struct SessionTensor {
  std::string name;  // as Hugging Face has it
  std::vector<int64_t> shape;
};

struct SessionFacts {
  int64_t parameters = 0, trainable_parameters = 0, vocab_size = 0;
  int64_t rows = 0, length = 0;   // of a micro-batch
  int64_t accumulation = 1;       // micro-batches of a step of the session's own data
  std::string precision, device;  // in words: "FP8", "NVIDIA H200"
  bool has_data = false;          // settings name a dataset
  std::vector<SessionTensor> tensors;
};

struct FileSettings;
struct KeySetting;

// A model in training in this process, on one device. The caller decides what each step reads, and when to evaluate,
// generate and save. Only the save functions write, and the constructor, into the cache: what it downloads, and a dataset
// that it has to prepare. Signals stay the caller's, with two exceptions: while a dataset is prepared, Ctrl-C stops that; and
// a mapped file that gets shorter while it is read ends the process with a message (SIGBUS). Not thread-safe, but several
// sessions may live in a process. Functions throw Error; ConfigError if settings or arguments are wrong, and then nothing has
// changed.
class Session {
 public:
  // `arguments` as those of `octet train`: {"--model_preset", "gpt2", "--mixed_precision", "fp8"}, and perhaps a YAML
  // file. Without a dataset the caller brings all batches; then the learning rate is constant unless max_steps is set.
  explicit Session(std::span<const std::string> arguments);
  explicit Session(std::initializer_list<std::string> arguments)
      : Session(std::span<const std::string>(arguments.begin(), arguments.end())) {}
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const SessionFacts& facts() const;
  int64_t steps_done() const;

  // One optimizer step. Any number of rows that are not longer than facts().length: they become as many micro-batches
  // as they need. The learning rate is that of the schedule unless it is given.
  SessionStep step(const Rows& rows, std::optional<double> learning_rate = {});
  // The same on the next batch of the dataset in the settings.
  SessionStep step(std::optional<double> learning_rate = {});

  // Changes nothing.
  SessionScore evaluate(const Rows& rows);
  SessionScore evaluate();  // on held-out data of the dataset

  // Continues the prompts. If the model learns conversations from the dataset, a prompt is what a user says.
  std::vector<std::string> generate(std::span<const std::string> prompts,
                                    const SessionSampling& sampling = {});
  std::string generate(const std::string& prompt, const SessionSampling& sampling = {}) {
    return generate(std::span(&prompt, 1), sampling).front();
  }
  std::vector<int32_t> encode(const std::string& text);
  std::string decode(std::span<const int32_t> ids);

  // The whole state in memory: after restore(), the same batches give the same bits.
  class State;
  std::shared_ptr<const State> snapshot() const;
  void restore(const State& state);

  // The same on disk, as `octet train` writes and resumes it: FOLDER/step_N, whose path is returned. `path` for loading is
  // that, or a folder of checkpoints or of a run, whose latest is taken. After an Error of restore() or load_checkpoint()
  // that is no ConfigError, the state may be mixed: load another one.
  std::string save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& path);
  // A folder that Transformers loads, or with adapters PEFT. It must not exist or be empty. Without its tokenizer, if that
  // cannot be read.
  void save(const std::string& folder);

  // Exact fp32 values of a tensor in facts().tensors.
  std::vector<float> tensor(const std::string& name) const;

 private:
  friend Session open_session(const FileSettings& file, std::span<const KeySetting> flags);
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> run_;
};

}  // namespace octet
