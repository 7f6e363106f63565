#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "demo/demo_exam.h"
#include "generate/generate.h"
#include "plan/run_spec.h"
#include "report/console.h"

namespace octet {

// What a run shows of its model in words: samples of text, and the demo's exam.
class Samples {
 public:
  Samples(const RunSpec& run, Transformer& model) : run_(run), model_(model) {}

  // Takes the memory of samples before training takes what is free. The run goes on without samples at evaluations that
  // do not fit.
  void reserve();
  // Whether a sample is due after step number `step`, counted from 0.
  bool is_due(int64_t step, bool is_evaluated) const;
  // Of the model before training, to be shown next to what it says afterwards.
  void before();
  // Text of the model as it is now. Nothing if it cannot be made; the run goes on without samples then.
  std::optional<std::string> make();
  // Prints what the trained model says. Gives the share of unseen cases that the demo answers exactly.
  std::optional<double> after(Console& console);

  int64_t allocated_bytes() const { return generator_ ? generator_->allocated_bytes() : 0; }

 private:
  Generator& generator();
  void give_up(const Error& error);
  // Whether the run ends with a sample, next to what the model said at first.
  bool shows_last() const { return spec().steps > 0 && spec().rows > 0; }
  const SampleSpec& spec() const { return run_.samples; }

  const RunSpec& run_;
  Transformer& model_;
  std::unique_ptr<Generator> generator_;
  DemoExam exam_;
  std::optional<std::string> before_;
  bool failed_ = false;
};

}  // namespace octet
