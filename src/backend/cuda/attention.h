#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "ops/ops.h"

namespace octet {

class CudaOps;

// One call of attention, checked. Pointers are the device's; N tokens, H query heads, K key/value heads, D
// wide.
struct AttentionCase {
  DType dtype = DType::BF16;
  int64_t tokens = 0;
  AttentionShape shape;
  Documents documents;

  // All documents have one length and cover the tokens. The starts are not readable here. So this assumes that
  // max_length is the longest length and that the documents follow each other from 0 to N, as in a Batch.
  bool equal_documents() const {
    return documents.count > 0 && documents.max_length > 0 &&
           documents.count * documents.max_length == tokens;
  }
};

struct AttentionForward {
  void* out = nullptr;   // (N, H * D)
  float* lse = nullptr;  // H * N floats, read only by backward of the same engine
  const void* qkv = nullptr;
};

struct AttentionBackward {
  void* dqkv = nullptr;
  const void* dout = nullptr;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const float* lse = nullptr;
};

// A way to compute attention. Results are queued on the stream of the ops.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;
  // Empty, or why this engine cannot run the case. The answer for a case never changes, so backward runs on the
  // engine that ran forward.
  virtual std::string refuses(const AttentionCase&) = 0;
  virtual void forward(const AttentionCase&, const AttentionForward&) = 0;
  virtual void backward(const AttentionCase&, const AttentionBackward&) = 0;
};

// cuDNN's fused attention: bf16. Its lse is (documents, H, length) if it treats the documents as equally long,
// otherwise (N, H). Null, with the reason, if the program was built without cuDNN or the library cannot be opened.
std::unique_ptr<AttentionEngine> make_cudnn_attention(CudaOps& ops, std::string& reason);

// Own kernels: fp32 and bf16, documents of any lengths, always deterministic. Its lse is (H, N). Tensor cores
// for bf16 with D a multiple of 8 up to 128; plain kernels for everything else up to D = 256.
std::unique_ptr<AttentionEngine> make_flash_attention(CudaOps& ops);

// The engines of one queue's ops and the choice between them. The environment variable OCTET_ATTENTION, read at
// its first attention op, forces one: "cudnn" (then cases that cuDNN refuses are errors) or "flash".
class Attention {
 public:
  explicit Attention(CudaOps& ops);
  AttentionEngine& engine_for(const AttentionCase& attention);

 private:
  void tell(const std::string& reason);

  std::unique_ptr<AttentionEngine> cudnn_;
  std::unique_ptr<AttentionEngine> flash_;
  std::string no_cudnn_;  // why cudnn_ is absent
  bool only_cudnn_ = false;
  std::set<std::string> told_;  // kinds of reasons why cuDNN was not used
};

}  // namespace octet
