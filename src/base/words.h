#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet {

// The words of a name, in lower case: "Decoded_Image" as decoded, image. Everything but letters and digits separates.
std::vector<std::string> lower_words(std::string_view name);

}  // namespace octet
