#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/text.h"
#include "command.h"
#include "import/import.h"
#include "session/open_session.h"

// A session for a program in another process, in any language: calls and their results are lines of JSON on a socket,
// and arrays are in memory that both share. docs/python.md describes the package that uses it, docs/formats.md the calls.

namespace octet {

namespace {

using Json = nlohmann::json;

struct Options {
  int64_t socket = -1, memory = -1;
};

// Lines from and to the socket.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}

  // Nothing at the end of the file: the other process has closed it, or is gone.
  std::optional<std::string> next() {
    size_t end = 0;
    while ((end = buffer_.find('\n', searched_)) == std::string::npos) {
      searched_ = buffer_.size();
      char piece[1 << 16];
      const ssize_t count = read(fd_, piece, sizeof piece);
      if (count < 0 && errno == EINTR) continue;
      if (count == 0 || (count < 0 && errno == ECONNRESET)) return std::nullopt;
      if (count < 0) fail("[socket] descriptor {}: {}", fd_, std::strerror(errno));
      buffer_.append(piece, static_cast<size_t>(count));
    }
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    searched_ = 0;
    return line;
  }

  // False if nobody reads.
  bool put(std::string line) {
    line += '\n';
    for (std::string_view left = line; !left.empty();) {
      const ssize_t count = write(fd_, left.data(), left.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      left.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

 private:
  int fd_;
  std::string buffer_;
  size_t searched_ = 0;
};

// The shared memory: a file that has no name.
class SharedMemory {
 public:
  explicit SharedMemory(int fd) : fd_(fd) {}
  ~SharedMemory() { unmap(); }
  SharedMemory(const SharedMemory&) = delete;

  // The first `bytes` of it.
  void* map(size_t bytes, bool grows = false) {
    struct stat status {};
    require(fstat(fd_, &status) == 0, "[memory] {}", std::strerror(errno));
    if (static_cast<size_t>(status.st_size) < bytes) {
      if (!grows)
        fail_config("[memory] has {} bytes, but the arrays of the call take {}", status.st_size, bytes);
      require(ftruncate(fd_, static_cast<off_t>(bytes)) == 0, "[memory] {}", std::strerror(errno));
    }
    if (bytes <= size_) return start_;
    unmap();
    start_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    require(start_ != MAP_FAILED, "[memory] {}", std::strerror(errno));
    size_ = bytes;
    return start_;
  }

 private:
  void unmap() {
    if (size_ > 0) munmap(start_, size_);
    size_ = 0;
  }

  int fd_;
  void* start_ = nullptr;
  size_t size_ = 0;
};

// A number of a call. The library would cut off what does not fit.
int64_t integer(const Json& value, const char* name, int64_t least, int64_t most) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() >> 63);
  if (const int64_t number = fits ? value.get<int64_t>() : 0; fits && number >= least && number <= most)
    return number;
  fail_config("[{}] is {}; expected a whole number from {} to {}", name, value.dump(), least, most);
}
int64_t integer_of(const Json& call, const char* name, int64_t least, int64_t most) {
  return integer(call.at(name), name, least, most);
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

// The calls, by name.
class Server {
 public:
  explicit Server(int memory) : memory_(memory) {
    calls_ = {{"open", &Server::open},
              {"step", &Server::step},
              {"evaluate", &Server::evaluate},
              {"generate", &Server::generate},
              {"encode", &Server::encode},
              {"decode", &Server::decode},
              {"save", &Server::save},
              {"save_checkpoint", &Server::save_checkpoint},
              {"load_checkpoint", &Server::load_checkpoint},
              {"tensor", &Server::tensor}};
  }

  Json answer(const std::string& line) {
    Json reply;
    bool opens = false;
    try {
      const Json call = Json::parse(line);
      reply["id"] = call.at("id");
      const std::string name = call.at("call");
      const auto found = calls_.find(name);
      if (found == calls_.end()) fail_config("there is no call '{}'", printable(name));
      opens = name == "open";
      if (!opens && !session_) fail_config("the first call is open");
      reply["result"] = (this->*found->second)(call);
    } catch (const ConfigError& error) {
      reply["error"] = error_json(opens ? "config" : "input", error.what());
    } catch (const Json::exception& error) {
      reply["error"] = error_json("input", fmt::format("[call] {}", plain_json_error(error.what())));
    } catch (const std::bad_alloc&) {
      reply["error"] = error_json("error", "out of memory on the host");
    } catch (const std::exception& error) {
      reply["error"] = error_json("error", error.what());
    }
    return reply;
  }

 private:
  using Call = Json (Server::*)(const Json&);

  static Json error_json(const char* kind, const std::string& message) {
    Json messages = Json::array();
    std::istringstream lines(message);
    for (std::string line; std::getline(lines, line);) messages.push_back(line);
    return {{"kind", kind}, {"message", message}, {"messages", messages}};
  }

  Json open(const Json& call) {
    std::string path;  // also of another program's configuration
    if (!call.at("config").is_null()) path = call.at("config");
    std::vector<KeySetting> settings;
    for (const Json& setting : call.at("settings")) {
      KeySetting& added = settings.emplace_back(KeySetting{.name = setting.at(0), .values = {}});
      added.is_list = setting.at(1).is_array();
      if (added.is_list) {
        added.values = setting.at(1).get<std::vector<std::string>>();
      } else {
        added.values = {setting.at(1).get<std::string>()};
      }
    }
    session_ = open_session(read_run_file(path), settings);
    const SessionFacts& facts = session_->facts();
    Json tensors = Json::array();
    for (const SessionTensor& each : facts.tensors)
      tensors.push_back({{"name", each.name}, {"shape", each.shape}});
    return {{"parameters", facts.parameters},
            {"trainable_parameters", facts.trainable_parameters},
            {"vocab_size", facts.vocab_size},
            {"rows", facts.rows},
            {"length", facts.length},
            {"accumulation", facts.accumulation},
            {"precision", facts.precision},
            {"device", facts.device},
            {"step", session_->steps_done()},
            {"has_data", facts.has_data},
            {"tensors", tensors}};
  }

  // The arrays of a call: input_ids, and labels behind them.
  Rows rows_of(const Json& call) {
    constexpr int64_t kMost = int64_t{1} << 31;
    const int64_t rows = integer_of(call, "rows", 1, kMost), length = integer_of(call, "length", 1, kMost);
    if (rows > kMost / length) fail_config("{} rows of {} cannot be read", rows, length);
    const auto count = static_cast<size_t>(rows * length);
    const bool labels = call.value("labels", false);
    const auto* ids = static_cast<const int32_t*>(memory_.map((labels ? 2 : 1) * count * sizeof(int32_t)));
    return {.input_ids = {ids, count},
            .length = length,
            .labels = labels ? std::span(ids + count, count) : std::span<const int32_t>()};
  }

  Json step(const Json& call) {
    std::optional<double> rate;
    if (call.contains("lr") && !call["lr"].is_null()) rate = call["lr"].get<double>();
    const SessionStep step =
        call.contains("rows") ? session_->step(rows_of(call), rate) : session_->step(rate);
    return {{"step", step.step},
            {"loss", number(step.loss)},
            {"penalty", number(step.penalty)},
            {"grad_norm", number(step.grad_norm)},
            {"lr", step.learning_rate},
            {"tokens", step.tokens},
            {"seconds", step.seconds},
            {"skipped", step.skipped}};
  }

  Json evaluate(const Json& call) {
    const SessionScore score =
        call.contains("rows") ? session_->evaluate(rows_of(call)) : session_->evaluate();
    return {{"loss", number(score.loss)}, {"accuracy", score.accuracy}, {"tokens", score.targets}};
  }

  Json generate(const Json& call) {
    const std::vector<std::string> prompts = call.at("prompts");
    SessionSampling sampling;
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (call.contains("max_new_tokens"))
      sampling.max_new_tokens = integer_of(call, "max_new_tokens", 1, kMost);
    if (call.contains("top_k")) sampling.top_k = integer_of(call, "top_k", 0, kMost);
    if (call.contains("seed")) sampling.seed = static_cast<uint64_t>(integer_of(call, "seed", 0, kMost));
    sampling.temperature = call.value("temperature", sampling.temperature);
    sampling.top_p = call.value("top_p", sampling.top_p);
    return {{"texts", session_->generate(prompts, sampling)}};
  }

  Json encode(const Json& call) { return {{"ids", session_->encode(call.at("text"))}}; }
  Json decode(const Json& call) {
    std::vector<int32_t> ids;
    for (const Json& id : call.at("ids"))
      ids.push_back(static_cast<int32_t>(integer(id, "ids", 0, 0x7fffffff)));
    return {{"text", session_->decode(ids)}};
  }

  Json save(const Json& call) {
    session_->save(call.at("path"));
    return {{"path", call.at("path")}};
  }
  Json save_checkpoint(const Json& call) { return {{"path", session_->save_checkpoint(call.at("path"))}}; }
  Json load_checkpoint(const Json& call) {
    session_->load_checkpoint(call.at("path"));
    return {{"step", session_->steps_done()}};
  }

  Json tensor(const Json& call) {
    const std::string name = call.at("name");
    const std::vector<float> values = session_->tensor(name);
    const size_t bytes = values.size() * sizeof(float);
    std::memcpy(memory_.map(bytes, true), values.data(), bytes);
    for (const SessionTensor& each : session_->facts().tensors) {
      if (each.name == name) return {{"shape", each.shape}};
    }
    return {};
  }

  SharedMemory memory_;
  std::map<std::string, Call, std::less<>> calls_;
  std::optional<Session> session_;
};

int run(const Options& options) {
  survive_broken_pipes();
  Lines lines(narrow<int>(options.socket));
  Server server(narrow<int>(options.memory));
  while (const std::optional<std::string> line = lines.next()) {
    // Texts of a model may end in the middle of a character.
    if (!lines.put(server.answer(*line).dump(-1, ' ', false, Json::error_handler_t::replace))) break;
  }
  return kExitDone;
}

}  // namespace

Command session_command() {
  CommandBuilder<Options> builder("session",
                                  "Train step by step for another program, such as the Python package");
  builder.line.about =
      "Holds a model in training for another program, which sends it calls as lines of JSON. The Python package starts it; "
      "there is no use for it on a command line.";
  builder.keys.add("socket", &Options::socket, "Descriptor of a socket for calls and results.")
      .at_least(0)
      .must_be_given()
      .value("FD");
  builder.keys.add("memory", &Options::memory, "Descriptor of a file in memory for arrays.")
      .at_least(0)
      .must_be_given()
      .value("FD");
  return builder.command(run);
}

}  // namespace octet
