#include <bit>
#include <limits>
#include <numeric>

#include "support/op_table_detail.h"

// The ops between ranks. All of them have the same bits on every device.
namespace octet::test {
namespace {

OpCase sum_parts_case(DType dtype, int64_t parts, int64_t count, bool accumulate) {
  OpCase op = start(fmt::format("sum_parts{}", accumulate ? "_add" : ""), dtype, {parts, count});
  op.bytes = bytes_for(dtype, parts * count) + bytes_for(DType::F32, (accumulate ? 2 : 1) * count);
  op.add_input("parts", dtype, {parts, count}, normal(parts * count, dtype, 1));
  op.add_input("before", DType::F32, {count}, normal(count, DType::F32, 2));
  op.add_output("sum", DType::F32, {count}, Compare::Exact);
  op.prepare = [=](Device& device, Args& args) {
    if (accumulate) device.copy(args.out[0], args.in[1]);
  };
  op.forward = [=](Device& device, Args& args) {
    device.ops().sum_parts(args.out[0], args.in[0], accumulate);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> sum(at(count));
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t part = 0; part < parts; ++part) sum[at(i)] += in[0][at(part * count + i)];
      if (accumulate) sum[at(i)] += in[1][at(i)];
    }
    return Arrays{sum};
  };
  return op;
}

OpCase convert_case(DType to, DType from, int64_t count) {
  OpCase op = start(fmt::format("convert_{}_to", octet::name_of(from)), to, {count});
  op.bytes = bytes_for(to, count) + bytes_for(from, count);
  op.add_input("from", from, {count}, normal(count, from, 1));
  op.add_output("to", to, {count}, Compare::Exact);
  op.forward = [](Device& device, Args& args) { device.ops().convert(args.out[0], args.in[0]); };
  op.reference = [=](const Arrays& in) {
    std::vector<double> result = in[0];
    for (double& x : result) x = round_to(to, x);
    return Arrays{result};
  };
  return op;
}

OpCase combine_norms_case(int64_t ranks, int64_t width, float max_norm) {
  OpCase op = start(fmt::format("combine_norms{}", max_norm > 0 ? "_clip" : ""), DType::F32, {ranks, width});
  op.add_input("records", DType::F32, {ranks, width},
               normal(ranks * width, DType::F32, 1, 0.1, 3.0));  // norms are positive
  op.add_output("result", DType::F32, {2}, Compare::Exact);
  op.forward = [=](Device& device, Args& args) {
    device.ops().combine_norms(args.out[0], args.in[0], max_norm);
  };
  op.reference = [=](const Arrays& in) {
    double squares = 0;
    for (int64_t r = 0; r < ranks; ++r) squares += in[0][at(r * width)] * in[0][at(r * width)];
    const double norm = std::sqrt(squares), most = static_cast<double>(max_norm);
    return Arrays{{norm, most > 0 && norm > most ? most / norm : 1.0}};
  };
  return op;
}

// Token counts, so large that their sum is more than int32 holds.
OpCase reciprocal_of_sum_case(int64_t ranks, bool zero) {
  OpCase op = start(fmt::format("reciprocal_of_sum{}", zero ? "_zero" : ""), DType::F32, {ranks});
  std::vector<double> counts(at(ranks));
  for (int64_t i = 0; i < ranks && !zero; ++i) counts[at(i)] = static_cast<double>(1999999999 - 12345 * i);
  op.add_input("counts", DType::I32, {ranks}, fixed(counts));
  op.add_output("scale", DType::F32, {1}, Compare::Exact);
  op.forward = [](Device& device, Args& args) { device.ops().reciprocal_of_sum(args.out[0], args.in[0]); };
  op.reference = [](const Arrays& in) {
    const double total = std::accumulate(in[0].begin(), in[0].end(), 0.0);
    return Arrays{{total > 0 ? 1 / total : 0.0}};
  };
  return op;
}

// Slots with scales of many sizes, some equal on several ranks, and every kind of amax.
std::vector<ScaleSlot> some_slots(int64_t count, uint64_t seed) {
  constexpr float kAmax[] = {3.0f,
                             0.0f,
                             std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN(),
                             0.25f,
                             std::numeric_limits<float>::denorm_min(),
                             std::numeric_limits<float>::max()};
  std::vector<ScaleSlot> slots(at(count));
  const Philox random(seed, 6);
  for (size_t i = 0; i < slots.size(); ++i) {
    ScaleSlot& slot = slots[i];
    slot.scale_rowwise = std::exp2(static_cast<float>(random.below(5 * i, 4)));
    slot.scale_colwise = static_cast<float>(1 + random.below(5 * i + 1, 1000));
    slot.inverse_rowwise = 1.0f / slot.scale_rowwise;
    slot.inverse_colwise = 1.0f / slot.scale_colwise;
    slot.amax = kAmax[random.below(5 * i + 2, std::size(kAmax))];
    // Every third slot has an amax_last on no rank.
    slot.amax_last = i % 3 == 1 ? kAmax[1 + i % 2] : kAmax[random.below(5 * i + 3, std::size(kAmax))];
  }
  return slots;
}

