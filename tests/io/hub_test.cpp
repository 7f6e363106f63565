#include "io/hub.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/sha.h"
#include "io/env.h"
#include "io/http.h"
#include "io/hub_cache.h"
#include "temp_dir.h"
#include "support/places.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// tests/io/hub_server.py as a child process, which ends with its standard input.
class Server {
 public:
  explicit Server(const std::string& root) {
    int to_child[2], from_child[2];
    if (pipe(to_child) != 0 || pipe(from_child) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ == 0) {
      dup2(to_child[0], 0);
      dup2(from_child[1], 1);
      for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(fd);
      execlp("python3", "python3", test::source_path("/tests/io/hub_server.py").c_str(), root.c_str(), nullptr);
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    FILE* output = fdopen(from_child[0], "r");
    if (std::fscanf(output, "%d %d", &port_, &cdn_port_) != 2)
      throw std::runtime_error("the server did not start");
    std::fclose(output);
  }
  ~Server() {
    close(input_);
    waitpid(child_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  void fault(const std::string& path, const std::string& kind, int count,
             const std::string& value = "0") const {
    http_get({.url = fmt::format("{}/_fault?path={}&kind={}&count={}&value={}", url(), url_encode(path), kind,
                                 count, value)});
  }
  // [server, path, Range, Authorization] of every request.
  std::vector<std::array<std::string, 4>> log() const {
    return nlohmann::json::parse(http_get({.url = url() + "/_log"}).body)
        .get<std::vector<std::array<std::string, 4>>>();
  }
  // The requests of the file's bytes.
  std::vector<std::array<std::string, 4>> requests_of(const std::string& file) const {
    std::vector<std::array<std::string, 4>> found;
    for (const auto& entry : log()) {
      if (entry[1].ends_with(file) && (entry[0] == "cdn" || !file.ends_with(".parquet")))
        found.push_back(entry);
    }
    return found;
  }

 private:
  pid_t child_;
  int input_ = -1, port_ = 0, cdn_port_ = 0;
};

class HubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_http()) GTEST_SKIP() << "built without libcurl";
    put("datasets/org/set/README.md", "about");
    put("datasets/org/set/data/train-00000-of-00002.parquet", large_);
    put("datasets/org/set/data/train-00001-of-00002.parquet", std::string(1000, 'b'));
    put("datasets/org/set/data/a b+c%.json", "{}");
    put("datasets/org/set/empty.txt", "");
    put("models/org/model/config.json", "{\"model_type\": \"llama\"}");
    put("models/org/model/model.safetensors", std::string(5000, 'w'));
    put("models/org/model/pytorch_model.bin", std::string(5000, 'p'));
    put("datasets/private/secret/x.txt", "hidden");
    server_ = std::make_unique<Server>(root_);
    previous_ =
        set_log_sink([this](LogLevel, std::string_view line) { messages_ += fmt::format("{}\n", line); });
  }
  void TearDown() override {
    if (server_) set_log_sink(previous_);
  }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_) / fs::path(path).parent_path());
    std::ofstream(fs::path(root_) / path, std::ios::binary) << text;
  }
  HubRequest request(const std::string& id = "org/set", HubKind kind = HubKind::Dataset) const {
    HubRequest request{.kind = kind, .id = id, .settings = {}};
    request.settings.endpoint = server_ ? server_->url() : "";
    request.settings.cache = cache_;
    request.settings.retry_delay = std::chrono::milliseconds(1);
    request.settings.stall_timeout_s = 1;
    return request;
  }
  HubRequest first_part() const {
    HubRequest request = this->request();
    request.files = {"data/train-00000*"};
    return request;
  }
  std::string read(const std::string& folder, const std::string& file) const {
    return posix_env().read_text(join_path(folder, file));
  }
  std::string blob(const std::string& text) const {
    Sha256 hash;
    hash.update(text);
    return join_path(cache_, "datasets--org--set/blobs/" + hash.hex());
  }
  template <class F>
  std::string message_of(F&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  TempDir folder_;
  std::string root_ = join_path(folder_.path(), "root"), cache_ = join_path(folder_.path(), "cache/hub");
  std::string large_ = [] {
    std::string text;
    for (int64_t i = 0; i < 100000; ++i) text += static_cast<char>(i * i % 251);
    return text;
  }();
  std::unique_ptr<Server> server_;
  std::string messages_;
  LogSink previous_;
};

