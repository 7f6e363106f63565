#include "bench/comm_bench.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

// One collective before it has memory. Bytes of whole tensors, one per item of the call.
struct Collective {
  std::string name;
  CollectiveKind kind;
  Communicator* group;
  std::vector<int64_t> items;
};

bool is_planned(const Tensor& tensor) {
  return tensor.shape.rank() > 0;
}

class CommBench {
 public:
  CommBench(Transformer& planned, Device& device, Ranks& ranks, const CommBenchOptions& options)
      : planned_(planned),
        device_(device),
        ranks_(ranks),
        options_(options),
        sharding_(planned.sharding()),
        queue_(device.make_queue("collectives")),
        communicated_(device.make_event()),
        computed_(device.make_event()) {
    world_ = communicator("comm bench world", 1, [&](int64_t) { return members(0, sharding_.ranks, 1); });
    inside_ = communicator("comm bench", sharding_.groups(),
                           [&](int64_t g) { return members(g * sharding_.group, sharding_.group, 1); });
    if (sharding_.groups() > 1) {
      between_ = communicator("comm bench between", sharding_.group,
                              [&](int64_t r) { return members(r, sharding_.groups(), sharding_.group); });
    }
  }

  CommReport run() {
    CommReport report{.engine = world_->description(),
                      .device = device_.description(),
                      .mode = std::string(name_of(sharding_.mode)),
                      .place = ranks_.place(),
                      .results = {}};
    if (device_.capabilities().separate_memory) prepare_gemm();
    for (const Collective& collective : collectives()) report.results.push_back(measure(collective));
    return report;
  }

 private:
  static std::vector<int> members(int64_t first, int64_t count, int64_t stride) {
    std::vector<int> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(narrow<int>(first + i * stride));
    return result;
  }
  // All ranks make all groups, and keep their own.
  std::unique_ptr<Communicator> communicator(const std::string& name, int64_t count,
                                             const std::function<std::vector<int>(int64_t)>& members_of) {
    std::unique_ptr<Communicator> mine;
    for (int64_t i = 0; i < count; ++i) {
      if (auto made = ranks_.make_communicator(device_, fmt::format("{} {}", name, i), members_of(i)))
        mine = std::move(made);
    }
    return mine;
  }

  std::vector<Collective> collectives() {
    const ParameterGroup& layer = planned_.groups().at(1);
    const auto wire = static_cast<int64_t>(size_of(sharding_.wire));
    Collective weights{"weights of a layer", CollectiveKind::Gather, inside_.get(), {}};
    Collective weights_between{
        "weights of a layer, between nodes", CollectiveKind::Gather, between_.get(), {}};
    const auto add = [&](const Tensor& parts, const Tensor& of_group) {
      if (!is_planned(parts)) return;
      weights.items.push_back(parts.bytes());
      if (between_) weights_between.items.push_back(of_group.bytes());
    };
    for (const Parameter* p : layer.parameters) {
      if (p->storage.is_shared() && !p->storage.sends_codes)
        add(p->parts->weight_parts, p->parts->weight_group);
    }
    for (const Linear* linear : layer.linears) {
      if (!linear->weight.sends_codes()) continue;
      add(linear->weight.shared_codes().parts, linear->weight.shared_codes().group);
      add(linear->weight.shared_codes().scales_parts, linear->weight.shared_codes().scales_group);
    }
    Collective gradients{"gradients of a layer", CollectiveKind::Exchange, inside_.get(), {}};
    Collective gradients_between{
        "gradients of a layer, between nodes", CollectiveKind::Exchange, between_.get(), {}};
    Collective sums{"summed gradients of a layer", CollectiveKind::Gather, inside_.get(), {}};
    const auto rounds = exchange_rounds(layer.parameters, sharding_, planned_.exchange_capacity());
    if (!rounds.empty()) {
      for (const ExchangePiece& piece : rounds.front().pieces) {
        const int64_t bytes = piece.elements() * wire;
        for (int64_t g = 0; g < sharding_.groups(); ++g) gradients.items.push_back(sharding_.group * bytes);
        if (between_) gradients_between.items.push_back(sharding_.groups() * bytes);
        if (is_planned(piece.parameter->parts->sum_parts))
          sums.items.push_back(sharding_.ranks * piece.elements() * 4);
      }
    }
    if (sharding_.shares_state()) sums.items.clear();
    const Collective record{"records of a step",
                            CollectiveKind::Gather,
                            world_.get(),
                            {sharding_.ranks * RankBuffers::kRecordValues * 4}};
    std::vector<Collective> all;
    for (const Collective& c : {weights, weights_between, gradients, gradients_between, sums, record})
      if (!c.items.empty()) all.push_back(c);
    return all;
  }

