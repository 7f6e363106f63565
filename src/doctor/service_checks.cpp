#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/process.h"
#include "base/python.h"
#include "data/tokenizer/tokenizer.h"
#include "doctor/checks.h"
#include "import/environment.h"
#include "io/hub.h"
#include "report/text.h"
#include "report/wandb_follower.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

void check_hub(CheckResults& results) {
  const HubSettings hub = hub_settings_from_env();
  std::error_code error;
  const bool is_there = fs::exists(hub.cache, error);
  int64_t repositories = 0;
  if (is_there) {
    for (const auto& entry : fs::directory_iterator(hub.cache, error)) {
      const std::string name = entry.path().filename().string();
      repositories += name.starts_with("models--") || name.starts_with("datasets--");
    }
  }
  const std::string text =
      fmt::format("{}: {}{}{}", hub.cache,
                  is_there ? counted(repositories, "repository", "repositories") : "not there yet",
                  hub.token.empty() ? ", no token" : ", with a token", hub.offline ? ", offline" : "");
  fs::path at = hub.cache;
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  if (::access(at.c_str(), W_OK) != 0) {
    results.warning(
        "hub cache", fmt::format("{}; it cannot be written", text),
        "models and datasets of the hub cannot be downloaded: set HF_HOME to a folder that can be written");
  } else {
    results.ok("hub cache", text);
  }
}

void check_tokenizer(CheckResults& results, const DoctorRun& run) {
  const DataKeys& keys = run.resolved.keys;
  std::string source =
      keys.is_set("tokenizer") || !run.has_model() ? keys.tokenizer : run.resolved.model.tokenizer;
  if (source.empty()) source = keys.tokenizer;
  if (is_hub_name(source)) {
    results.ok("tokenizer", fmt::format("{}: of the hub, opened when the run starts", source));
    return;
  }
  try {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(source);
    results.ok("tokenizer", fmt::format("{}: {} ids", source, tokenizer->vocab_size()));
  } catch (const Error& error) {
    results.failure("tokenizer", error.what(), "name the tokenizer of the model with --tokenizer");
  }
}

// Of the Python package; empty if there is no Python or no such package.
std::string wandb_version() {
  return python_answer("import importlib.metadata as m; print(m.version('wandb'), end='')");
}

void check_wandb(CheckResults& results, const DoctorRun& run) {
  const std::string version = wandb_version(), key = find_wandb_key();
  const std::string text =
      fmt::format("{}; {}", version.empty() ? "the package wandb is not installed" : "wandb " + version,
                  key.empty() ? "no key" : fmt::format("key in {}", key));
  if (!run.resolved.keys.use_wandb) {
    results.ok("Weights & Biases", fmt::format("not used (use_wandb is false); {}", text));
  } else if (version.empty()) {
    results.warning("Weights & Biases", text, "nothing would be sent: 'pip install wandb'");
  } else if (key.empty()) {
    results.warning("Weights & Biases", text, "runs are kept offline: 'wandb login', or set WANDB_API_KEY");
  } else {
    results.ok("Weights & Biases", text);
  }
}

}  // namespace

std::vector<CheckResult> check_services(const DoctorRun& run) {
  CheckResults results("services");
  check_hub(results);
  if (run.is_given) check_tokenizer(results, run);
  check_wandb(results, run);
  return results.take();
}

std::vector<CheckResult> check_environment() {
  CheckResults results("environment");
  for (const EnvironmentNote& note : environment_effects(environment_entries())) {
    switch (note.effect) {
      case EnvironmentEffect::Works:
        results.ok(note.name, note.text);
        break;
      case EnvironmentEffect::Nothing:
        results.ok(note.name, note.text);
        break;
      case EnvironmentEffect::Hurts:
        results.warning(note.name, note.text, fmt::format("'unset {}'", note.name));
        break;
    }
  }
  return results.take();
}

}  // namespace octet
