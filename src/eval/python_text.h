#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Texts as Python's str treats them, because scores are only comparable if prompts are made of the same characters. All
// texts are UTF-8; characters are code points.

int64_t count_characters(std::string_view text);    // len(text)
std::string_view strip(std::string_view text);      // text.strip()
std::string_view strip_end(std::string_view text);  // text.rstrip()
std::string capitalize(std::string_view text);      // text.capitalize()
std::string replace_all(std::string text, std::string_view from,
                        std::string_view to);  // text.replace(from, to)
// re.sub(r"\[.*?\]", "", text)
std::string remove_brackets(std::string_view text);

// Python's random.Random(seed): the Mersenne Twister, seeded and used as Python does it.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);
  // Indices of random.sample(population, count), with a population of `size`. `count` is at most `size`.
  std::vector<size_t> sample(size_t size, size_t count);

 private:
  uint32_t next();
  size_t below(size_t bound);

  std::vector<uint32_t> state_;
  size_t at_ = 0;
};

}  // namespace octet
