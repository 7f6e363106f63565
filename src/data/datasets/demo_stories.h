#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet {

// The data of the built-in demo: one-line stories from a small seeded grammar, each with one answer that can
// be checked exactly. Example: "Mia has 4 red apples. Leo gives her 3 more. Now Mia has 7 red apples."
//
// The split is a property of the story, not of the draw: the variables a story is made of (pattern, people,
// things, numbers) are hashed, and one story in kDemoHeldOutOneIn belongs to HeldOut whatever the seed. So a
// held-out story never occurs in training text, while each of its parts does: what is measured is whether the
// model composes them.
enum class DemoSplit { Train, HeldOut };
constexpr uint64_t kDemoHeldOutOneIn = 8;

// `count` stories of the split, one per line, ASCII. A pure function of its arguments; stories may repeat.
std::string demo_text(uint64_t seed, int64_t count, DemoSplit split);

// Story = prompt + answer. The prompt ends just before the answer, which starts with a space and ends with
// the story's last character '.'; so an exact match compares the text
// generated up to and including the first '.'.
struct DemoCase {
  std::string prompt;
  std::string answer;
};

// `count` different held-out stories, at most kDemoMostCases. The patterns take turns; the one with the fewest
// variables has about 270 stories.
constexpr int64_t kDemoMostCases = 800;
std::vector<DemoCase> demo_cases(uint64_t seed, int64_t count);

}  // namespace octet