Fill bytes_of_slots(const std::vector<ScaleSlot>& slots) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(slots.data());
  return fixed(std::vector<double>(bytes, bytes + slots.size() * sizeof(ScaleSlot)));
}

OpCase merge_slots_case(int64_t ranks, int64_t count) {
  OpCase op = start("merge_slots", DType::U8, {ranks, count});
  const auto bytes = static_cast<int64_t>(count * sizeof(ScaleSlot));
  op.add_input("slots", DType::U8, {bytes}, bytes_of_slots(some_slots(count, 1)));
  op.add_input("gathered", DType::U8, {ranks, bytes}, bytes_of_slots(some_slots(ranks * count, 2)));
  op.add_output("slots", DType::U8, {bytes}, Compare::Exact);
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [](Device& device, Args& args) { device.ops().merge_slots(args.out[0], args.in[1]); };
  return op;
}

OpCase add_hash_case(int64_t bytes) {
  OpCase op = start("add_hash", DType::U8, {bytes});
  op.bytes = static_cast<double>(bytes);
  op.add_input("before", DType::U8, {8}, fixed({1, 2, 3, 4, 5, 6, 7, 255}));
  op.add_input("x", DType::U8, {bytes}, [=](int64_t most) { return ids(std::min(bytes, most), 256, 1); });
  op.add_output("hash", DType::U8, {8}, Compare::Exact);
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [](Device& device, Args& args) {
    device.ops().add_hash(args.out[0], args.in[1], 0xFEDCBA9876543210);
  };
  return op;
}

}  // namespace

void add_ranks(std::vector<OpCase>& table) {
  const DType bf16 = DType::BF16, fp32 = DType::F32;
  for (const DType dtype : {fp32, bf16}) {
    for (const int64_t parts : {1, 2, 3, 4, 5, 8, 16}) {
      for (const bool accumulate : {false, true}) {
        table.push_back(sum_parts_case(dtype, parts, 1000, accumulate));  // whole vectors
        table.push_back(sum_parts_case(dtype, parts, 77, accumulate));
      }
    }
    table.push_back(large(sum_parts_case(dtype, 8, 50000, false)));
    table.push_back(large(sum_parts_case(dtype, 3, 100001, true)));
    for (const DType from : {fp32, bf16}) {
      for (const int64_t count : {1, 77, 1000}) table.push_back(convert_case(dtype, from, count));
      table.push_back(large(convert_case(dtype, from, 100000)));
    }
  }
  for (const int64_t ranks : {1, 3, 64}) {
    table.push_back(combine_norms_case(ranks, 16, 1.0f));
    table.push_back(combine_norms_case(ranks, 1, 0.0f));
    table.push_back(reciprocal_of_sum_case(ranks, false));
    table.push_back(merge_slots_case(ranks, 7));
  }
  table.push_back(reciprocal_of_sum_case(4, true));
  table.push_back(large(merge_slots_case(8, 1000)));
  for (const int64_t bytes : {1, 7, 8, 9, 1000, 4099}) table.push_back(add_hash_case(bytes));
  table.push_back(large(add_hash_case(1000003)));
  for (const DType dtype : {DType::E8M0, DType::U8}) {
    table.push_back(transpose_fp8_case(dtype, 37, 53, Granularity::Tensor));
    table.push_back(transpose_fp8_case(dtype, 272, 16, Granularity::Tensor));
  }
}

// One transformer block of Llama-3.1 8B, shared by two and by eight ranks, and by one; then all codes of such a block.
void add_model_ranks(std::vector<OpCase>& table) {
  constexpr int64_t kBlock = 218103808;
  const DType bf16 = DType::BF16, fp32 = DType::F32;
  for (const int64_t ranks : {1, 2, 3, 4, 8, 16}) {
    table.push_back(sum_parts_case(bf16, ranks, kBlock / ranks / 128 * 128, false));
  }
  table.push_back(sum_parts_case(bf16, 8, kBlock / 8, true));
  table.push_back(sum_parts_case(fp32, 8, kBlock / 8, false));
  table.push_back(sum_parts_case(fp32, 8, kBlock / 8, true));
  table.push_back(convert_case(bf16, fp32, kBlock));
  table.push_back(convert_case(fp32, bf16, kBlock));
  table.push_back(merge_slots_case(8, 1024));
  table.push_back(combine_norms_case(8, 16, 1.0f));
  table.push_back(add_hash_case(kBlock));
  table.push_back(transpose_fp8_case(DType::E8M0, 28672, 128, Granularity::Tensor));
}

}  // namespace octet::test
