#include "base/key_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "base/words.h"

namespace octet {
namespace {

using Words = std::set<std::string, std::less<>>;

// Words that mean the same in the names of keys. The right side is the one that is compared.
constexpr std::array<std::pair<std::string_view, std::string_view>, 71> kSameWords = {{
    {"accum", "accumulation"},
    {"acc", "accumulation"},
    {"adam", "optimizer"},
    {"amp", "precision"},
    {"batches", "batch"},
    {"bs", "batch"},
    {"bsz", "batch"},
    {"checkpoint", "save"},
    {"checkpoints", "save"},
    {"ckpt", "save"},
    {"clip", "norm"},
    {"clipping", "norm"},
    {"context", "length"},
    {"corpus", "dataset"},
    {"cores", "threads"},
    {"cpus", "threads"},
    {"ctx", "length"},
    {"cutoff", "length"},
    {"data", "dataset"},
    {"datasets", "dataset"},
    {"dev", "eval"},
    {"directory", "dir"},
    {"dtype", "precision"},
    {"epoch", "epochs"},
    {"evaluate", "eval"},
    {"evaluation", "eval"},
    {"every", "steps"},
    {"exp", "run"},
    {"experiment", "run"},
    {"float8", "fp8"},
    {"folder", "dir"},
    {"freq", "steps"},
    {"frequency", "steps"},
    {"generate", "sample"},
    {"generation", "sample"},
    {"grad", "gradient"},
    {"gradients", "gradient"},
    {"grads", "gradient"},
    {"gpu", "device"},
    {"gpus", "device"},
    {"interval", "steps"},
    {"iter", "steps"},
    {"iteration", "steps"},
    {"iterations", "steps"},
    {"iters", "steps"},
    {"layer", "layers"},
    {"len", "length"},
    {"log", "logging"},
    {"logs", "logging"},
    {"lr", "learning"},
    {"opt", "optimizer"},
    {"optim", "optimizer"},
    {"out", "output"},
    {"positions", "position"},
    {"path", "dir"},
    {"quantization", "precision"},
    {"recompute", "checkpointing"},
    {"rematerialization", "checkpointing"},
    {"report", "logging"},
    {"restart", "resume"},
    {"saving", "save"},
    {"saves", "save"},
    {"scheduler", "schedule"},
    {"seq", "length"},
    {"seqlen", "length"},
    {"sequence", "length"},
    {"step", "steps"},
    {"tok", "tokenizer"},
    {"val", "eval"},
    {"validation", "eval"},
    {"wd", "decay"},
}};

// Words that say little about which key is meant.
constexpr std::array<std::string_view, 23> kSmallWords = {
    "a",  "and", "by",  "count",  "do",   "enable", "for",   "in",       "max",  "n",   "name", "num",
    "of", "on",  "per", "number", "size", "the",    "total", "training", "type", "use", "with",
};

Words words_of(std::string_view text) {
  Words words;
  for (std::string& word : lower_words(text)) {
    const auto same =
        std::ranges::find(kSameWords, word, &std::pair<std::string_view, std::string_view>::first);
    words.insert(same == kSameWords.end() ? std::move(word) : std::string(same->second));
  }
  return words;
}

bool is_small(std::string_view word) {
  return std::ranges::find(kSmallWords, word) != kSmallWords.end();
}

struct Name {
  std::string text;        // of the key or an alias
  const std::string* key;  // the key it belongs to
  Words words;
};

std::vector<Name> all_names(std::span<const Key> keys) {
  std::vector<Name> names;
  for (const Key& key : keys) {
    names.push_back({key.name, &key.name, words_of(key.name)});
    for (const KeyAlias& alias : key.aliases) names.push_back({alias.name, &key.name, words_of(alias.name)});
  }
  return names;
}

// A word says more the fewer names have it.
class Weights {
 public:
  explicit Weights(const std::vector<Name>& names) : names_(static_cast<double>(names.size())) {
    for (const Name& name : names) {
      for (const std::string& word : name.words) ++having_[word];
    }
  }
  double of(const std::string& word) const {
    const auto found = having_.find(word);
    const double weight = 1 + std::log(names_ / (found == having_.end() ? 1 : 1 + found->second));
    return is_small(word) ? weight / 4 : weight;
  }

 private:
  double names_;
  std::unordered_map<std::string, double> having_;
};

// The weight of the words that both have, as a share of the weight of all their words.
double likeness(const Words& a, const Words& b, const Weights& weights) {
  Words all = a;
  all.insert(b.begin(), b.end());
  double common = 0, total = 0;
  for (const std::string& word : all) {
    const double weight = weights.of(word);
    total += weight;
    if (a.contains(word) && b.contains(word)) common += weight;
  }
  return total > 0 ? common / total : 0;
}

}  // namespace

std::vector<std::string> similar_keys(std::span<const Key> keys, std::string_view name) {
  constexpr size_t kMost = 3;
  constexpr double kAlike = 0.5;
  constexpr double kAlmostBest = 0.8;
  const std::vector<Name> names = all_names(keys);
  const size_t typing_error = std::max<size_t>(1, name.size() / 5);
  std::map<size_t, std::string> by_distance;
  for (const Name& known : names) {
    const size_t longer = std::max(name.size(), known.text.size());
    if (longer - std::min(name.size(), known.text.size()) > typing_error)
      continue;  // without a look at the letters
    const size_t distance = edit_distance(name, known.text);
    // A distance as long as the word says nothing: "xy" is not near "lr".
    if (distance <= typing_error && distance < longer) by_distance.emplace(distance, *known.key);
  }
  if (!by_distance.empty()) return {by_distance.begin()->second};
  constexpr size_t kLongBeginning = 6;
  for (const Name& known : names) {
    if (name.size() >= kLongBeginning && known.text.starts_with(name)) return {*known.key};
  }

  const Words words = words_of(name);
  const Weights weights(names);
  std::vector<std::pair<double, std::string>> alike;
  for (const Name& known : names) {
    const double score = likeness(words, known.words, weights);
    if (score == 1 && known.text == *known.key) return {*known.key};
    const auto same = std::ranges::find(alike, *known.key, &std::pair<double, std::string>::second);
    if (same != alike.end()) {
      same->first = std::max(same->first, score);
    } else {
      alike.emplace_back(score, *known.key);
    }
  }
  std::ranges::stable_sort(alike, std::greater<>{}, &std::pair<double, std::string>::first);
  std::vector<std::string> found;
  for (const auto& [score, key] : alike) {
    if (score < kAlike || score < kAlmostBest * alike.front().first || found.size() == kMost) break;
    found.push_back(key);
  }
  return found;
}

std::vector<Key> search_keys(std::span<const Key> keys, std::string_view query) {
  const Words wanted = words_of(query);
  std::vector<Key> found;
  for (const Key& key : keys) {
    std::string names = key.name;
    for (const KeyAlias& alias : key.aliases) names += ' ' + alias.name;
    for (const std::string& choice : key.choices) names += ' ' + choice;
    const Words words = words_of(names + ' ' + key.group + ' ' + key.help);
    constexpr size_t kPart = 3;  // letters that say something about a longer word
    const auto has = [&](const std::string& word) {
      return words.contains(word) || (word.size() >= kPart && names.find(word) != std::string::npos);
    };
    if (!wanted.empty() && std::ranges::all_of(wanted, has)) found.push_back(key);
  }
  return found;
}

}  // namespace octet