  // Products of the largest matrix of a layer, as forward has them.
  void prepare_gemm() {
    const ParameterGroup& layer = planned_.groups().at(1);
    const auto size = [](const Linear* linear) { return linear->spec.site.out * linear->spec.site.in; };
    const LinearSite& site = (*std::ranges::max_element(layer.linears, {}, size))->spec.site;
    const int64_t m = site.tokens, n = site.out, k = site.in;
    const WorkspaceNeeds::Gemm gemm{m, n, k};
    const WorkspaceNeeds needs{
        .gemms = {&gemm, 1}, .dtype = DType::BF16, .tokens = m, .width = n, .fp8 = false};
    const int64_t workspace = device_.workspace_bytes(needs);
    const auto aligned = [](int64_t bytes) { return round_up(bytes, MemoryPlan::kAlignment); };
    const int64_t a = aligned(m * k * 2), b = aligned(n * k * 2), c = aligned(m * n * 2);
    gemm_memory_ = device_.allocate(a + b + c + workspace);
    auto* data = static_cast<std::byte*>(gemm_memory_.get());
    a_ = {data, DType::BF16, {m, k}};
    b_ = {data + a, DType::BF16, {n, k}};
    c_ = {data + a + b, DType::BF16, {m, n}};
    device_.zero(a_);
    device_.zero(b_);
    device_.ops().set_workspace({data + a + b + c, DType::U8, {workspace}});
    gemms(3);
    device_.synchronize();
    gemm_seconds_ = slowest(timed([&] { gemms(kGemms); }, [&] { device_.synchronize(); })) / kGemms;
  }
  void gemms(int64_t count) {
    for (int64_t i = 0; i < count; ++i) device_.ops().gemm(c_, a_, b_, {.transpose_b = true});
  }

  static double timed(const std::function<void()>& queue, const std::function<void()>& wait) {
    const auto begin = Clock::now();
    queue();
    wait();
    return seconds_since(begin);
  }
  // The slowest of all ranks, so that all of them report and repeat the same.
  double slowest(double seconds) {
    double most = seconds;
    for (const std::string& text : ranks_.host().all_gather("comm bench", fmt::format("{:a}", seconds)))
      most = std::max(most, std::strtod(text.c_str(), nullptr));
    return most;
  }

