#include "hf/hf_folder.h"

#include <array>
#include <cstring>
#include <set>

#include "base/parallel_for.h"
#include "hf/weights_read_ahead.h"
#include "model/family.h"

namespace octet {
namespace {

float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

bool is_readable(SafeDType dtype) {
  return dtype == SafeDType::F32 || dtype == SafeDType::BF16 || dtype == SafeDType::F16;
}

// Elements [first, first + count) of a tensor in the file, as floats. One loop per type: they are vectorised.
template <class Stored, class Convert>
void convert(const SafeTensor& tensor, int64_t first, int64_t count, float* to, Convert&& as_float) {
  const std::byte* from = tensor.bytes.data() + static_cast<size_t>(first) * sizeof(Stored);
  for (int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(Stored), sizeof(Stored));
    to[i] = as_float(value);
  }
}

void as_floats(const SafeTensor& tensor, int64_t first, int64_t count, float* to) {
  switch (tensor.dtype) {
    case SafeDType::F32:
      std::memcpy(to, tensor.bytes.data() + static_cast<size_t>(first) * 4, static_cast<size_t>(count) * 4);
      return;
    case SafeDType::BF16:
      return convert<uint16_t>(tensor, first, count, to, [](uint16_t bits) { return to_float(Bf16{bits}); });
    default:
      return convert<uint16_t>(tensor, first, count, to, half_to_float);
  }
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

int64_t row_width(const ParameterSpec& spec) {
  return spec.shape.rank() == 1 ? 1 : spec.shape[1];
}

// The shape of a part in a Hugging Face folder.
std::vector<int64_t> hf_shape(const ParameterSpec& spec, const HfPart& part) {
  std::vector<int64_t> shape = {part.rows};
  if (spec.shape.rank() == 2) shape.push_back(spec.shape[1]);
  if (part.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // read and written at a time

// (rows, cols) to (cols, rows).
std::vector<std::byte> transposed(const std::vector<std::byte>& bytes, int64_t rows, int64_t cols,
                                  size_t size) {
  std::vector<std::byte> result(bytes.size());
  parallel_for(cols, rows_per_piece(rows), [&](int64_t begin, int64_t end) {
    for (int64_t col = begin; col < end; ++col) {
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(result.data() + static_cast<size_t>(col * rows + row) * size,
                    bytes.data() + static_cast<size_t>(row * cols + col) * size, size);
      }
    }
  });
  return result;
}

std::vector<ParameterSpec> specs_of(const ParameterSet& parameters) {
  std::vector<ParameterSpec> table;
  for (const Parameter& parameter : parameters.all()) table.push_back(parameter.spec);
  return table;
}

// Tensors in a folder that are not parameters: causal masks and rotary tables of older versions, and a copy of the head
// that is tied to the embedding.
bool is_known_surplus(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
}

}  // namespace

ModelConfig read_hf_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  require(posix_env().exists(path),
          "[{}] is not there; model_name_or_path must be a Hugging Face folder with config.json and "
          "model.safetensors",
          path);
  constexpr int64_t kLargestConfig = int64_t{16} << 20;
  return model_config_from_hf(posix_env().read_text(path, kLargestConfig), path);
}

const SafeTensor* HfWeights::find(const ParameterSpec& spec, const HfPart& part,
                                  std::vector<std::string>& faults) const {
  const SafeTensor* tensor = find_(prefix_ + part.name);
  if (!tensor) {
    faults.push_back(fmt::format("{} is missing", part.name));
    return nullptr;
  }
  const std::vector<int64_t> expected = hf_shape(spec, part);
  if (!std::equal(expected.begin(), expected.end(), tensor->shape.begin(), tensor->shape.end())) {
    faults.push_back(fmt::format("{} has shape {}, expected {}", part.name, shape_text(tensor->shape),
                                 shape_text(expected)));
    return nullptr;
  }
  if (!is_readable(tensor->dtype)) {
    faults.push_back(
        fmt::format("{} is {}, expected F32, BF16 or F16", part.name, safe_dtype_name(tensor->dtype)));
    return nullptr;
  }
  return tensor;
}

void HfWeights::check(std::span<const ParameterSpec> table, std::vector<std::string> faults) const {
  for (const ParameterSpec& spec : table) {
    for (const HfPart& part : spec.hf) find(spec, part, faults);
  }
  require(faults.empty(), "[{}] does not fit the model:\n  {}", place_, fmt::join(faults, "\n  "));
}

std::vector<float> HfWeights::values(const ParameterSpec& spec, int64_t begin, int64_t rows) const {
  const int64_t cols = row_width(spec);
  std::vector<float> values(static_cast<size_t>(rows * cols), 0.0f);
  std::vector<std::string> faults;
  for (const HfPart& part : spec.hf) {
    const int64_t first = std::max(begin, part.row_begin);
    const int64_t last = std::min(begin + rows, part.row_begin + part.rows);
    const SafeTensor* tensor = first < last ? find(spec, part, faults) : nullptr;
    if (!tensor) continue;
    if (!part.transposed) {
      parallel_for(last - first, rows_per_piece(cols), [&](int64_t from, int64_t to) {
        as_floats(*tensor, (first + from - part.row_begin) * cols, (to - from) * cols,
                  values.data() + (first + from - begin) * cols);
      });
      continue;
    }
    // Neighbours in the file are rows here: some rows at a time, so that what is read together is used together.
    constexpr int64_t kRows = 32;
    parallel_for(last - first, kRows, [&](int64_t from, int64_t to) {
      const int64_t row = first + from, rows_here = to - from;
      std::array<float, kRows> column;
      for (int64_t col = 0; col < cols; ++col) {
        as_floats(*tensor, col * part.rows + row - part.row_begin, rows_here, column.data());
        for (int64_t i = 0; i < rows_here; ++i)
          values[static_cast<size_t>((row + i - begin) * cols + col)] = column[static_cast<size_t>(i)];
      }
    });
  }
  require(faults.empty(), "[{}] {}", place_, fmt::join(faults, "; "));
  return values;
}

void HfWeights::load(Device& device, ParameterSet& parameters, std::vector<std::string> faults) const {
  // All faults are found before anything is written.
  check(base_of(specs_of(parameters)), std::move(faults));
  for (Parameter& parameter : parameters.all()) {
    if (!parameter.spec.is_adapter() && parameter.storage.has_dense_rows()) load(device, parameter);
  }
}

void HfWeights::load(Device& device, Parameter& parameter) const {
  if (load_as_it_is(device, parameter)) return;
  const std::vector<float> read = values(parameter.spec, parameter.first_row(), parameter.shape()[0]);
  require(all_finite(std::as_bytes(std::span(read)), DType::F32), "[{}] {} holds values that are not finite",
          place_, parameter.spec.hf.front().name);
  ParameterSet::set_rows(device, parameter, read);
}

// bf16 into bf16, rows in the same order: straight from the file to where it belongs.
bool HfWeights::load_as_it_is(Device& device, Parameter& parameter) const {
  const ParameterSpec& spec = parameter.spec;
  if (parameter.own_rows.dtype != DType::BF16) return false;
  std::vector<std::string> faults;
  for (const HfPart& part : spec.hf) {
    if (part.transposed || find(spec, part, faults)->dtype != SafeDType::BF16) return false;
  }
  if (parameter.remainder) device.zero(parameter.remainder);
  load_rows(device, spec, parameter.first_row(),
            parameter.own_rows.reshaped({parameter.shape()[0], row_width(spec)}));
  return true;
}

void HfWeights::load_rows(Device& device, const ParameterSpec& spec, int64_t begin, Tensor rows) const {
  const int64_t last = begin + rows.rows();
  std::vector<std::string> faults;
  // bf16 into bf16: straight from the file.
  bool as_it_is = rows.dtype == DType::BF16;
  int64_t covered = 0;
  for (const HfPart& part : spec.hf) {
    const int64_t count = std::min(last, part.row_begin + part.rows) - std::max(begin, part.row_begin);
    if (count <= 0) continue;
    covered += count;
    const SafeTensor* tensor = find(spec, part, faults);
    as_it_is = as_it_is && tensor && !part.transposed && tensor->dtype == SafeDType::BF16;
  }
  if (as_it_is) {
    if (covered < rows.rows()) device.zero(rows);
    const size_t row_bytes = 2 * static_cast<size_t>(rows.cols());
    for (const HfPart& part : spec.hf) {
      const int64_t from = std::max(begin, part.row_begin), to = std::min(last, part.row_begin + part.rows);
      if (from >= to) continue;
      const auto bytes = find(spec, part, faults)
                             ->bytes.subspan(static_cast<size_t>(from - part.row_begin) * row_bytes,
                                             static_cast<size_t>(to - from) * row_bytes);
      require(all_finite(bytes, DType::BF16), "[{}] {} holds values that are not finite", place_, part.name);
      device.copy_to_device(rows.row_range(from - begin, to - from), bytes.data());
    }
    return;
  }
  const std::vector<float> read = values(spec, begin, rows.rows());
  require(all_finite(std::as_bytes(std::span(read)), DType::F32), "[{}] {} holds values that are not finite",
          place_, spec.hf.front().name);
  if (rows.dtype == DType::F32) {
    device.copy_to_device(rows, read.data());
    return;
  }
  std::vector<Bf16> rounded(read.size());
  parallel_for(std::ssize(read), kElementsPerPiece, [&](int64_t from, int64_t to) {
    std::transform(read.begin() + from, read.begin() + to, rounded.begin() + from, to_bf16);
  });
  device.copy_to_device(rows, rounded.data());
}

HfFiles::HfFiles(const std::string& folder)
    : folder_(folder), files_(SafetensorsFolder::open(posix_env(), folder)) {
  for (const FamilySpec* family : model_families()) {
    const std::string embedding = family->tensors.embedding + ".weight";
    const std::string_view prefix =
        std::string_view(family->tensors.embedding).substr(0, embedding.find('.') + 1);
    if (!files_.find(embedding) && files_.find(embedding.substr(prefix.size()))) dropped_prefix_ = prefix;
  }
}

std::string_view HfFiles::stored_name(std::string_view name) const {
  if (name.starts_with(dropped_prefix_)) name.remove_prefix(dropped_prefix_.size());
  return name;
}

HfWeights HfFiles::weights() const {
  return HfWeights([this](std::string_view name) { return find(name); }, folder_);
}

std::vector<std::string> HfFiles::surplus(std::span<const ParameterSpec> table) const {
  std::set<std::string, std::less<>> known;
  for (const ParameterSpec& spec : table) {
    for (const HfPart& part : spec.hf) known.emplace(stored_name(part.name));
  }
  std::vector<std::string> names;
  for (const SafetensorsFile& file : files_.files()) {
    for (const SafeTensor& tensor : file.tensors()) {
      if (!known.contains(tensor.name) && !is_known_surplus(tensor.name)) names.emplace_back(tensor.name);
    }
  }
  return names;
}

std::vector<std::string> surplus_faults(const HfFiles& files, std::span<const ParameterSpec> table) {
  std::vector<std::string> faults;
  for (const std::string& name : files.surplus(table)) {
    faults.push_back(fmt::format("{} is not a tensor of the model", name));
  }
  return faults;
}

void check_hf_folder(std::span<const ParameterSpec> table, const std::string& folder) {
  const HfFiles files(folder);
  files.weights().check(table, surplus_faults(files, table));
}

void load_hf_folder(Device& device, ParameterSet& parameters, const std::string& folder) {
  const HfFiles files(folder);
  const ReadAhead ahead(bytes_of(files, base_of(specs_of(parameters))));
  files.weights().load(device, parameters, surplus_faults(files, specs_of(parameters)));
}

void load_hf_folder(Device& device, Transformer& model, const std::string& folder) {
  const HfFiles files(folder);
  const ReadAhead ahead(bytes_of(files, base_of(specs_of(model.parameters()))));
  const HfWeights weights = files.weights();
  weights.load(device, model.parameters(), surplus_faults(files, specs_of(model.parameters())));
  for (Linear* linear : model.linears()) {
    const Parameter& p = linear->weight.parameter();
    if (p.storage.has_dense_rows()) continue;
    model.fill_weight(linear->weight,
                      [&](Tensor rows, int64_t begin) { weights.load_rows(device, p.spec, begin, rows); });
  }
}

ReadWeightRows device_weight_rows(Device& device, const ParameterSet& parameters, SafeDType dtype) {
  return [&device, &parameters, dtype](size_t index, int64_t begin, int64_t rows) {
    const Parameter& parameter = parameters.all()[index];
    require(parameter.own_rows && parameter.shape() == parameter.spec.shape,
            "[weights] {} is not stored here as one dense tensor, so it cannot be written",
            parameter.spec.name);
    Parameter part{.spec = parameter.spec};
    const auto rows_of = [&](Tensor tensor) {
      const int64_t height = parameter.spec.shape[0];
      return tensor.reshaped({height, tensor.numel() / height}).row_range(begin, rows);
    };
    part.own_rows = rows_of(parameter.own_rows);
    if (parameter.remainder) part.remainder = rows_of(parameter.remainder);
    const auto count = static_cast<size_t>(part.own_rows.numel());
    std::vector<std::byte> bytes(count * (dtype == SafeDType::F32 ? 4 : 2));
    if (dtype == SafeDType::BF16 && part.own_rows.dtype == DType::BF16) {
      device.copy_to_host(bytes.data(), part.own_rows);
      return bytes;
    }
    const std::vector<float> values = ParameterSet::weight_values(device, part);
    if (dtype == SafeDType::F32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    }
    parallel_for(part.own_rows.numel(), kElementsPerPiece, [&](int64_t from, int64_t to) {
      for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(to); ++i) {
        const Bf16 value = to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &value, 2);
      }
    });
    return bytes;
  };
}

