// Whatever the bytes: as a file of a checkpoint they give an Error, or something that is the same after it was
// written and read again. The first byte chooses the file.

#include "base/error.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_files.h"
#include "fuzz_support.h"
#include "io/checkpoint_manifest.h"

namespace {

using namespace octet;

void check_manifest(const std::string& text) {
  const Checkpoint checkpoint = parse_manifest(sealed(text), "fuzz");
  for (const CheckpointFile& file : checkpoint.files) {
    expect(is_plain_name(file.name) && checkpoint.has_file(file.name));
    expect(checkpoint.file_path(file.name).ends_with(file.name));
  }
  must_succeed([&] {
    const std::string written = manifest_text(checkpoint);
    expect(manifest_text(parse_manifest(written, "written")) == written);
  });
  checkpoint.total_bytes();
  for (const std::string_view stem : {kWeightsStem, kAdapterStem, kOptimizerStem}) {
    try {
      for (const std::string& name : tensor_file_names(checkpoint, stem)) expect(checkpoint.has_file(name));
    } catch (const Error&) {  // a number is missing
    }
  }
}

void check_state(const std::string& text) {
  const TrainerState state = trainer_state_from_json(text, "fuzz");
  must_succeed([&] {
    const std::string written = to_json(state);
    expect(to_json(trainer_state_from_json(written, "written")) == written);
  });
}

void check_base(const std::string& text) {
  const BaseIdentity base = base_identity_from_json(text, "fuzz");
  must_succeed([&] {
    expect(base_identity_from_json(to_json(base), "written") == base);
    expect(differences(base, base).empty());
  });
}

void check_chat(const std::string& text) {
  const ChatStyle style = chat_style_from_json(text, "fuzz");
  must_succeed([&] { expect(chat_style_from_json(to_chat_json(style), "written") == style); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr void (*kChecks[])(const std::string&) = {check_manifest, check_state, check_base, check_chat};
  const auto [reader, text] = take_choice(data, size, std::size(kChecks));
  try {
    kChecks[reader](text);
  } catch (const Error&) {
  }
  return 0;
}
