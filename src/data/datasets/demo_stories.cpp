#include "data/datasets/demo_stories.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/philox.h"

namespace octet {
namespace {

// Few words, seen often: the demo's model is small and sees about a million characters in all. Words that can
// stand in the same place differ in their first letter, so that one character decides which is being copied.
struct Person {
  std::string_view name, subject, object;
};
constexpr std::array kPeople = {
    Person{"Mia", "She", "her"}, Person{"Leo", "He", "him"},  Person{"Zoe", "She", "her"},
    Person{"Sam", "He", "him"},  Person{"Ann", "She", "her"}, Person{"Tom", "He", "him"},
};
struct Instrument {
  std::string_view verb, name, sound;
};
constexpr std::array kInstruments = {Instrument{"hits", "drum", "bom"}, Instrument{"rings", "bell", "ding"},
                                     Instrument{"blows", "horn", "toot"}};
constexpr std::array<std::string_view, 4> kColours = {"red", "blue", "green", "white"};
constexpr std::array<std::string_view, 6> kThings = {"apple", "ball", "kite", "shell", "drum", "lamp"};
constexpr std::array<std::string_view, 6> kPlaces = {"lake", "mill", "farm", "wood", "shop", "park"};
constexpr std::array<std::string_view, 3> kMoves = {"walk", "run", "sail"};
constexpr std::array<std::string_view, 4> kDirections = {"north", "east", "south", "west"};

// The variables of one story, drawn one after another. The same list is what the split hashes.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t story, size_t pattern) : random_(seed, kStream), next_(story << 8) {
    note(pattern);
  }

  size_t below(size_t bound) { return note(random_.below(next_++, bound)); }

  // A person other than those drawn before.
  const Person& person() {
    size_t index = 0;
    do {
      index = random_.below(next_++, kPeople.size());
    } while (std::find(people_.begin(), people_.end(), index) != people_.end());
    people_.push_back(index);
    return kPeople[note(index)];
  }

  template <size_t N>
  std::string_view word(const std::array<std::string_view, N>& words) {
    return words[below(N)];
  }

  int number(int low, int high) { return low + static_cast<int>(below(static_cast<size_t>(high - low + 1))); }

  // FNV-1a over the variables, then a mix, because its low bits alone are weak.
  bool held_out() const {
    const uint64_t mixed = (hash_ ^ hash_ >> 32) * 0x9E3779B97F4A7C15;
    return (mixed >> 32) % kDemoHeldOutOneIn == 0;
  }

 private:
  static constexpr uint64_t kStream = 0x64656d6f73746f72;

  size_t note(size_t value) {
    hash_ = (hash_ ^ value) * 0x100000001b3;
    return value;
  }

  Philox random_;
  uint64_t next_;
  std::vector<size_t> people_;
  uint64_t hash_ = 0xcbf29ce484222325;
};

DemoCase addition(Draw& draw) {
  const Person &owner = draw.person(), &giver = draw.person();
  const std::string_view colour = draw.word(kColours), thing = draw.word(kThings);
  const int first = draw.number(2, 7), more = draw.number(1, 4);
  return {fmt::format("{} has {} {} {}s. {} gives {} {} more. Now {} has", owner.name, first, colour, thing,
                      giver.name, owner.object, more, owner.name),
          fmt::format(" {} {} {}s.", first + more, colour, thing)};
}

DemoCase hand_over(Draw& draw) {
  const Person &first = draw.person(), &second = draw.person(), &third = draw.person();
  const std::string_view colour = draw.word(kColours), thing = draw.word(kThings);
  return {
      fmt::format("{} has a {} {}. {} gives it to {}. {} gives it to {}. Now the {} {} is with", first.name,
                  colour, thing, first.subject, second.name, second.name, third.name, colour, thing),
      fmt::format(" {}.", third.name)};
}

DemoCase way_back(Draw& draw) {
  const Person &one = draw.person(), &other = draw.person();
  const std::string_view move = draw.word(kMoves), place = draw.word(kPlaces);
  const size_t direction = draw.below(kDirections.size());
  return {fmt::format("{} and {} {} {} to the {}. To come home they {}", one.name, other.name, move,
                      kDirections[direction], place, move),
          fmt::format(" {}.", kDirections[(direction + 2) % 4])};
}

DemoCase counting(Draw& draw) {
  const Person& person = draw.person();
  const Instrument& instrument = kInstruments[draw.below(kInstruments.size())];
  const std::string_view colour = draw.word(kColours), place = draw.word(kPlaces);
  const int count = draw.number(2, 7);
  std::string sounds;
  for (int i = 0; i < count; ++i) sounds.append(" ").append(instrument.sound);
  return {fmt::format("{} {} the {} {} at the {}:{}. {} counts", person.name, instrument.verb, colour,
                      instrument.name, place, sounds, person.name),
          fmt::format(" {}.", count)};
}

using Pattern = DemoCase (*)(Draw&);
constexpr std::array<Pattern, 4> kPatterns = {addition, hand_over, way_back, counting};

// Story number `index` of the split: draws until one falls into it. Patterns take turns.
DemoCase story(uint64_t seed, uint64_t index, DemoSplit split) {
  constexpr uint64_t kTries = 1 << 12;
  const size_t pattern = index % kPatterns.size();
  for (uint64_t attempt = 0; attempt < kTries; ++attempt) {
    Draw draw(seed, (index * 2 + (split == DemoSplit::HeldOut)) * kTries + attempt, pattern);
    DemoCase made = kPatterns[pattern](draw);
    if (draw.held_out() == (split == DemoSplit::HeldOut)) return made;
  }
  fail("[demo] no story of the split in {} draws", kTries);
}

}  // namespace

std::string demo_text(uint64_t seed, int64_t count, DemoSplit split) {
  std::string text;
  text.reserve(static_cast<size_t>(count) * 90);
  for (int64_t i = 0; i < count; ++i) {
    const DemoCase made = story(seed, static_cast<uint64_t>(i), split);
    text.append(made.prompt).append(made.answer).push_back('\n');
  }
  return text;
}

std::vector<DemoCase> demo_cases(uint64_t seed, int64_t count) {
  require(count >= 0 && count <= kDemoMostCases, "[demo] {} cases, expected 0 to {}", count, kDemoMostCases);
  std::vector<DemoCase> cases;
  std::set<std::string> seen;
  for (uint64_t slot = 0; slot < static_cast<uint64_t>(count); ++slot) {
    // A story that was drawn before makes way for a later one of the same pattern.
    for (uint64_t index = slot;; index += kPatterns.size() * kDemoMostCases) {
      DemoCase made = story(seed, index, DemoSplit::HeldOut);
      if (!seen.insert(made.prompt).second) continue;
      cases.push_back(std::move(made));
      break;
    }
  }
  return cases;
}

}  // namespace octet
