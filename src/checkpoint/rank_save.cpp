#include "checkpoint/rank_save.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace octet {
namespace {

// A slow disk is no failure. Ranks that died are noticed elsewhere, and long before.
constexpr std::chrono::minutes kWriteLimit{60};

// A rank's message to the others. If one of them fails, all have failed.
struct Report {
  std::string failure;
  std::string folder;  // from the first rank
  int64_t bytes = 0;
  std::vector<CheckpointFile> files;

  std::string text() const {
    nlohmann::json list = nlohmann::json::array();
    for (const CheckpointFile& file : files) list.push_back({file.name, file.size, file.crc32c});
    const nlohmann::json json = {{"failure", failure}, {"folder", folder}, {"bytes", bytes}, {"files", list}};
    // A message may quote bytes that are not UTF-8.
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  static Report parse(const std::string& text, const std::string& place) {
    const nlohmann::json json = parse_json(text, place);
    try {
      Report report{.failure = json.at("failure").get<std::string>(),
                    .folder = json.at("folder").get<std::string>(),
                    .bytes = json.at("bytes").get<int64_t>()};
      for (const nlohmann::json& file : json.at("files"))
        report.files.push_back(
            {file.at(0).get<std::string>(), file.at(1).get<int64_t>(), file.at(2).get<uint32_t>()});
      return report;
    } catch (const nlohmann::json::exception& error) {
      throw RankError(fmt::format("[{}] {}", place, plain_json_error(error.what())));
    }
  }
};

class TogetherSave {
 public:
  TogetherSave(Env& env, CheckpointStore& store, const Snapshot& snapshot, HostChannel& host,
               const Publication& publication)
      : env_(env),
        store_(store),
        snapshot_(snapshot),
        host_(host),
        publication_(publication),
        is_first_(host.rank() == 0),
        name_(fmt::format("checkpoint of step {}", snapshot.step())) {}

  int64_t run() {
    try {
      return steps();
    } catch (const std::exception&) {
      // Other ranks may have written there, but all have said that they are done, or are gone.
      if (draft_ && !published_) store_.abandon(*draft_);
      throw;
    }
  }

 private:
  int64_t steps() {
    const std::string folder = share("folder",
                                     [&](Report& report) {
                                       if (!is_first_) return;
                                       draft_ = store_.begin(snapshot_.step());
                                       report.folder = draft_->name;
                                     })
                                   .front()
                                   .folder;
    const std::string path = join_path(store_.directory(), folder);
    const std::vector<Report> parts = share("tensors", [&](Report& report) {
      snapshot_.check();
      require(env_.is_directory(path),
              "[{}] was made by rank 0 but is not there: all nodes need the same file system for checkpoints",
              path);
      CheckpointWriter writer(env_, path);
      snapshot_.write_tensors(writer);
      if (!writer.files().empty()) env_.sync_directory(path);
      report.files = writer.files();
      report.bytes = snapshot_.bytes();
    });
    share("publish", [&](Report&) {
      if (is_first_) publish(path, parts);
    });
    int64_t bytes = 0;
    for (const Report& part : parts) bytes += part.bytes;
    return bytes;
  }

  void publish(const std::string& path, const std::vector<Report>& parts) {
    CheckpointWriter writer(env_, path);
    snapshot_.write(writer, [&] {
      for (const Report& part : parts) {
        for (const CheckpointFile& file : part.files) writer.add(file);
      }
    });
    publication_.add_files(writer);
    published_ = true;  // the store removes what it could not publish
    store_.publish(*draft_, writer.files(), publication_.summary, publication_.best);
    publication_.published();
  }

  // Does this rank's work and returns what all ranks say of theirs. Error on all of them if it failed on one.
  std::vector<Report> share(const char* phase, const std::function<void(Report&)>& work) {
    Report mine;
    std::exception_ptr unexpected;
    try {
      work(mine);
    } catch (const Error& error) {
      mine.failure = error.what();
    } catch (const std::bad_alloc&) {
      mine.failure = "there is not enough host memory";
    } catch (const std::exception& error) {
      mine.failure = error.what();
      unexpected = std::current_exception();
    }
    const std::string tag = fmt::format("{}: {}", name_, phase);
    std::vector<Report> reports;
    std::string failures;
    for (const std::string& text : host_.all_gather(tag, mine.text(), kWriteLimit, {})) {
      reports.push_back(Report::parse(text, tag));
      if (reports.back().failure.empty()) continue;
      failures += fmt::format("{}rank {}: {}", failures.empty() ? "" : "; ", reports.size() - 1,
                              reports.back().failure);
    }
    if (unexpected) std::rethrow_exception(unexpected);
    require(failures.empty(), "{}", failures);
    return reports;
  }

  Env& env_;
  CheckpointStore& store_;
  const Snapshot& snapshot_;
  HostChannel& host_;
  const Publication& publication_;
  bool is_first_;
  std::string name_;
  std::optional<CheckpointDraft> draft_;
  bool published_ = false;
};

}  // namespace

int64_t save_together(Env& env, CheckpointStore& store, const Snapshot& snapshot, HostChannel& host,
                      const Publication& publication) {
  return TogetherSave(env, store, snapshot, host, publication).run();
}

}  // namespace octet