TEST_F(HubTest, DownloadsIntoTheCacheOfTheLibrary) {
  const HubSnapshot snapshot = hub_fetch(request());
  EXPECT_THAT(snapshot.files,
              ElementsAre("README.md", "data/a b+c%.json", "data/train-00000-of-00002.parquet",
                          "data/train-00001-of-00002.parquet", "empty.txt"));
  EXPECT_EQ(read(snapshot.folder, "data/train-00000-of-00002.parquet"), large_);
  EXPECT_EQ(read(snapshot.folder, "data/a b+c%.json"), "{}");
  EXPECT_EQ(read(snapshot.folder, "empty.txt"), "");
  // Layout: refs/main names the commit, the files are relative links to blobs named by their hashes.
  const fs::path repo = fs::path(cache_) / "datasets--org--set";
  const std::string commit = posix_env().read_text((repo / "refs/main").string());
  EXPECT_EQ(snapshot.folder, (repo / "snapshots" / commit).string());
  const fs::path link = repo / "snapshots" / commit / "data/train-00000-of-00002.parquet";
  EXPECT_EQ(fs::read_symlink(link), fs::path("../../../blobs") / fs::path(blob(large_)).filename());
  // git hash-object of "about".
  EXPECT_TRUE(fs::exists(repo / "blobs/93caaca3b4ae51ae4fbb89fb67cbd8e3d0f52b8a"))
      << fs::read_symlink(repo / "snapshots" / commit / "README.md");
}

TEST_F(HubTest, WhatIsThereIsNotDownloadedAgain) {
  hub_fetch(request());
  const size_t before = server_->log().size();
  hub_fetch(request());
  for (size_t i = before; i < server_->log().size(); ++i)
    EXPECT_THAT(server_->log()[i][1], HasSubstr("/api/"));
}

TEST_F(HubTest, ModelFolder) {
  HubRequest model = request("org/model", HubKind::Model);
  model.files = hub_model_files();
  const std::string folder = hub_snapshot(model);
  EXPECT_EQ(read(folder, "config.json"), "{\"model_type\": \"llama\"}");
  EXPECT_EQ(read(folder, "model.safetensors"), std::string(5000, 'w'));
  EXPECT_FALSE(fs::exists(fs::path(folder) / "pytorch_model.bin"));
}

TEST_F(HubTest, CutConnectionIsResumedWhereItEnded) {
  server_->fault("data/train-00000-of-00002.parquet", "cut", 2, "30000");
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
  const auto requests = server_->requests_of("train-00000-of-00002.parquet");
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0][2], "");
  EXPECT_EQ(requests[1][2], "bytes=30000-");
  EXPECT_EQ(requests[2][2], "bytes=60000-");
}

TEST_F(HubTest, AnInterruptedDownloadGoesOnInTheNextRun) {
  HubRequest stopped = first_part();
  stopped.on_progress = [](const HubProgress&) { return false; };
  EXPECT_THAT(message_of([&] { hub_fetch(stopped); }), HasSubstr("was stopped"));
  const auto part = fs::file_size(blob(large_) + ".incomplete");
  ASSERT_GT(part, 0u);
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
  if (part < large_.size()) {
    EXPECT_EQ(server_->requests_of("00000-of-00002.parquet").back()[2], fmt::format("bytes={}-", part));
  }
  EXPECT_FALSE(fs::exists(blob(large_) + ".incomplete"));
}

TEST_F(HubTest, ServerWithoutRangesSendsAllAgain) {
  server_->fault("data/train-00000-of-00002.parquet", "cut", 1, "30000");
  server_->fault("data/train-00000-of-00002.parquet", "norange", 1);
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
}

TEST_F(HubTest, ALongerPartOfAnotherFileIsDropped) {
  fs::create_directories(fs::path(blob(large_)).parent_path());
  std::ofstream(blob(large_) + ".incomplete") << std::string(large_.size() + 1, 'x');
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
}

