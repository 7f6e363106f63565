// Trains a small model on rows of its own, measures it, lets it write, and saves it for Transformers.
#include <octet/session.h>
#include <cstdio>
#include <numeric>

int main(int argc, char** argv) {
  const std::string output = argc > 1 ? argv[1] : "counting-model";
  try {
    octet::Session session({"--model_preset", "gpt2-tiny", "--mixed_precision", "fp8", "--max_seq_length",
                            "64", "--per_device_train_batch_size", "8", "--learning_rate", "2e-3",
                            "--tokenizer", "bytes"});
    std::printf("%lld parameters in %s on %s\n", static_cast<long long>(session.facts().parameters),
                session.facts().precision.c_str(), session.facts().device.c_str());

    // Rows that count up: the model has to learn that "c" follows "b".
    const int64_t rows = session.facts().rows, length = session.facts().length;
    std::vector<int32_t> ids(static_cast<size_t>(rows * length));
    for (int step = 0; step < 60; ++step) {
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = 'a' + static_cast<int32_t>((i + i / 64 + step) % 26);
      const octet::SessionStep done = session.step({.input_ids = ids, .length = length});
      if (done.step % 20 == 0)
        std::printf("step %lld: loss %.4f\n", static_cast<long long>(done.step), done.loss);
    }
    const octet::SessionScore score = session.evaluate({.input_ids = ids, .length = length});
    const std::string prompt = "abcdef";
    const std::string text = session.generate(prompt, {.max_new_tokens = 12, .temperature = 0});
    std::printf("loss %.4f, accuracy %.2f; %s -> %s\n", score.loss, score.accuracy, prompt.c_str(),
                text.c_str());
    session.save(output);
    std::printf("saved in %s\n", output.c_str());
    return text.starts_with("ghij") ? 0 : 1;
  } catch (const octet::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
