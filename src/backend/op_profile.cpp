#include "backend/op_profile.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <tuple>

namespace octet {

OpLabel gemm_label(const char* op, GemmPart part, int64_t m, int64_t n, int64_t k) {
  constexpr OpKind kKinds[] = {OpKind::GemmForward, OpKind::GemmDgrad, OpKind::GemmWgrad};
  return {.kind = kKinds[static_cast<size_t>(part)],
          .op = op,
          .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          .m = m,
          .n = n,
          .k = k};
}

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"outside", "forward", "head", "backward", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

OpKind shown_kind(OpKind kind, Phase phase) {
  return phase == Phase::Head && kind != OpKind::Idle ? OpKind::Loss : kind;
}

std::string kind_text(OpKind kind, Phase phase) {
  constexpr const char* kNames[] = {
      "idle",
      "GEMM forward",
      "GEMM dgrad",
      "GEMM wgrad",
      "adapters",
      "attention forward",
      "attention backward",
      "norm",
      "activation",
      "quantize",
      "rope",
      "embedding",
      "head and loss",
      "norm of gradients",
      "optimizer",
      "communication",
      "copies",
      "other",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(OpKind::Other) + 1);
  return kNames[static_cast<size_t>(shown_kind(kind, phase))];
}

std::string op_text(const OpLabel& label, Phase phase) {
  std::string name = label.op;
  if (label.m > 0) name += fmt::format(" {} x {} x {}", label.m, label.n, label.k);
  return phase == Phase::Head ? fmt::format("head {}", name) : name;
}

std::vector<OpTime> sums_by_op(const std::vector<OpPiece>& pieces) {
  std::map<std::tuple<OpKind, std::string, std::string>, OpTime> times;
  for (const OpPiece& piece : pieces) {
    const std::string kind = kind_text(piece.label.kind, piece.phase);
    const std::string op = op_text(piece.label, piece.phase);
    OpTime& time = times[{shown_kind(piece.label.kind, piece.phase), kind, op}];
    time.kind = kind;
    time.op = op;
    time.ms += piece.ms;
    if (!piece.first) continue;
    ++time.calls;
    time.bytes += piece.label.bytes;
    time.flops += piece.label.flops;
  }
  std::vector<OpTime> result;
  for (auto& [key, time] : times) result.push_back(std::move(time));
  return result;
}

}  // namespace octet
