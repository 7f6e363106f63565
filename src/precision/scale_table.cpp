#include "precision/scale_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace octet {
namespace {

constexpr char kStateMagic[8] = {'O', 'C', 'T', 'F', 'P', '8', '0', '2'};

void append(std::vector<std::byte>& out, const void* data, size_t size) {
  const size_t before = out.size();
  out.resize(before + size);
  if (size > 0) std::memcpy(out.data() + before, data, size);
}

// Reads fields one after another and refuses to run past the end.
class StateReader {
 public:
  explicit StateReader(const std::vector<std::byte>& state) : state_(state) {}
  void read(void* to, size_t size) {
    require(size <= state_.size() - position_, "[fp8 state] {} bytes, expected more at offset {}",
            state_.size(), position_);
    // Not memcpy: it may not copy 0 bytes to null.
    std::copy_n(state_.data() + position_, size, static_cast<std::byte*>(to));
    position_ += size;
  }
  int64_t read_int() {
    int64_t value = 0;
    read(&value, sizeof value);
    return value;
  }
  bool at_end() const { return position_ == state_.size(); }

 private:
  const std::vector<std::byte>& state_;
  size_t position_ = 0;
};

}  // namespace

int ScaleTable::add(std::string name, const QuantizeRule& rule) {
  require(rule.delayed || !any_delayed(), "[fp8] {} comes after a tensor with delayed scaling", name);
  entries_.push_back({std::move(name), rule});
  if (!rule.delayed) first_delayed_ = count();
  return static_cast<int>(entries_.size()) - 1;
}

int ScaleTable::add(std::string name, Quantized& tensor) {
  const int index = add(std::move(name), tensor.rule());
  share(index, tensor);
  return index;
}

void ScaleTable::plan(BufferPlanner& planner) {
  if (entries_.empty()) return;
  const auto add_bytes = [&](Tensor& view, const char* what, size_t size) {
    planner.add(view, what, DType::U8, {count() * static_cast<int64_t>(size)}, MemoryCategory::Workspace,
                Lifetime::always());
  };
  add_bytes(slots_, "fp8.slots", sizeof(ScaleSlot));
  add_bytes(slots_backup_, "fp8.slots_backup", sizeof(ScaleSlot));
  add_bytes(stats_, "fp8.stats", sizeof(QuantStats));
  if (!any_delayed()) return;
  const int64_t delayed = count() - first_delayed_;
  planner.add(history_, "fp8.history", DType::F32, {delayed, history_length()}, MemoryCategory::Workspace,
              Lifetime::always());
  planner.add(formats_, "fp8.formats", DType::U8, {delayed, 2}, MemoryCategory::Workspace,
              Lifetime::always());
}

void ScaleTable::initialise(Device& device) {
  calibrating_ = any_delayed();
  if (entries_.empty()) return;
  for (const auto& [index, tensor] : bound_) {
    tensor->slot = slot(index);
    tensor->stats_memory = stats(index);
    tensor->pass = &pass_;
    tensor->rowwise.tensor_scale = &tensor->slot->inverse_rowwise;
    tensor->colwise.tensor_scale = &tensor->slot->inverse_colwise;
  }
  const std::vector<ScaleSlot> slots(entries_.size());
  device.copy_to_device(slots_, slots.data());
  device.zero(stats_);
  if (!history_) return;
  device.zero(history_);
  std::vector<uint8_t> formats;
  for (size_t i = static_cast<size_t>(first_delayed_); i < entries_.size(); ++i) {
    formats.push_back(static_cast<uint8_t>(entries_[i].rule.format_rowwise));
    formats.push_back(static_cast<uint8_t>(entries_[i].rule.format_colwise));
  }
  device.copy_to_device(formats_, formats.data());
}

DelayedScaling ScaleTable::delayed() const {
  const int64_t delayed = count() - first_delayed_;
  const Tensor slots{
      slot(static_cast<int>(first_delayed_)), DType::U8, {delayed * static_cast<int64_t>(sizeof(ScaleSlot))}};
  const Fp8Config config = config_.of_head();
  return {slots, history_, formats_, delayed, config.margin, config.most_recent};
}

void ScaleTable::end_step(Device& device, int64_t step, Tensor norm) {
  if (!history_) return;
  DelayedScaling state = delayed();
  state.due = step % config_.of_head().interval == 0;
  state.norm = norm;
  device.ops().update_delayed_scales(state);
}