TEST_F(HubTest, BusyServerIsAskedAgain) {
  server_->fault("data/train-00000-of-00002.parquet", "status", 2, "503");
  server_->fault("api/revision", "status", 1, "429");
  server_->fault("api/tree", "status", 1, "500");
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
  EXPECT_THAT(messages_, HasSubstr("gave status 503; trying again"));
  EXPECT_THAT(messages_, HasSubstr("gave status 429; trying again"));
}

TEST_F(HubTest, GivesUpOnAServerThatStaysBusy) {
  server_->fault("data/train-00000-of-00002.parquet", "status", 100, "503");
  HubRequest request = first_part();
  request.settings.retries = 2;
  EXPECT_THAT(message_of([&] { hub_fetch(request); }), HasSubstr("gave status 503"));
  EXPECT_EQ(server_->requests_of("00000-of-00002.parquet").size(), 3u);
}

TEST_F(HubTest, SilentServerIsLeftAndAskedAgain) {
  server_->fault("data/train-00000-of-00002.parquet", "stall", 1, "4");
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
}

TEST_F(HubTest, DamagedFileIsFetchedOnceMore) {
  server_->fault("data/train-00000-of-00002.parquet", "corrupt", 1);
  const HubSnapshot snapshot = hub_fetch(first_part());
  EXPECT_EQ(read(snapshot.folder, snapshot.files[0]), large_);
  EXPECT_THAT(messages_, HasSubstr("checksum"));
}

TEST_F(HubTest, FileThatStaysDamagedIsRefused) {
  server_->fault("data/train-00000-of-00002.parquet", "corrupt", 2);
  EXPECT_THAT(message_of([&] { hub_fetch(first_part()); }), HasSubstr("checksum"));
  EXPECT_FALSE(fs::exists(blob(large_)));
  EXPECT_FALSE(fs::exists(blob(large_) + ".incomplete"));
}

TEST_F(HubTest, SmallFilesAreCheckedToo) {
  server_->fault("README.md", "corrupt", 2);
  HubRequest readme = request();
  readme.files = {"README.md"};
  EXPECT_THAT(message_of([&] { hub_fetch(readme); }), HasSubstr("checksum"));
}

TEST_F(HubTest, TokenOpensAPrivateRepositoryAndStaysOnTheHub) {
  HubRequest secret = request("private/secret");
  EXPECT_THAT(message_of([&] { hub_fetch(secret); }), HasSubstr("set HF_TOKEN"));
  secret.settings.token = "wrong";
  EXPECT_THAT(message_of([&] { hub_fetch(secret); }),
              HasSubstr("the token (HF_TOKEN) gives no access to it"));
  secret.settings.token = "good-token";
  EXPECT_EQ(read(hub_snapshot(secret), "x.txt"), "hidden");
  HubRequest set = first_part();
  set.settings.token = "good-token";
  hub_fetch(set);
  const auto requests = server_->requests_of("00000-of-00002.parquet");
  ASSERT_FALSE(requests.empty());
  for (const auto& entry : requests) EXPECT_EQ(entry[3], "") << "the storage host saw the token";
}

TEST_F(HubTest, UnknownNamesAndRevisions) {
  EXPECT_THAT(message_of([&] { hub_fetch(request("org/nothing")); }),
              HasSubstr("status 404: no such dataset"));
  HubRequest old = request();
  old.revision = "v9";
  EXPECT_THAT(message_of([&] { hub_fetch(old); }), HasSubstr("revision (v9)"));
  HubRequest none = request();
  none.files = {"*.csv"};
  EXPECT_THAT(message_of([&] { hub_fetch(none); }), HasSubstr("none matches *.csv"));
  EXPECT_THAT(message_of([&] { hub_fetch(request("../etc")); }), HasSubstr("expected org/name"));
}

TEST_F(HubTest, OfflineTakesTheCache) {
  hub_fetch(first_part());
  HubRequest offline = first_part();
  offline.settings.offline = true;
  offline.settings.endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(read(hub_snapshot(offline), "data/train-00000-of-00002.parquet"), large_);
  HubRequest unreachable = first_part();
  unreachable.settings.endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(read(hub_snapshot(unreachable), "data/train-00000-of-00002.parquet"), large_);
  EXPECT_THAT(messages_, HasSubstr("using 1 file from the cache for data/train-00000*\n"));
}

