#include "data/datasets/dataset_info.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/env.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_info(const std::string& folder) {
  const std::string path = join_path(folder, kDatasetInfoName);
  json info = parse_json(posix_env().read_text(path), path);
  if (!info.is_object()) fail_config("{} is not a JSON object; expected a map of dataset names", path);
  return info;
}

// One entry of the file.
class Entry {
 public:
  Entry(std::string folder, const std::string& name, const json& entry)
      : folder_(std::move(folder)),
        place_(fmt::format("dataset {} in {}", name, join_path(folder_, kDatasetInfoName))),
        json_(entry) {
    if (!json_.is_object()) refuse("is {}, expected an object", json_.type_name());
  }

  DatasetPart part() const {
    refuse_other_kinds();
    DatasetPart part;
    set_source(part);
    part.split = text(json_, "split");
    part.subset = text(json_, "subset");
    if (part.subset.empty()) part.subset = text(json_, "folder");  // of the repository
    if (const auto found = json_.find("num_samples"); found != json_.end() && !found->is_null()) {
      if (!found->is_number_integer() || found->get<int64_t>() < 1)
        refuse("has num_samples {}, expected a whole number above 0", found->dump());
      part.max_samples = found->get<int64_t>();
    }
    const std::string formatting = text(json_, "formatting", "alpaca");
    if (formatting == "alpaca") {
      set_alpaca(part);
    } else if (formatting == "sharegpt" || formatting == "openai") {
      set_conversation(part, formatting == "openai");
    } else {
      refuse("has formatting {}, expected alpaca, sharegpt or openai", printable(formatting));
    }
    return part;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail_config("{} {}", place_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string text(const json& object, const char* key, std::string otherwise = "") const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return otherwise;
    if (!found->is_string()) refuse("has {} {}, expected text", key, found->dump());
    return found->get<std::string>();
  }

  const json& section(const char* key) const {
    static const json kEmpty = json::object();
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return kEmpty;
    if (!found->is_object()) refuse("has {} {}, expected an object", key, found->dump());
    return *found;
  }
  std::string column(const char* key, std::string otherwise = "") const {
    return text(section("columns"), key, std::move(otherwise));
  }

  void refuse_other_kinds() const {
    const auto ranking = json_.find("ranking");
    if (ranking != json_.end() && ranking->is_boolean() && ranking->get<bool>())
      refuse("holds ranked answers (ranking: true) for preference training, which octet does not do");
    for (const char* key : {"chosen", "rejected", "kto_tag"}) {
      if (!column(key).empty())
        refuse("has a column for {}: it is for preference training, which octet does not do", key);
    }
    for (const char* key : {"images", "videos", "audios"}) {
      if (!column(key).empty()) refuse("has a column for {}; octet trains on text only", key);
    }
  }

  void set_source(DatasetPart& part) const {
    const std::string file = text(json_, "file_name"), hub = text(json_, "hf_hub_url");
    std::error_code error;
    const std::string path = file.empty() ? "" : join_path(folder_, file);
    if (!file.empty() && (hub.empty() || fs::exists(path, error))) {
      if (!fs::exists(path, error)) refuse("names the file {}, which does not exist", path);
      part.path = path;
    } else if (!hub.empty()) {
      part.path = hub;
    } else {
      for (const char* key : {"ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
        if (!text(json_, key).empty())
          refuse("has only {} ({}); octet reads file_name and hf_hub_url", key, text(json_, key));
      }
      refuse("has neither file_name nor hf_hub_url");
    }
  }

  // A column that octet knows under one name only.
  void require_column(const char* key, const char* known) const {
    const std::string given = column(key);
    if (!given.empty() && given != known)
      refuse("has its {} in column {}; octet reads it only from a column named {}: rename it", key,
             printable(given), known);
  }

  void set_alpaca(DatasetPart& part) const {
    require_column("query", "input");
    require_column("history", "history");
    require_column("system", "system");
    require_column("tools", "tools");
    if (section("columns").empty()) {
      part.format = ExampleFormat::Alpaca;
      return;
    }
    const std::string prompt = column("prompt"), response = column("response");
    if (prompt.empty()) refuse("has columns, but none for prompt");
    if (response.empty()) {  // texts for pretraining
      part.format = ExampleFormat::Text;
      part.text_column = prompt;
      return;
    }
    const bool has_more = !column("query").empty() || !column("history").empty();
    part.format = has_more ? ExampleFormat::Alpaca : ExampleFormat::PromptCompletion;
    part.prompt_column = prompt;
    part.completion_column = response;
  }

  void set_conversation(DatasetPart& part, bool openai) const {
    require_column("system", "system");
    require_column("tools", "tools");
    const json& tags = section("tags");
    const std::string role = text(tags, "role_tag", openai ? "role" : "from");
    const std::string content = text(tags, "content_tag", openai ? "content" : "value");
    const bool is_messages = role == "role" && content == "content";
    if (!is_messages && !(role == "from" && content == "value"))
      refuse("has messages of {} and {}; octet reads from and value, or role and content", printable(role),
             printable(content));
    check_tag(tags, "user_tag", {"human", "user"});
    check_tag(tags, "assistant_tag", {"gpt", "assistant", "chatgpt", "model"});
    check_tag(tags, "system_tag", {"system", "developer"});
    part.format = is_messages ? ExampleFormat::Messages : ExampleFormat::ShareGpt;
    part.messages_column = column("messages", openai ? "messages" : "conversations");
  }

  void check_tag(const json& tags, const char* key, std::initializer_list<const char*> known) const {
    const std::string given = text(tags, key, *known.begin());
    if (std::ranges::find(known, given) == known.end())
      refuse("has {} {}; octet knows {}", key, printable(given), fmt::join(known, ", "));
  }

  std::string folder_, place_;
  const json& json_;
};

}  // namespace

bool has_dataset_info(const std::string& folder) {
  std::error_code error;
  return !folder.empty() && fs::is_regular_file(fs::path(folder) / kDatasetInfoName, error);
}

std::vector<std::string> dataset_info_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : read_info(folder).items()) names.push_back(name);
  return names;
}

std::optional<DatasetPart> find_dataset_info(const std::string& folder, const std::string& name) {
  if (!has_dataset_info(folder)) return std::nullopt;
  const json info = read_info(folder);
  const auto found = info.find(name);
  if (found == info.end()) return std::nullopt;
  return Entry(folder, name, *found).part();
}

}  // namespace octet
