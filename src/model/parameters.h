#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/adapters.h"
#include "model/config.h"
#include "model/parameter_parts.h"
#include "model/sharding.h"
#include "tensor/split_fp32.h"

namespace octet {

// Normal: init_scale is the standard deviation. Uniform: between -init_scale and init_scale.
enum class Init : uint8_t { Zero, One, Normal, Uniform };

// Where a range of rows of a parameter lives in a Hugging Face folder. A vector counts as rows of width 1.
struct HfPart {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  int64_t row_begin = 0;
  int64_t rows = 0;
  bool transposed = false;  // GPT-2's Conv1D keeps (in, out)
  // The module of a weight or bias: "model.layers.0.self_attn.q_proj".
  std::string module() const { return name.substr(0, name.rfind('.')); }
};

// One row of the table that drives initialisation, optimizer, import and export.
struct ParameterSpec {
  std::string name;  // "layers.0.attention.qkv.weight"
  Shape shape;       // as stored; rows that no HfPart covers are padding and stay zero
  Init init = Init::Normal;
  float init_scale = 0;
  bool decay = false;
  bool summed = false;     // several products add to its gradient, which is therefore always fp32
  std::vector<HfPart> hf;  // of an adapter: in a PEFT folder
  // A matrix of an adapter. Its weight is always exact, and its gradient fp32.
  enum class Adapter : uint8_t { No, A, B } adapter = Adapter::No;
  bool is_adapter() const { return adapter != Adapter::No; }
  int64_t layer = -1;  // -1: embedding; the number of layers: final norm and head
};

// With `adapters`, their matrices follow the matrix that they belong to. The A matrices of a fused matrix are stacked
// in one parameter: "layers.0.attention.qkv.lora_a". Every B is a parameter: "layers.0.attention.qkv.lora_b.q_proj".
std::vector<ParameterSpec> parameter_table(const ModelConfig& config, const AdapterPlan& adapters = {});
// The names of adapters' parameters. `linear` is the name of the Linear: "layers.0.attention.qkv".
std::string lora_a_name(std::string_view linear);
std::string lora_b_name(std::string_view linear, std::string_view module);
// The rows of a table that belong to the model itself, or only those of its adapters.
std::vector<ParameterSpec> base_of(std::vector<ParameterSpec> table);
std::vector<ParameterSpec> adapters_of(std::vector<ParameterSpec> table);

// Where the weight is that products read.
enum class Residency : uint8_t {
  Resident,   // on this rank, whole
  CodesOnly,  // likewise, but only as the FP8 codes of its Linear; frozen parameters only
  Parts,  // ranks share it: each one updates its own rows, and receives those of the others after every update
  PerLayer,  // likewise, but the whole weight is in memory only while its layer is computed
};

// How a parameter is stored. Default: the whole tensor on the device, trainable.
struct ParameterStorage {
  bool trainable = true;  // it has a gradient and moments; otherwise it is frozen
  Residency residency = Residency::Resident;
  bool sends_codes =
      false;  // Parts, PerLayer: what ranks send each other are FP8 codes; there is no whole dense weight
  bool gradient_per_layer = false;  // the gradient, too, is in memory only while its layer is computed
  Place place = Place::Device;      // of weight, gradient and moments
  RowParts cut;  // with ranks, unless each of them has its own copy without adding anything up

