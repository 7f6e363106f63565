#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/loading/packing_plan.h"
#include "document_support.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void expect_same(const PackingPlan& a, const PackingPlan& b) {
  ASSERT_EQ(a.rows(), b.rows());
  ASSERT_EQ(a.fragments(), b.fragments());
  EXPECT_EQ(a.length(), b.length());
  EXPECT_EQ(a.totals().inputs, b.totals().inputs);
  EXPECT_EQ(a.totals().dropped_windows, b.totals().dropped_windows);
  EXPECT_EQ(a.totals().split_documents, b.totals().split_documents);
  EXPECT_EQ(a.totals().single_tokens, b.totals().single_tokens);
  for (int64_t row = 0; row < a.rows(); ++row) {
    const auto of_a = a.row(row), of_b = b.row(row);
    ASSERT_TRUE(std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end())) << row;
  }
  for (int64_t place = 0; place < a.fragments(); ++place) {
    EXPECT_EQ(a.fragment(place).document, b.fragment(place).document);
    EXPECT_EQ(a.fragment(place).window, b.fragment(place).window);
    EXPECT_EQ(a.fragment_length(place), b.fragment_length(place));
    EXPECT_EQ(a.same_length(place), b.same_length(place));
  }
}

struct PackingPlanFile : testing::Test {
  std::vector<std::string> names() const { return posix_env().list(folder.file("packing")); }
  std::shared_ptr<const PackingPlan> stored(const DocumentSource& documents, int64_t length = 64,
                                            Packing packing = Packing::BestFit) const {
    return stored_packing_plan(posix_env(), folder.file("packing"), documents, length, packing, 100);
  }
  TemporaryFolder folder;
  const DocumentSource source = source_of(many_documents(301, 150), 3);
};

TEST_F(PackingPlanFile, HoldsTheWholePlan) {
  for (const Packing packing : {Packing::BestFit, Packing::None}) {
    const PackingPlan plan(source, 64, packing);
    plan.save(posix_env(), folder.file("p"), 17);
    const std::optional<PackingPlan> loaded = PackingPlan::load(posix_env(), folder.file("p"), 17);
    ASSERT_TRUE(loaded);
    expect_same(plan, *loaded);
    const PackingPlan copy = *loaded;
    expect_same(plan, copy);
    EXPECT_FALSE(PackingPlan::load(posix_env(), folder.file("p"), 18)) << "of other documents";
  }
  EXPECT_THAT(posix_env().list(folder.path()), ElementsAre("p"));
}

TEST_F(PackingPlanFile, DamageIsNoticed) {
  const DocumentSource few = source_of(many_documents(20, 30));
  PackingPlan(few, 16, Packing::BestFit).save(posix_env(), folder.file("p"), 17);
  std::ifstream file(folder.file("p"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto error = [&](const std::string& changed) {
    folder.write("q", changed);
    return error_of([&] { PackingPlan::load(posix_env(), folder.file("q"), 17); });
  };
  EXPECT_EQ(error(bytes), "nothing was thrown");
  for (size_t i = 0; i < bytes.size(); i += i < 128 ? 1 : 7) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_THAT(error(changed), HasSubstr("/q]")) << i;
  }
  for (const size_t size : {size_t{0}, size_t{100}, size_t{128}, bytes.size() - 8, bytes.size() - 1})
    EXPECT_THAT(error(bytes.substr(0, size)), HasSubstr("/q]")) << size;
  EXPECT_THAT(error(bytes + "12345678"), HasSubstr("/q]"));
}

TEST_F(PackingPlanFile, TheSecondStartFindsIt) {
  const PackingPlan fresh(source, 64, Packing::BestFit);
  expect_same(*stored(source), fresh);
  ASSERT_EQ(names().size(), 1u);
  const auto before = fs::last_write_time(folder.file("packing/" + names()[0]));
  expect_same(*stored(source), fresh);
  EXPECT_EQ(fs::last_write_time(folder.file("packing/" + names()[0])), before) << "not written again";
  // Each of these has its own.
  stored(source, 32);
  stored(source, 64, Packing::None);
  stored(source_of(many_documents(301, 150, 2), 3));
  EXPECT_EQ(names().size(), 4u);
}

TEST_F(PackingPlanFile, ADamagedOneIsMadeAgain) {
  stored(source);
  const std::string path = folder.file("packing/" + names().at(0));
  fs::resize_file(path, fs::file_size(path) - 8);
  const test::CapturedLog log;
  expect_same(*stored(source), PackingPlan(source, 64, Packing::BestFit));
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("the plan is made again")));
  stored(source);
  EXPECT_EQ(log.messages.size(), 1u) << "the new file is sound";
}

TEST_F(PackingPlanFile, SmallPlansAreNotStored) {
  stored(source_of(many_documents(20, 30)));
  EXPECT_FALSE(fs::exists(folder.file("packing")));
  stored_packing_plan(posix_env(), "", source, 64, Packing::BestFit, 1);
}

TEST_F(PackingPlanFile, AFailureToStoreIsNoError) {
  folder.write("packing", "a file where the folder should be");
  const test::CapturedLog log;
  expect_same(*stored(source), PackingPlan(source, 64, Packing::BestFit));
  EXPECT_FALSE(log.messages.empty());
}

TEST_F(PackingPlanFile, PlansOfAMonthAgoAreRemoved) {
  stored(source, 32);
  const std::string old = names().at(0);
  const auto age = [&](int days) {
    fs::last_write_time(folder.file("packing/" + old),
                        fs::file_time_type::clock::now() - std::chrono::hours(24 * days));
  };
  age(20);
  stored(source, 32);  // used: it counts as new
  stored(source, 16);
  EXPECT_EQ(names().size(), 2u);
  age(31);
  folder.write("packing/notes.txt", "of somebody else");
  stored(source, 64);
  EXPECT_EQ(names().size(), 3u);
  EXPECT_THAT(names(), testing::Not(testing::Contains(old)));
  EXPECT_THAT(names(), testing::Contains("notes.txt"));
}

}  // namespace
}  // namespace octet
