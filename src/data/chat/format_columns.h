#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// The columns that a format reads: what the options name, else the format's own names.
struct FormatColumns {
  ExampleFormat format = ExampleFormat::Auto;
  std::string text, prompt, completion, messages, input, history;  // unused ones are empty
  // Whether a record with pictures or sound is refused. A text column that was named is taken without them.
  bool refuses_media = true;

  bool is_text() const { return format == ExampleFormat::Text; }
  // All columns that may be read, also those that a record need not have.
  std::vector<std::string> all() const;
  // "columns prompt, response".
  std::string describe() const;
};

inline constexpr const char* kSystemColumns[] = {"system", "system_prompt"};  // the first that a record has
inline constexpr const char* kToolsColumn = "tools";
// Columns of pictures and sound.
// image, images_list, audio_path, jpg: whether the name of a column says that it holds pictures or sound.
bool is_media_name(std::string_view name);

// Decides the format from the names of the columns when the options do not. ConfigError when no format matches or the
// columns are those of preference data; it lists the columns and what is accepted, and `place` ("file] line 1") names
// the file or record in it.
FormatColumns choose_format(const ExampleOptions& options, const std::vector<std::string>& columns,
                            const std::string& place);

// Throws Error when `columns` lack one that the format needs.
void check_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                   const std::string& place);

// Throws Error for a media column in a file whose columns are known before its records.
void refuse_media_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                          const std::string& place);

}  // namespace octet
