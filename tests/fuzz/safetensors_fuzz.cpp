// Whatever the bytes: SafetensorsFile gives a typed error, or tensors that cover the data exactly and that
// the writer can write again.

#include <algorithm>
#include <optional>

#include "fuzz_support.h"
#include "io/safetensors.h"

namespace {

using namespace octet;

struct StringSink : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

// Everything is written, and reads the same.
void check_written(const SafetensorsFile& file, const std::vector<SafeTensorSpec>& specs) {
  StringSink sink;
  SafetensorsWriter writer(sink, specs, file.metadata());
  for (const SafeTensorSpec& spec : writer.specs()) writer.append(spec.name, file.at(spec.name).bytes);
  writer.finish();
  expect(std::ssize(sink.text) == writer.total_bytes());
  const SafetensorsFile again = SafetensorsFile::parse(std::as_bytes(std::span(sink.text)), "written");
  expect(again.tensors().size() == file.tensors().size() && again.metadata() == file.metadata());
  for (const SafeTensor& tensor : file.tensors()) {
    const SafeTensor& same = again.at(tensor.name);
    expect(same.dtype == tensor.dtype && std::ranges::equal(same.shape, tensor.shape) &&
           std::ranges::equal(same.bytes, tensor.bytes));
  }
}

void check(std::span<const std::byte> bytes) {
  std::optional<SafetensorsFile> file;
  try {
    file = SafetensorsFile::parse(bytes, "fuzz");
  } catch (const SafetensorsError&) {
    return;
  }
  must_succeed([&] {
    const std::byte* next = file->tensors().empty() ? nullptr : file->tensors().front().bytes.data();
    std::vector<SafeTensorSpec> specs;
    for (const SafeTensor& tensor : file->tensors()) {
      expect(file->find(tensor.name) == &tensor);
      expect(tensor.bytes.data() == next);
      expect(tensor.count() * safe_dtype_bits(tensor.dtype) == static_cast<int64_t>(tensor.bytes.size()) * 8);
      next += tensor.bytes.size();
      specs.push_back({std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
    }
    expect(!next || next == bytes.data() + bytes.size());
    check_written(*file, specs);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check(std::as_bytes(std::span(data, size)));
  // Again with a header length that fits, so that the rules behind it are reached.
  std::vector<uint8_t> framed(8);
  for (size_t i = 0; i < 8; ++i) framed[i] = static_cast<uint8_t>(uint64_t{size} >> (8 * i));
  framed.insert(framed.end(), data, data + size);
  check(std::as_bytes(std::span(framed)));
  return 0;
}