  CommResult measure(const Collective& collective) {
    const int members = collective.group->size();
    CommResult result{.name = collective.name, .kind = collective.kind, .members = members};
    const auto aligned = [](int64_t bytes) { return round_up(bytes, MemoryPlan::kAlignment); };
    int64_t total = 0;
    for (const int64_t bytes : collective.items) {
      total += 2 * aligned(bytes);
      result.bytes += static_cast<double>(bytes) * (members - 1) / members;
    }
    const std::shared_ptr<void> memory = device_.allocate(total);
    device_.zero({memory.get(), DType::U8, {total}});
    device_.synchronize();
    collective.group->register_memory(memory.get(), total);
    std::vector<GatherItem> gathers;
    std::vector<ExchangeItem> exchanges;
    auto* data = static_cast<std::byte*>(memory.get());
    for (const int64_t bytes : collective.items) {
      const int64_t part = bytes / members;
      const Tensor whole{data, DType::U8, {bytes}};
      gathers.push_back({whole, {data + collective.group->rank() * part, DType::U8, {part}}});
      exchanges.push_back({.received = whole, .sent = data + aligned(bytes), .stride = part});
      data += 2 * aligned(bytes);
    }
    const auto communicate = [&](int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        if (collective.kind == CollectiveKind::Gather) {
          collective.group->all_gather(*queue_, gathers, collective.name);
        } else {
          collective.group->exchange(*queue_, exchanges, collective.name);
        }
      }
      device_.record(*communicated_, *queue_);
    };
    const auto wait = [&] { device_.synchronize(*communicated_); };
    communicate(options_.warmup);
    wait();
    ranks_.host().barrier("comm bench begin");
    const double seconds = slowest(timed([&] { communicate(options_.repeats); }, wait));
    result.ms = 1e3 * seconds / static_cast<double>(options_.repeats);
    if (gemm_memory_) measure_beside_gemm(communicate, seconds, result);
    return result;
  }

  // As many products as last about as long as the collectives.
  void measure_beside_gemm(const std::function<void(int64_t)>& communicate, double alone,
                           CommResult& result) {
    const auto count = static_cast<int64_t>(std::clamp(std::ceil(alone / gemm_seconds_), 1.0, 1e4));
    const double gemms_alone = slowest(timed([&] { gemms(count); }, [&] { device_.synchronize(); }));
    ranks_.host().barrier("comm bench gemm");
    const auto begin = Clock::now();
    communicate(options_.repeats);
    gemms(count);
    device_.record(*computed_, device_.queue());
    device_.synchronize(*computed_);
    const double gemms_beside = slowest(seconds_since(begin));
    device_.synchronize(*communicated_);
    const double beside = slowest(seconds_since(begin));
    result.ms_beside_gemm = 1e3 * beside / static_cast<double>(options_.repeats);
    result.gemm_slowdown = std::max(0.0, gemms_beside - gemms_alone) / std::min(gemms_alone, beside);
  }

  static constexpr int64_t kGemms = 10;
  Transformer& planned_;
  Device& device_;
  Ranks& ranks_;
  const CommBenchOptions options_;
  const Sharding sharding_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Event> communicated_, computed_;
  std::unique_ptr<Communicator> world_, inside_, between_;
  std::shared_ptr<void> gemm_memory_;
  Tensor a_, b_, c_;
  double gemm_seconds_ = 0;
};

std::string_view text_of(CollectiveKind kind) {
  return kind == CollectiveKind::Gather ? "gather" : "exchange";
}

}  // namespace

CommReport bench_comm(Transformer& planned, Device& device, Ranks& ranks, const CommBenchOptions& options) {
  require(planned.sharding().is_active() && planned.shape().training,
          "[bench] the plan has no ranks, expected one of a rank");
  return CommBench(planned, device, ranks, options).run();
}

nlohmann::json comm_json(const CommReport& report) {
  nlohmann::json results = nlohmann::json::array();
  for (const CommResult& r : report.results) {
    nlohmann::json result = {{"name", r.name},       {"kind", text_of(r.kind)},
                             {"members", r.members}, {"bytes", r.bytes},
                             {"ms", r.ms},           {"busbw_gb", r.busbw_gb()}};
    if (r.ms_beside_gemm) result["ms_beside_gemm"] = *r.ms_beside_gemm;
    if (r.gemm_slowdown) result["gemm_slowdown"] = *r.gemm_slowdown;
    results.push_back(std::move(result));
  }
  return {{"ranks", report.place.ranks},  {"nodes", report.place.nodes()},
          {"sharding_mode", report.mode}, {"engine", report.engine},
          {"device", report.device},      {"collectives", std::move(results)}};
}

std::string comm_text(const CommReport& report) {
  Table table({{"collective"},
               {"ranks", Align::Right},
               {"received", Align::Right},
               {"ms", Align::Right},
               {"GB/s", Align::Right},
               {"ms next to GEMM", Align::Right},
               {"GB/s next to GEMM", Align::Right},
               {"GEMM slower by", Align::Right}});
  for (const CommResult& r : report.results) {
    const bool beside = r.ms_beside_gemm.has_value();
    table.add_row({fmt::format("{} ({})", r.name, text_of(r.kind)), fmt::format("{}", r.members),
                   human_bytes(r.bytes), fmt::format("{:.3f}", r.ms), fmt::format("{:.1f}", r.busbw_gb()),
                   beside ? fmt::format("{:.3f}", *r.ms_beside_gemm) : "-",
                   beside ? fmt::format("{:.1f}", r.bytes / *r.ms_beside_gemm / 1e6) : "-",
                   beside ? fmt::format("{:.0f} %", 100 * *r.gemm_slowdown) : "-"});
  }
  return fmt::format("{} on {}, sharding_mode {}, {} on {}\n{}", counted(report.place.ranks, "rank"),
                     counted(report.place.nodes(), "node"), report.mode, report.engine, report.device,
                     table.str());
}

}  // namespace octet