  // The state of its rows is on several ranks.
  bool is_shared() const { return residency == Residency::Parts || residency == Residency::PerLayer; }
  // The whole weight can be read as a dense matrix; otherwise only as FP8 codes.
  bool has_dense_weight() const { return residency != Residency::CodesOnly && !sends_codes; }
  // This rank has its rows as a dense matrix; otherwise it has nothing but codes.
  bool has_dense_rows() const { return residency != Residency::CodesOnly && (trainable || !sends_codes); }
};

// The storage of a parameter that the ranks cut into parts of a multiple of `unit` rows. With a mode that shares
// nothing, its state is whole.
ParameterStorage cut_storage(const ParameterSpec& spec, const Sharding& sharding, int64_t unit = 2);

// Decides the storage of each parameter of a model.
using StoragePolicy = std::function<ParameterStorage(const ParameterSpec&)>;

struct ParameterTypes {
  DType weight = DType::F32;    // fp32 | bf16
  DType gradient = DType::F32;  // of matrices that a single product writes; all others are fp32
  DType moments = DType::F32;   // fp32 | bf16 | e4m3 (v: u8); vectors use fp32 instead of e4m3
  // For bf16 matrices. Vectors and adapters are always exact.
  RemainderKind remainder = RemainderKind::Exact;
};

// A tensor of the training state under the name it has in a checkpoint.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// A parameter of a model with its training state. Owns no memory.
struct Parameter {
  ParameterSpec spec;
  ParameterStorage storage;
  Tensor weight;  // (spec.shape) what ops read; absent if they read only FP8 codes
  Tensor
      own_rows;  // (shape()) of the weight, which this rank updates: all of them unless ranks share the parameter
  Tensor remainder;                 // of own_rows in bf16: u16, u8 (rows, ceil(cols / 2)) or absent
  Tensor gradient;                  // (spec.shape) what backward writes
  Tensor m, v;                      // of own_rows
  Tensor m_scales, v_scales;        // when m and v are e4m3
  ParameterParts* parts = nullptr;  // of a parameter that is cut

  // The gradient that the optimizer reads; with ranks, their sum. Absent if the parameter is frozen.
  Tensor summed_gradient() const {
    return parts && parts->summed_gradient ? parts->summed_gradient : gradient;
  }
  uint64_t stream() const;  // of random numbers, derived from its name
  // The rows on this rank: [first_row(), + shape()[0]).
  int64_t first_row() const {
    return storage.is_shared() ? std::min(storage.cut.begin(), round_up(spec.shape[0], 2)) : 0;
  }
  int64_t rows() const { return storage.is_shared() ? storage.cut.rows_of(spec.shape[0]) : spec.shape[0]; }
  // Elements of a row; a vector has rows of one element.
  int64_t width() const { return spec.shape.rank() == 1 ? 1 : spec.shape[1]; }

  Shape shape() const { return shape_of_rows(rows()); }
  Shape shape_of_rows(int64_t count) const {
    return spec.shape.rank() == 1 ? Shape{count} : Shape{count, spec.shape[1]};
  }
  // Everything that a resumed run needs: own rows, remainder, moments and their scales, if they exist.
  std::vector<NamedTensor> state() const;
};

class ParameterSet {
 public:
  // Without `training` only weights are planned. Without a policy every parameter is whole and trainable.
  ParameterSet(const ModelConfig& config, ParameterTypes types, bool training, BufferPlanner& planner,
               const StoragePolicy& policy = {}, const AdapterPlan& adapters = {});

  Parameter& operator[](std::string_view name);
  std::vector<Parameter>& all() { return parameters_; }
  const std::vector<Parameter>& all() const { return parameters_; }

  // Initial weights as the family's reference implementation draws them, and zero moments. A value depends only on
  // the seed, the parameter's name and the place in the parameter. Without `base`, only weights of adapters are
  // written, and moments.
  void initialise(Device& device, uint64_t seed, bool base = true);
  // Writes the rows of this rank from the fp32 values of the whole tensor, in the layout of spec.shape.
  static void set_weight(Device& device, Parameter& parameter, const std::vector<float>& values);
  // The same from the values of these rows alone.
  static void set_rows(Device& device, Parameter& parameter, std::span<const float> values);
  // The fp32 values of the rows of this rank, with all bits that are stored.
  static std::vector<float> weight_values(Device& device, const Parameter& parameter);

 private:
  std::vector<Parameter> parameters_;
  std::deque<ParameterParts> parts_;
};

// Whether a model has adapters: then only they are trained.
bool has_adapters(const ParameterSet& parameters);

// Writes rows [begin, ...) of the random weight of a parameter with Init::Normal to `rows` (count, columns), as
// ParameterSet::initialise has them without a remainder.
void fill_rows(Device& device, Tensor rows, const Parameter& parameter, uint64_t seed, int64_t begin);

}  // namespace octet