// As with OCTET_CACHE: what is in the usual cache is used where it is.
TEST_F(HubTest, TheReadCacheIsUsedAndNotWritten) {
  const std::string usual = hub_snapshot(first_part());
  fs::remove_all(fs::path(cache_) / "datasets--org--set/octet");  // the hub's library keeps no list
  HubRequest moved = first_part();
  moved.settings.read_cache = cache_;
  moved.settings.cache = join_path(folder_.path(), "own/hub");
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(cache_)) all.push_back(entry.path());
    return all.size();
  };
  const size_t before = names();
  HubRequest offline = moved;
  offline.settings.offline = true;
  EXPECT_EQ(hub_snapshot(offline), usual);
  EXPECT_THAT(messages_, HasSubstr("files may be missing"));
  EXPECT_FALSE(fs::exists(join_path(folder_.path(), "own"))) << "nothing is written offline";

  EXPECT_EQ(hub_snapshot(moved), usual);
  EXPECT_EQ(server_->requests_of("train-00000-of-00002.parquet").size(), 1u) << "downloaded once";
  // Another program goes back to an older commit. Offline, octet stays with the one that the hub named last.
  const fs::path repository = fs::path(cache_) / "datasets--org--set";
  const std::string commit = fs::path(usual).filename(), older(40, 'a');
  fs::copy(usual, repository / "snapshots" / older,
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  posix_env().replace_file((repository / "refs/main").string(), older);
  EXPECT_EQ(hub_snapshot(offline), usual);
  fs::remove_all(repository / "snapshots" / older);
  posix_env().replace_file((repository / "refs/main").string(), commit);
  // The hub's list shows that a file is missing there.
  HubRequest both = offline;
  both.files = {"data/*.parquet"};
  EXPECT_THAT(message_of([&] { hub_fetch(both); }),
              ::testing::AllOf(HasSubstr("1 of 2 files are not in the cache"), HasSubstr(cache_)));
  // A part is not enough: all of them go into octet's own cache, which then comes first.
  both.settings.offline = false;
  const HubSnapshot snapshot = hub_fetch(both);
  EXPECT_THAT(snapshot.folder, ::testing::StartsWith(moved.settings.cache));
  EXPECT_EQ(read(snapshot.folder, "data/train-00000-of-00002.parquet"), large_);
  EXPECT_EQ(hub_snapshot(offline), snapshot.folder);
  EXPECT_EQ(names(), before);
  offline.id = "org/other";
  EXPECT_THAT(message_of([&] { hub_fetch(offline); }),
              ::testing::AllOf(HasSubstr(moved.settings.cache), HasSubstr(cache_ + "/datasets--org--other")));
}

TEST_F(HubTest, ACacheThatCannotBeWrittenNamesTheVariable) {
  write_file(folder_ / "file", "");
  setenv("OCTET_CACHE", (folder_ / "file").c_str(), 1);
  HubRequest request = first_part();
  request.settings.cache = folder_ / "file/huggingface/hub";
  EXPECT_THAT(
      message_of([&] { hub_fetch(request); }),
      ::testing::AllOf(HasSubstr("Not a directory"), HasSubstr("(OCTET_CACHE is " + (folder_ / "file"))));
  unsetenv("OCTET_CACHE");
}

TEST_F(HubTest, APartOfTheFilesIsNotTakenForAll) {
  hub_fetch(first_part());
  HubRequest both = request();
  both.files = {"data/*.parquet"};
  both.settings.offline = true;
  EXPECT_THAT(message_of([&] { hub_fetch(both); }),
              ::testing::AllOf(HasSubstr("1 of 2 files are not in the cache"),
                               HasSubstr("data/train-00001-of-00002.parquet"), HasSubstr("HF_HUB_OFFLINE")));
  // Without the hub's list, as when another program has downloaded them, it can only be said.
  fs::remove_all(fs::path(cache_) / "datasets--org--set/octet");
  EXPECT_THAT(hub_fetch(both).files, ElementsAre("data/train-00000-of-00002.parquet"));
  EXPECT_THAT(messages_, HasSubstr("using 1 file from the cache for data/*.parquet; files may be missing"));
}

