#include "data/shards/split_writer.h"

#include <algorithm>

#include "io/temporary_file.h"

namespace octet {

struct SplitWriter::Open {
  Open(WritableFile to, const ShardKind& kind) : file(std::move(to)), writer(file, kind) {}
  WritableFile file;
  ShardWriter writer;
};

bool is_shard_name(std::string_view name) {
  for (const std::string_view split : {kTrainName, kValidationName}) {
    if (!name.starts_with(split)) continue;
    std::string_view rest = name.substr(split.size());
    if (!rest.starts_with('_') || !rest.ends_with(kShardExtension)) return false;
    rest = rest.substr(1, rest.size() - 1 - std::string_view(kShardExtension).size());
    return rest.size() >= 5 && rest.find_first_not_of("0123456789") == rest.npos;
  }
  return false;
}

SplitWriter::SplitWriter(Env& env, std::string folder, std::string name, const ShardKind& kind,
                         int64_t shard_tokens, SplitManifest written)
    : env_(env),
      folder_(std::move(folder)),
      name_(std::move(name)),
      kind_(kind),
      shard_tokens_(shard_tokens),
      written_(std::move(written)) {}

SplitWriter::~SplitWriter() {
  if (!open_) return;
  const std::string path = open_->file.path();
  open_.reset();
  try {
    env_.remove_file(path);
  } catch (...) {  // the next call removes what is left over
  }
}

void SplitWriter::begin_shard() {
  const std::string name = fmt::format(".tmp-{}_{:05}{}", name_, written_.shards.size(), kShardExtension);
  open_ = std::make_unique<Open>(create_anew(env_, join_path(folder_, name)), kind_);
}

bool SplitWriter::predicts(const Document& document) {
  return !document.is_target.empty() && std::any_of(document.is_target.begin() + 1, document.is_target.end(),
                                                    [](uint8_t is) { return is != 0; });
}

void SplitWriter::add(const Document& document) {
  if (!predicts(document)) {
    ++dropped_;
    return;
  }
  if (!open_) begin_shard();
  open_->writer.append(document);
  lengths_.add(static_cast<int64_t>(document.tokens.size()));
}

bool SplitWriter::is_full() const {
  return open_ && open_->writer.counts().tokens >= shard_tokens_;
}

void SplitWriter::finish(int64_t examples) {
  end_shard(examples);
  written_.dropped += dropped_;  // after the last shard
  dropped_ = 0;
}

void SplitWriter::end_shard(int64_t end_example) {
  if (!open_) return;
  ShardWriter& writer = open_->writer;
  writer.finish();
  open_->file.sync();
  open_->file.close();
  ShardEntry entry{.name = fmt::format("{}_{:05}{}", name_, written_.shards.size(), kShardExtension),
                   .size = writer.bytes(),
                   .crc32c = writer.checksum(),
                   .counts = writer.counts(),
                   .end_example = end_example};
  const std::string temporary = open_->file.path();
  open_.reset();
  env_.rename(temporary, join_path(folder_, entry.name));
  env_.sync_directory(folder_);
  written_.counts += entry.counts;
  written_.lengths += lengths_;
  written_.dropped += dropped_;
  written_.shards.push_back(std::move(entry));
  lengths_ = {};
  dropped_ = 0;
}

}  // namespace octet