SafeTensorSpec HfTensor::as(SafeDType dtype) const {
  return {part->name, dtype, hf_shape(*spec, *part)};
}

std::vector<HfTensor> hf_tensors(std::span<const ParameterSpec> table) {
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < table.size(); ++i) {
    for (const HfPart& part : table[i].hf) tensors.push_back({i, &table[i], &part});
  }
  return tensors;
}

void write_hf_tensors(Sink& sink, std::span<const HfTensor> tensors, SafeDType dtype,
                      const ReadWeightRows& read) {
  require(dtype == SafeDType::F32 || dtype == SafeDType::BF16,
          "[safetensors] weights are {}, expected F32 or BF16", safe_dtype_name(dtype));
  std::map<std::string_view, const HfTensor*> by_name;
  std::vector<SafeTensorSpec> specs;
  for (const HfTensor& tensor : tensors) {
    by_name[tensor.part->name] = &tensor;
    specs.push_back(tensor.as(dtype));
  }
  // Transformers reads only files that say which framework's layout they hold.
  SafetensorsWriter writer(sink, std::move(specs), {{"format", "pt"}});
  const int64_t element_bytes = safe_dtype_bits(dtype) / 8;
  for (const SafeTensorSpec& spec : writer.specs()) {
    const HfTensor& tensor = *by_name.at(spec.name);
    const HfPart& part = *tensor.part;
    const int64_t cols = row_width(*tensor.spec);
    if (part.transposed) {
      writer.append(spec.name, transposed(read(tensor.parameter, part.row_begin, part.rows), part.rows, cols,
                                          static_cast<size_t>(element_bytes)));
      continue;
    }
    const int64_t piece = std::max<int64_t>(kPieceBytes / (cols * element_bytes), 1);
    for (int64_t begin = 0; begin < part.rows; begin += piece) {
      writer.append(spec.name,
                    read(tensor.parameter, part.row_begin + begin, std::min(piece, part.rows - begin)));
    }
  }
  writer.finish();
}

void save_hf_weights(Sink& sink, const ParameterSet& parameters, SafeDType dtype,
                     const ReadWeightRows& read) {
  const std::vector<ParameterSpec> table = specs_of(parameters);
  write_hf_tensors(sink, hf_tensors(table), dtype, read);
}

}  // namespace octet