TEST_F(HubTest, OfflineErrorsOfTheChoiceComeWithTheAdvice) {
  hub_fetch(first_part());
  HubRequest request = first_part();
  request.settings.offline = true;
  request.choose = [](const std::vector<std::string>&) -> std::vector<std::string> { fail("no split x"); };
  EXPECT_THAT(message_of([&] { hub_fetch(request); }),
              ::testing::AllOf(HasSubstr("no split x"), HasSubstr("HF_HUB_OFFLINE"),
                               HasSubstr("--repo-type dataset")));
}

TEST_F(HubTest, AHubThatIsDownLeavesTheCache) {
  hub_fetch(first_part());
  server_->fault("api/revision", "status", 100, "503");
  HubRequest request = first_part();
  request.settings.retries = 1;
  EXPECT_EQ(read(hub_snapshot(request), "data/train-00000-of-00002.parquet"), large_);
  EXPECT_THAT(messages_, HasSubstr("gave status 503"));
}

TEST_F(HubTest, WhatIsThereIsNotCountedAsDownload) {
  HubRequest stopped = first_part();
  server_->fault("data/train-00000-of-00002.parquet", "cut", 100, "90000");
  stopped.settings.retries = 0;
  message_of([&] { hub_fetch(stopped); });
  const auto have = fs::file_size(blob(large_) + ".incomplete");
  ASSERT_EQ(have, 90000u);
  messages_.clear();
  message_of([&] { hub_fetch(stopped); });
  EXPECT_THAT(messages_, HasSubstr("1 of 1 files to download, 0.0 MB"));  // 10,000 of 100,000 bytes
}

TEST_F(HubTest, OfflineWithoutTheFilesSaysWhereToPutThem) {
  HubRequest offline = first_part();
  offline.settings.offline = true;
  const std::string message = message_of([&] { hub_fetch(offline); });
  EXPECT_THAT(message, HasSubstr(cache_ + "/datasets--org--set"));
  EXPECT_THAT(message, HasSubstr("HF_HUB_OFFLINE"));
  EXPECT_THAT(message, HasSubstr("data/train-00000*"));
  EXPECT_THAT(message, HasSubstr("--repo-type dataset"));
  offline.settings.offline = false;
  offline.settings.endpoint = "http://127.0.0.1:1";
  EXPECT_THAT(message_of([&] { hub_fetch(offline); }), HasSubstr("was not reached"));
}

TEST_F(HubTest, TwoRevisionsShareAFile) {
  hub_fetch(first_part());
  put("datasets/org/set/README.md", "changed");
  const HubSnapshot second = hub_fetch(first_part());
  EXPECT_EQ(read(second.folder, second.files[0]), large_);
  EXPECT_EQ(server_->requests_of("00000-of-00002.parquet").size(), 1u);
}

TEST_F(HubTest, BranchWithSlashes) {
  HubRequest converted = first_part();
  converted.revision = "refs/convert/parquet";
  hub_fetch(converted);
  EXPECT_TRUE(fs::exists(fs::path(cache_) / "datasets--org--set/refs/refs/convert/parquet"));
  converted.settings.offline = true;
  EXPECT_EQ(read(hub_snapshot(converted), "data/train-00000-of-00002.parquet"), large_);
}

TEST_F(HubTest, AServerThatNamesAPathOutsideIsRefused) {
  server_->fault("api/tree", "path", 1, "../x");
  EXPECT_THAT(message_of([&] { hub_fetch(request()); }), HasSubstr("path '../x', expected one below"));
  EXPECT_FALSE(fs::exists(fs::path(cache_) / "datasets--org--set/snapshots"));
}

