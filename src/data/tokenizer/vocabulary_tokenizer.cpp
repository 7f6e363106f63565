#include "data/tokenizer/vocabulary_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/hash.h"

namespace octet {
namespace {

// Text of this size or more is encoded by several threads, in chunks of about kChunk.
constexpr size_t kParallelSize = size_t{1} << 20;
constexpr size_t kChunk = size_t{1} << 18;

std::vector<AddedToken> found_in_raw_text(const VocabularySpec& spec) {
  std::vector<AddedToken> tokens = spec.added;
  std::erase_if(tokens, [](const AddedToken& token) { return token.normalized; });
  return tokens;
}

}  // namespace

void hash_model(Hash64& hash, const VocabularySpec& spec) {
  hash.add(spec.tokens.size());
  for (const std::string& token : spec.tokens) hash.add(token);
  // Two files may list the same merges with different ranks: only their order counts.
  std::vector<const BpeModel::Merge*> merges;
  for (const BpeModel::Merge& merge : spec.merges) merges.push_back(&merge);
  std::stable_sort(merges.begin(), merges.end(),
                   [](const auto* a, const auto* b) { return a->rank < b->rank; });
  for (const BpeModel::Merge* merge : merges) hash.add(merge->left).add(merge->right).add(merge->result);
  hash.add(spec.ignore_merges);
}

void hash_added(Hash64& hash, const VocabularySpec& spec) {
  for (const AddedToken& token : spec.added) {
    hash.add(token.id).add(token.content).add(token.special).add(token.normalized);
    hash.add(token.lstrip).add(token.rstrip).add(token.single_word);
  }
  for (const auto* ids : {&spec.prefix, &spec.suffix}) {
    hash.add(ids->size());
    for (const int32_t id : *ids) hash.add(id);
  }
  hash.add(spec.bos.value_or(-1)).add(spec.eos.value_or(-1));
}

// Borrows a scratch for one call. Scratches stay with the tokenizer, so their caches stay warm. There are never more
// of them than concurrent calls.
class VocabularyTokenizer::Lease {
 public:
  explicit Lease(const VocabularyTokenizer& owner) : owner_(owner) {
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
  const VocabularyTokenizer& owner_;
  std::unique_ptr<BpeScratch> scratch_;
};

VocabularyTokenizer::VocabularyTokenizer(VocabularySpec spec, uint64_t fingerprint)
    : place_(std::move(spec.place)),
      fingerprint_(fingerprint),
      plain_added_(found_in_raw_text(spec)),
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
    put(token.id, token.shown.empty() ? token.content : token.shown,
        token.special ? Kind::Special : Kind::Added);
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

VocabularyTokenizer::~VocabularyTokenizer() = default;

std::vector<int32_t> VocabularyTokenizer::encode(std::string_view text) const {
  return encode_after(Before::Nothing, text);
}

std::vector<int32_t> VocabularyTokenizer::encode_after(Before before, std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 4 + 8);
  Lease scratch(*this);
  plain_added_.split(
      text,
      [&](std::string_view piece) {
        const bool is_first = piece.data() == text.data();
        encode_section(piece, is_first ? before : Before::Token, scratch.get(), out);
      },
      [&](int32_t id) { out.push_back(id); });
  return out;
}

void VocabularyTokenizer::encode_chunks(std::string_view text, const CutText& cut,
                                        const EncodeChunk& encode_chunk, BpeScratch& scratch,
                                        std::vector<int32_t>& out) const {
  if (text.size() < kParallelSize) return encode_chunk(text, scratch, out);
  std::vector<std::string_view> chunks;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = begin + kChunk < text.size() ? cut(begin + kChunk) : text.size();
    chunks.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  std::vector<std::vector<int32_t>> ids(chunks.size());
  std::atomic<size_t> next = 0;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Lease lease(*this);
      for (size_t i = next++; i < chunks.size(); i = next++) {
        ids[i].reserve(chunks[i].size() / 4 + 8);
        encode_chunk(chunks[i], lease.get(), ids[i]);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  const auto cores = static_cast<size_t>(default_threads().count);
  {
    std::vector<std::jthread> threads;
    try {
      for (size_t i = 1; i < std::min(cores, chunks.size()); ++i) threads.emplace_back(work);
    } catch (const std::system_error&) {
      // There may be no more threads; those that run do all the work.
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
  size_t total = out.size();
  for (const auto& part : ids) total += part.size();
  out.reserve(total);
  for (const auto& part : ids) out.insert(out.end(), part.begin(), part.end());
}

std::string VocabularyTokenizer::decode(std::span<const int32_t> ids) const {
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

std::vector<int32_t> VocabularyTokenizer::add_special(std::vector<int32_t> ids) const {
  ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

std::optional<int32_t> VocabularyTokenizer::find_token(std::string_view text) const {
  if (const auto found = added_ids_.find(std::string(text)); found != added_ids_.end()) return found->second;
  return find_in_model(text);
}

bool VocabularyTokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < kinds_.size() &&
         kinds_[static_cast<size_t>(id)] == Kind::Special;
}

}  // namespace octet
