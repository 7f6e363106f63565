#include "data/tokenizer/byte_level_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

// Text of this size or more is encoded by several threads, in chunks of about kChunk.
constexpr size_t kParallelSize = size_t{1} << 20;
constexpr size_t kChunk = size_t{1} << 18;

std::vector<AddedToken> select_added(const ByteLevelSpec& spec, bool normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : spec.added) {
    if (token.normalized != normalized) continue;
    tokens.push_back(token);
    if (normalized && spec.nfc) tokens.back().content = to_nfc(token.content);
  }
  return tokens;
}

uint64_t fingerprint_of(const ByteLevelSpec& spec) {
  Hash64 hash;
  hash.add(spec.tokens.size());
  for (const std::string& token : spec.tokens) hash.add(token);
  // Two files may list the same merges with different ranks: only their order counts.
  std::vector<const BpeModel::Merge*> merges;
  for (const BpeModel::Merge& merge : spec.merges) merges.push_back(&merge);
  std::stable_sort(merges.begin(), merges.end(),
                   [](const auto* a, const auto* b) { return a->rank < b->rank; });
  for (const BpeModel::Merge* merge : merges) hash.add(merge->left).add(merge->right).add(merge->result);
  hash.add(spec.ignore_merges).add(static_cast<int>(spec.pattern)).add(spec.add_prefix_space).add(spec.nfc);
  for (const AddedToken& token : spec.added) {
    hash.add(token.id).add(token.content).add(token.special).add(token.normalized);
    hash.add(token.lstrip).add(token.rstrip).add(token.single_word);
  }
  for (const auto* ids : {&spec.prefix, &spec.suffix}) {
    hash.add(ids->size());
    for (const int32_t id : *ids) hash.add(id);
  }
  return hash.add(spec.bos.value_or(-1)).add(spec.eos.value_or(-1)).value();
}

}  // namespace

// Borrows a scratch for one call. Scratches stay with the tokenizer, so their caches stay warm. There are never more
// of them than concurrent calls.
class ByteLevelTokenizer::Lease {
 public:
  explicit Lease(const ByteLevelTokenizer& owner) : owner_(owner) {
    const std::lock_guard lock(owner.idle_mutex_);
    if (!owner.idle_.empty()) {
      scratch_ = std::move(owner.idle_.back());
      owner.idle_.pop_back();
    }
  }
  ~Lease() {
    if (!scratch_) return;
    const std::lock_guard lock(owner_.idle_mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  BpeScratch& get() {
    if (!scratch_) scratch_ = std::make_unique<BpeScratch>();
    return *scratch_;
  }

 private:
  const ByteLevelTokenizer& owner_;
  std::unique_ptr<BpeScratch> scratch_;
};

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelSpec spec)
    : place_(spec.place),
      fingerprint_(fingerprint_of(spec)),
      model_(spec.tokens, spec.merges, spec.ignore_merges),
      pattern_(spec.pattern),
      add_prefix_space_(spec.add_prefix_space),
      nfc_(spec.nfc),
      plain_added_(select_added(spec, false)),
      normalized_added_(select_added(spec, true)),
      prefix_(std::move(spec.prefix)),
      suffix_(std::move(spec.suffix)),
      bos_(spec.bos),
      eos_(spec.eos) {
  std::vector<std::string>& tokens = spec.tokens;
  kinds_.assign(tokens.size(), Kind::None);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) kinds_[id] = Kind::Model;
  }
  const auto put = [&](int32_t id, std::string bytes, Kind kind) {
    const auto index = static_cast<size_t>(id);
    if (index >= tokens.size()) {
      tokens.resize(index + 1);
      kinds_.resize(index + 1, Kind::None);
    }
    tokens[index] = std::move(bytes);
    kinds_[index] = kind;
  };
  for (auto& [id, bytes] : spec.decode_only) put(id, std::move(bytes), Kind::Model);
  for (const AddedToken& token : spec.added) {
    put(token.id, token.content, token.special ? Kind::Special : Kind::Added);
    added_ids_[token.content] = token.id;
  }
  offsets_.reserve(tokens.size() + 1);
  offsets_.push_back(0);
  for (const std::string& token : tokens) {
    bytes_ += token;
    require(bytes_.size() <= UINT32_MAX, "[{}] the tokens of the vocabulary are longer than 4 GiB", place_);
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
}

ByteLevelTokenizer::~ByteLevelTokenizer() = default;

std::vector<int32_t> ByteLevelTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 4 + 8);
  Lease scratch(*this);
  plain_added_.split(
      text, [&](std::string_view piece) { encode_section(piece, scratch.get(), out); },
      [&](int32_t id) { out.push_back(id); });
  return out;
}

void ByteLevelTokenizer::encode_section(std::string_view text, BpeScratch& scratch,
                                        std::vector<int32_t>& out) const {
  std::string composed;
  if (nfc_ && !surely_nfc(text)) {
    composed = to_nfc(text);
    text = composed;
  }
  normalized_added_.split(
      text,
      [&](std::string_view piece) {
        std::string prefixed;
        if (add_prefix_space_ && piece.front() != ' ') {
          prefixed.reserve(piece.size() + 1);
          prefixed.append(1, ' ').append(piece);
          piece = prefixed;
        }
        if (piece.size() >= kParallelSize) {
          encode_words_parallel(piece, out);
        } else {
          encode_words(piece, scratch, out);
        }
      },
      [&](int32_t id) { out.push_back(id); });
}

void ByteLevelTokenizer::encode_words(std::string_view text, BpeScratch& scratch,
                                      std::vector<int32_t>& out) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(pattern_, text, begin);
    model_.encode_word(text.substr(begin, end - begin), text.size() - begin, scratch, out);
    begin = end;
  }
}

void ByteLevelTokenizer::encode_words_parallel(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<std::string_view> chunks;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = begin + kChunk < text.size() ? safe_cut(pattern_, text, begin + kChunk) : text.size();
    chunks.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  std::vector<std::vector<int32_t>> ids(chunks.size());
  std::atomic<size_t> next = 0;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Lease scratch(*this);
      for (size_t i = next++; i < chunks.size(); i = next++) {
        ids[i].reserve(chunks[i].size() / 4 + 8);
        encode_words(chunks[i], scratch.get(), ids[i]);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  const auto cores = static_cast<size_t>(default_threads().count);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(cores, chunks.size()); ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  size_t total = out.size();
  for (const auto& part : ids) total += part.size();
  out.reserve(total);
  for (const auto& part : ids) out.insert(out.end(), part.begin(), part.end());
}

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size() * 4);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (id < 0 || static_cast<size_t>(id) >= kinds_.size() || kinds_[static_cast<size_t>(id)] == Kind::None)
      fail("[{}] id {} at position {} has no token; ids run from 0 to {}", place_, id, i, vocab_size() - 1);
    const auto index = static_cast<size_t>(id);
    text.append(bytes_, offsets_[index], offsets_[index + 1] - offsets_[index]);
  }
  return text;
}

std::vector<int32_t> ByteLevelTokenizer::add_special(std::vector<int32_t> ids) const {
  ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

std::optional<int32_t> ByteLevelTokenizer::find_token(std::string_view text) const {
  if (const auto found = added_ids_.find(std::string(text)); found != added_ids_.end()) return found->second;
  return model_.find(text);
}

bool ByteLevelTokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < kinds_.size() &&
         kinds_[static_cast<size_t>(id)] == Kind::Special;
}

}  // namespace octet