std::vector<ScaleTable::Report> ScaleTable::reports(Device& device) const {
  std::vector<Report> reports;
  if (entries_.empty()) return reports;
  std::vector<ScaleSlot> slots(entries_.size());
  std::vector<QuantStats> stats(entries_.size());
  device.copy_to_host(slots.data(), slots_);
  device.copy_to_host(stats.data(), stats_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const QuantStats& s = stats[i];
    Report report{entries_[i].name, entries_[i].rule.format_rowwise};
    report.amax = s.amax;
    report.scale = static_cast<double>(slots[i].scale_rowwise);
    report.elements = s.elements;
    if (s.elements > 0) {
      report.saturated_share = s.saturated / s.elements;
      report.flushed_share = s.flushed / s.elements;
      report.sqnr_db =
          s.noise > 0 ? 10 * std::log10(s.signal / s.noise) : std::numeric_limits<double>::infinity();
    }
    reports.push_back(report);
  }
  return reports;
}

std::vector<std::byte> ScaleTable::save(Device& device) const {
  std::vector<std::byte> state;
  append(state, kStateMagic, sizeof kStateMagic);
  const int64_t header[] = {static_cast<int64_t>(config_.recipe),
                            static_cast<int64_t>(config_.format),
                            count(),
                            history_ ? history_length() : 0,
                            calibrating_,
                            config_.margin};
  append(state, header, sizeof header);
  for (const Entry& entry : entries_) {
    const auto length = static_cast<int64_t>(entry.name.size());
    append(state, &length, sizeof length);
    append(state, entry.name.data(), entry.name.size());
  }
  const auto append_tensor = [&](Tensor tensor) {
    if (!tensor) return;
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    device.copy_to_host(bytes.data(), tensor);
    append(state, bytes.data(), bytes.size());
  };
  append_tensor(slots_);
  append_tensor(history_);
  return state;
}

void ScaleTable::restore(Device& device, const std::vector<std::byte>& state) {
  StateReader reader(state);
  char magic[sizeof kStateMagic];
  reader.read(magic, sizeof magic);
  require(std::memcmp(magic, kStateMagic, sizeof magic) == 0, "[fp8 state] does not begin with '{}'",
          std::string_view(kStateMagic, sizeof kStateMagic));
  const int64_t recipe = reader.read_int(), format = reader.read_int();
  const int64_t tensors = reader.read_int(), length = reader.read_int(), calibrating = reader.read_int();
  const int64_t margin = reader.read_int();
  require(recipe == static_cast<int64_t>(config_.recipe), "[fp8 state] has fp8_recipe {}, this run has {}",
          name_of(static_cast<Fp8Recipe>(recipe)), name_of(config_.recipe));
  // A scale made for one format saturates or wastes the other until the next update.
  require(format == static_cast<int64_t>(config_.format), "[fp8 state] has fp8_format {}, this run has {}",
          name_of(static_cast<Fp8Format>(format)), name_of(config_.format));
  // Frozen weights were quantised with the margin of this run.
  require(margin == config_.margin, "[fp8 state] has fp8_margin {}, this run has {}", margin, config_.margin);
  require(tensors == count(), "[fp8 state] has {} tensors, this model has {}", tensors, count());
  const int64_t expected_length = history_ ? history_length() : 0;
  require(length == expected_length,
          "[fp8 state] has histories of length {}, this run has {} (fp8_amax_history_len)", length,
          expected_length);
  for (const Entry& entry : entries_) {
    const int64_t size = reader.read_int();
    require(size >= 0 && size <= 4096, "[fp8 state] a tensor name has {} bytes, expected 0 to 4096", size);
    std::string name(static_cast<size_t>(size), '\0');
    reader.read(name.data(), name.size());
    require(name == entry.name, "[fp8 state] has tensor '{}' where this model has '{}'", name, entry.name);
  }
  std::vector<std::byte> slots(static_cast<size_t>(slots_ ? slots_.bytes() : 0));
  std::vector<std::byte> history(static_cast<size_t>(history_ ? history_.bytes() : 0));
  reader.read(slots.data(), slots.size());
  reader.read(history.data(), history.size());
  require(reader.at_end(), "[fp8 state] {} bytes, which is more than its header says", state.size());
  if (slots_) device.copy_to_device(slots_, slots.data());
  if (history_) device.copy_to_device(history_, history.data());
  calibrating_ = calibrating != 0;
}

}  // namespace octet
