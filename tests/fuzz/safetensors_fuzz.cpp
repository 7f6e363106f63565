// Whatever the bytes: SafetensorsFile gives a typed error, or tensors that cover the data exactly and that
// the writer can write again.

#include <cstdlib>

#include "io/safetensors.h"

namespace {

using namespace octet;

struct CountingSink : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override { size += static_cast<int64_t>(bytes.size()); }
  int64_t size = 0;
};

void expect(bool condition) {
  if (!condition) std::abort();
}

void check(std::span<const std::byte> bytes) {
  try {
    const SafetensorsFile file = SafetensorsFile::parse(bytes, "fuzz");
    const std::byte* next = file.tensors().empty() ? nullptr : file.tensors().front().bytes.data();
    std::vector<SafeTensorSpec> specs;
    for (const SafeTensor& tensor : file.tensors()) {
      expect(file.find(tensor.name) == &tensor);
      expect(tensor.bytes.data() == next);
      expect(tensor.count() * safe_dtype_bits(tensor.dtype) == static_cast<int64_t>(tensor.bytes.size()) * 8);
      next += tensor.bytes.size();
      specs.push_back({std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
    }
    expect(!next || next == bytes.data() + bytes.size());
    CountingSink sink;
    SafetensorsWriter writer(sink, specs, file.metadata());
    for (const SafeTensorSpec& spec : writer.specs()) writer.append(spec.name, file.at(spec.name).bytes);
    writer.finish();
    expect(sink.size == writer.total_bytes());
  } catch (const SafetensorsError&) {
  }
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