TEST_F(HubTest, WhatEveryTryMeetsIsNotTriedAgain) {
  const auto error = [&](const char* kind, const std::string& value, int count = 1) {
    server_->fault("api/revision", kind, count, url_encode(value));
    return message_of([&] { hub_fetch(request()); });
  };
  EXPECT_THAT(error("redirect", "", 11), HasSubstr("redirects"));  // to itself
  EXPECT_THAT(error("redirect", "file:///etc/passwd"), HasSubstr("file"));
  EXPECT_THAT(error("redirect", "gopher://127.0.0.1/"), HasSubstr("gopher"));
  EXPECT_THAT(error("headers", "400000"), HasSubstr("headers of the answer have more than"));
  HubRequest nowhere = request();
  nowhere.settings.endpoint = "http://[bad";
  EXPECT_THAT(message_of([&] { hub_fetch(nowhere); }), HasSubstr("the hub cannot be used"));
  EXPECT_EQ(messages_, "") << "no word of another try";
}

TEST(Hub, PathsFromTheServerStayInside) {
  for (const char* path : {"../x", "a/../../x", "/etc/passwd", "", "a//b", "a/./b", "a\\..\\b", "a/.."}) {
    EXPECT_THROW(check_relative_path(path), Error) << path;
  }
  EXPECT_NO_THROW(check_relative_path("data/a..b/c.parquet"));
}

TEST(Hub, Ids) {
  for (const char* id : {"gpt2", "org/name", "HuggingFaceFW/fineweb-edu", "a.b/c_d"})
    EXPECT_TRUE(is_hub_id(id)) << id;
  for (const char* id : {"", "/", "a/", "/a", "a/b/c", "a b/c", "../x", ".a/b", "a/b--c", "a/..", "a/b?c"}) {
    EXPECT_FALSE(is_hub_id(id)) << id;
  }
}

TEST(Hub, SettingsComeFromTheEnvironment) {
  const auto with = [](std::vector<std::pair<const char*, const char*>> values) {
    for (const char* name :
         {"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE",
          "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
      unsetenv(name);
    }
    setenv("HOME", "/nowhere", 1);
    for (const auto& [name, value] : values) setenv(name, value, 1);
    return hub_settings_from_env();
  };
  EXPECT_EQ(with({}).cache, "/nowhere/.cache/huggingface/hub");
  EXPECT_EQ(with({}).endpoint, "https://huggingface.co");
  EXPECT_EQ(with({{"XDG_CACHE_HOME", "/x"}}).cache, "/x/huggingface/hub");
  EXPECT_EQ(with({{"HOME", ""}}).cache, "") << "not a folder below the working directory";
  EXPECT_EQ(with({{"HF_HOME", ""}, {"HF_HUB_CACHE", ""}, {"XDG_CACHE_HOME", ""}}).cache,
            "/nowhere/.cache/huggingface/hub");
  EXPECT_EQ(with({{"HF_HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache, "/h/hub");
  EXPECT_EQ(with({{"HF_HUB_CACHE", "/c"}, {"HF_HOME", "/h"}}).cache, "/c");
  EXPECT_EQ(with({{"HF_ENDPOINT", "http://mirror/"}}).endpoint, "http://mirror");
  EXPECT_EQ(with({{"HF_TOKEN", " t\n"}}).token, "t");
  TempDir folder;
  std::ofstream(join_path(folder.path(), "token")) << "from-file\n";
  EXPECT_EQ(with({{"HF_HOME", folder.path().c_str()}}).token, "from-file");
  EXPECT_FALSE(with({}).offline);
  EXPECT_TRUE(with({{"HF_HUB_OFFLINE", "1"}}).offline);
  EXPECT_FALSE(with({{"HF_HUB_OFFLINE", "0"}}).offline);
}

TEST(HubCacheFiles, AFailureLeavesNoTemporaryFiles) {
  const TempDir folder;
  const std::string commit(40, 'a');
  const HubCache cache(folder.path(), HubKind::Model, "org/name");
  // Folders where files should be.
  for (const std::string& path : {"snapshots/" + commit + "/file", std::string("refs/main")})
    fs::create_directories(fs::path(folder.path()) / "models--org--name" / path / "sub");
  EXPECT_THROW(cache.link(commit, "file", "hash"), Error);
  EXPECT_THROW(cache.set_ref("main", commit), Error);
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    EXPECT_TRUE(entry.is_directory() && !entry.is_symlink()) << entry.path();
}

}  // namespace
}  // namespace octet
