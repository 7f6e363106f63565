#pragma once

#include <string>
#include <string_view>

#include "io/checkpoint_store.h"

namespace octet {

constexpr const char* kCheckpointManifestName = "manifest.json";
constexpr int kCheckpointVersion = 1;

// The text of manifest.json, which ends with its own checksum.
std::string manifest_text(const Checkpoint& checkpoint);

// Throws Error when the text is not exactly what manifest_text() wrote. `place` names it in errors; path stays empty.
Checkpoint parse_manifest(std::string_view text, const std::string& place);

// Compares the files of `checkpoint` with its manifest; "" or what is wrong.
std::string check_files(Env& env, const Checkpoint& checkpoint, bool verify);

// A name that stays inside its folder.
bool is_plain_name(std::string_view name);

}  // namespace octet
