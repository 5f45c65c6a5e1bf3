#include "penstock/model/weight_map.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/model/family.h"
#include "penstock/model/gguf_model.h"
#include "penstock/model/weight_list.h"

namespace penstock {
namespace {

constexpr int kMaxListed = 10;

// Says whether the tensor consists of panels that are multiplied by rows of codes.
bool IsQuantised(const TensorInfo& tensor) { return tensor.packed.has_value() && IsCodes(*tensor.packed); }

bool IsCoded(const TensorInfo& tensor) { return tensor.packed.has_value() || tensor.scales.has_value(); }

// Finds weights under the names that a family stores them by, and keeps account of missing, misshapen and unused
// tensors.
class Mapper : public TensorSource {
 public:
  Mapper(const ModelConfig& config, const Checkpoint& checkpoint, std::deque<TensorInfo>& own)
      : config_(&config), checkpoint_(&checkpoint), own_(&own) {
    // A packed store has every weight under its own name.
    if (checkpoint.format() == Checkpoint::Format::kPacked) return;
    const Family& family = *config.family;
    if (checkpoint.format() == Checkpoint::Format::kGguf) {
      rules_ = GgufNames(family);
      layer_prefix_ = kGgufLayerPrefix;
      return;
    }
    rules_.assign(family.stored_names.begin(), family.stored_names.end());
    layer_prefix_ = family.layer_prefix;
    layers_of_number_ = family.layers_of_number;
    encoder_rules_.assign(family.encoder_names.begin(), family.encoder_names.end());
    encoder_prefix_ = family.encoder_prefix;
    for (const std::string_view name : family.ignored_names) Ignore(std::string(name));
  }

  const TensorInfo* Take(const Weight& weight) override {
    const StoredName* rule = RuleOf(weight);
    const std::string name = NameOf(weight, rule);
    const TensorInfo* stored = FindStored(name);
    if (stored == nullptr) {
      if (!MayLack(*config_->family, weight.name)) Report(fmt::format("{} is missing", name));
      return nullptr;
    }
    const TensorInfo* tensor = rule == nullptr ? TakeWhole(weight, *stored) : TakePart(weight, *rule, *stored);
    const bool takes_blocks = weight.use == WeightUse::kRows && tensor->packed.has_value() && IsBlocks(*tensor->packed);
    if (IsCoded(*tensor) && !takes_blocks && (weight.use == WeightUse::kVector || weight.use == WeightUse::kRows)) {
      Report(fmt::format("{} is stored in {}, expected rows of floats", name,
                         tensor->packed.has_value() ? TraitsOf(*tensor->packed).name : DtypeName(tensor->dtype)));
    } else if (!IsCoded(*tensor) && !IsFloat(tensor->dtype)) {
      Report(fmt::format("{} has codes ({}) and no scales, or config.json has no quantization_config for them", name,
                         DtypeName(tensor->dtype)));
    } else if (weight.use == WeightUse::kRouter && (IsQuantised(*tensor) || tensor->scales.has_value())) {
      Report(fmt::format("{} is quantised, and a router must not be", name));
    }
    if (weight.form == VectorForm::kPlain) return tensor;
    TensorInfo& changed = own_->emplace_back(*tensor);
    changed.form = weight.form;
    return &changed;
  }

  // Checks that matrices multiplied by the same rows are all quantised or all not.
  void CheckAlike(const TensorInfo& tensor, const TensorInfo*& first) {
    if (first == nullptr) first = &tensor;
    if (IsQuantised(tensor) == IsQuantised(*first)) return;
    Report(fmt::format("{} is quantised and {} is not: expected both or none",
                       IsQuantised(tensor) ? tensor.name : first->name,
                       IsQuantised(tensor) ? first->name : tensor.name));
  }

  // Checks that the compressed matrices of an expert have panels beside them, and no other tensors are compressed.
  // REQUIRES: called for all experts before Finish().
  void CheckCompressed(const FfnTensors& expert) {
    const TensorInfo* compressed = nullptr;
    const TensorInfo* unready = nullptr;
    expert.ForEach([&](const TensorInfo& tensor) {
      num_compressed_ += tensor.is_compressed ? 1 : 0;
      if (tensor.is_compressed) compressed = &tensor;
      if (!tensor.is_compressed && !IsReady(tensor)) unready = &tensor;
    });
    if (compressed != nullptr && unready != nullptr) {
      Report(fmt::format("{} is compressed and {} is not packed in panels", compressed->name, unready->name));
    }
  }

  void Ignore(const std::string& name) {
    const TensorInfo* tensor = checkpoint_->Find(name);
    if (tensor != nullptr) taken_.insert(tensor);
  }

  // After so many faults this is not a model of this config; looking up millions of names would be pointless.
  bool hopeless() const override { return num_faults_ > 10'000; }

  absl::Status Finish() {
    for (const auto& [key, rows] : rows_taken_) {
      if (rows.taken != rows.stored) {
        Report(fmt::format("{} has {} rows, expected {}", key.first->name, rows.stored, rows.taken));
      }
    }
    const auto is_compressed = [](const TensorInfo& tensor) { return tensor.is_compressed; };
    if (std::ranges::count_if(checkpoint_->tensors(), is_compressed) != num_compressed_) {
      Report("tensors are compressed that are not of experts");
    }
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      if (taken_.contains(&tensor) || IsNotNeeded(tensor.name) || IsOfMtpLayer(tensor)) continue;
      const auto has_prefix = [&](std::string_view prefix) { return tensor.name.starts_with(prefix); };
      const auto has_suffix = [&](std::string_view suffix) { return tensor.name.ends_with(suffix); };
      if (std::ranges::any_of(config_->family->ignored_prefixes, has_prefix) || IsOfOtherExperts(tensor)) continue;
      if (std::ranges::any_of(config_->family->ignored_suffixes, has_suffix)) continue;
      if (checkpoint_->format() == Checkpoint::Format::kGguf && IsConfigTensor(tensor.name)) continue;
      Report(fmt::format("{} is not part of such a model", tensor.name));
    }
    if (num_faults_ == 0) return absl::OkStatus();
    const bool is_gguf = checkpoint_->format() == Checkpoint::Format::kGguf;
    return ModelError("the tensors do not fit {0}: {1}{2} (in all {3}); does {0} belong to another model?",
                      is_gguf ? "the metadata" : "config.json", listed_, num_faults_ > kMaxListed ? "; ..." : "",
                      num_faults_);
  }

 private:
  struct Rows {
    int64_t taken = 0;
    int64_t stored = 0;
  };

  // Returns where the checkpoint stores a weight: the first rule whose tensor exists, or else the first rule. Returns
  // nullptr when the weight is stored under our own name.
  const StoredName* RuleOf(const Weight& weight) const {
    const StoredName* first = nullptr;
    for (const StoredName& rule : RulesFor(weight)) {
      if (rule.name != weight.name) continue;
      if (first == nullptr) first = &rule;
      if (Has(NameOf(weight, &rule))) return &rule;
    }
    return first;
  }

  std::string NameOf(const Weight& weight, const StoredName* rule) const {
    if (weight.layer_idx < 0 && rule == nullptr) return weight.FullName();
    const std::string own = ReplaceIdx(rule == nullptr ? weight.name : rule->stored, "{expert}", weight.expert_idx);
    if (weight.layer_idx < 0) return own;
    if (IsOfEncoder(weight)) return ReplaceIdx(encoder_prefix_, "{layer}", weight.layer_idx) + own;
    const int64_t layer_idx = weight.layer_idx - num_encoder_layers();
    return ReplaceIdx(layer_prefix_, "{layer}", layer_idx / layers_of_number_) +
           ReplaceIdx(own, "{part}", layer_idx % layers_of_number_);
  }

  int64_t num_encoder_layers() const { return encoder_prefix_.empty() ? 0 : config_->encoder.num_layers; }
  bool IsOfEncoder(const Weight& weight) const {
    return weight.layer_idx >= 0 && weight.layer_idx < num_encoder_layers();
  }
  const std::vector<StoredName>& RulesFor(const Weight& weight) const {
    return IsOfEncoder(weight) ? encoder_rules_ : rules_;
  }

  // The names of a weight's codes and scales, given the name that the weight has as floats.
  struct CodeNames {
    std::string codes;
    std::string scales;
    std::vector<std::string> ignored = {};  // they follow from the config, or from the codes
    std::string extra = {};                 // Scales::extra
    std::string groups = {};                // Scales::groups
  };
  static CodeNames CodeNamesOf(const std::string& name, const CodedWeights& coded) {
    const std::string_view base = std::string_view(name).substr(0, name.size() - std::min(name.size(), kWeight.size()));
    if (coded.is_int() && !name.ends_with(kWeight)) return {};
    const auto of_base = [&](std::string_view part) { return fmt::format("{}.{}", base, part); };
    switch (coded.kind) {
      case CodedWeights::Kind::kMxfp4: return {name + "_blocks", name + "_scales"};
      case CodedWeights::Kind::kPackedMxfp4: return {name + "_packed", name + "_scale"};
      case CodedWeights::Kind::kNvfp4: return {name, name + "_scale", {of_base("input_scale")}, name + "_scale_2"};
      case CodedWeights::Kind::kPackedNvfp4:
        return {name + "_packed", name + "_scale", {of_base("input_global_scale")}, name + "_global_scale"};
      case CodedWeights::Kind::kIntRows:
        return {name + "_packed", name + "_scale", {name + "_shape"}, name + "_zero_point"};
      case CodedWeights::Kind::kIntColumns:
        if (coded.has_groups) return {of_base("qweight"), of_base("scales"), {}, of_base("qzeros"), of_base("g_idx")};
        [[fallthrough]];
      case CodedWeights::Kind::kAwq:
        return {of_base("qweight"), of_base("scales"), {of_base("g_idx")}, of_base("qzeros")};
      case CodedWeights::Kind::kNone:
      case CodedWeights::Kind::kFp8: break;
    }
    return {name, fmt::format("{}{}", name, coded.scale_suffix), {of_base("input_scale")}};
  }

  // Says whether the checkpoint has a tensor, or codes in its place.
  bool Has(const std::string& name) const {
    if (checkpoint_->Find(name) != nullptr) return true;
    if (config_->coded.kind == CodedWeights::Kind::kNone) return false;
    return checkpoint_->Find(CodeNamesOf(name, config_->coded).codes) != nullptr;
  }

  // Returns how a weight is coded. Folders of mixed precision (modelopt) have FP8 beside NVFP4, told apart by dtype.
  const CodedWeights& CodedAs(const TensorInfo* stored) const {
    const bool is_fp8 =
        config_->coded.kind == CodedWeights::Kind::kNvfp4 && stored != nullptr && stored->dtype == Dtype::kF8E4M3;
    return is_fp8 ? fp8_beside_ : config_->coded;
  }

  // Returns a tensor of the checkpoint, with the tensor of its scales when it has codes.
  const TensorInfo* FindStored(const std::string& name) {
    const TensorInfo* stored = checkpoint_->Find(name);
    if (stored != nullptr) taken_.insert(stored);
    const CodedWeights& coded = CodedAs(stored);
    if (coded.kind == CodedWeights::Kind::kNone) return stored;
    const Dtype of_codes = coded.kind == CodedWeights::Kind::kFp8 ? Dtype::kF8E4M3 : Dtype::kU8;
    if (coded.has_own_name() ? stored == nullptr || stored->dtype != of_codes : stored != nullptr) return stored;
    const CodeNames names = CodeNamesOf(name, coded);
    stored = checkpoint_->Find(names.codes);
    if (stored == nullptr) return nullptr;
    taken_.insert(stored);
    for (const std::string& ignored : names.ignored) Ignore(ignored);
    return WithScales(*stored, names, coded);
  }

  // Returns codes as a tensor [.., rows, inputs] whatever their shape is; nothing where the shape is not possible.
  std::optional<TensorInfo> TensorOfCodes(const TensorInfo& stored, const CodedWeights& coded) {
    TensorInfo tensor = stored;
    const size_t rank = stored.shape.size();
    const auto report = [&](std::string_view expected) {
      Report(fmt::format("{} has shape [{}] of {}, expected {}", stored.name, fmt::join(stored.shape, ", "),
                         DtypeName(stored.dtype), expected));
      return std::nullopt;
    };
    constexpr int64_t kMaxDim = 1 << 28;
    for (const int64_t dim : stored.shape) {
      if (dim < 1 || dim > kMaxDim) return report("dims from 1 to 268435456");
    }
    if (coded.kind == CodedWeights::Kind::kMxfp4) {
      if (rank < 3 || stored.shape.back() != 16 || stored.dtype != Dtype::kU8) {
        return report("16 bytes (u8) for each 32 inputs");
      }
      tensor.shape.pop_back();
      tensor.shape.back() *= 32;
    } else if (coded.is_int()) {
      const int64_t codes_of_word = coded.format == WeightFormat::kQ8_0 ? 4 : 8;
      if (rank != 2 || stored.dtype != Dtype::kI32)
        return report("a matrix of i32 with 8 codes of four bits or 4 of eight");
      tensor.dtype = Dtype::kU8;
      tensor.shape = {stored.shape[0], stored.shape[1] * codes_of_word};
      if (coded.kind == CodedWeights::Kind::kIntColumns)
        tensor.shape = {stored.shape[1], stored.shape[0] * codes_of_word};
      if (coded.kind == CodedWeights::Kind::kAwq) tensor.shape = {stored.shape[1] * codes_of_word, stored.shape[0]};
      if (coded.kind != CodedWeights::Kind::kIntRows) {
        tensor.places = {.stored_rows = static_cast<int32_t>(tensor.shape[0]), .is_transposed = true};
      }
    } else if (coded.kind != CodedWeights::Kind::kFp8) {
      if (rank != 2 || stored.dtype != Dtype::kU8) return report("a matrix of bytes (u8) with two codes each");
      tensor.shape[1] *= 2;
      if (tensor.shape[1] % coded.group != 0) return report(fmt::format("a multiple of {} inputs", coded.group));
    } else if (rank != 2) {
      return report("a matrix");
    }
    return tensor;
  }

  // Adds the scales to a tensor of codes. Reports an error and returns the codes when they do not fit.
  const TensorInfo* WithScales(const TensorInfo& stored, const CodeNames& names, const CodedWeights& coded) {
    const TensorInfo*& known = coded_[&stored];
    if (known != nullptr) return known;
    std::optional<TensorInfo> tensor = TensorOfCodes(stored, coded);
    if (!tensor.has_value()) return &stored;
    const Dtype of_scales = coded.format == WeightFormat::kMxfp4   ? Dtype::kU8
                            : coded.format == WeightFormat::kNvfp4 ? Dtype::kF8E4M3
                                                                   : Dtype::kF32;
    const TensorInfo* found = FindPart(names.scales, of_scales);
    if (found == nullptr) return &stored;
    const int64_t num_rows = tensor->shape[tensor->shape.size() - 2], inputs = tensor->shape.back();
    const int64_t block_rows = coded.block_rows > 0 ? coded.block_rows : std::max<int64_t>(1, num_rows);
    const int64_t group = coded.group > 0 ? coded.group : std::max<int64_t>(1, inputs);
    Scales scales = {.format = coded.format,
                     .dtype = found->dtype,
                     .group_units = static_cast<uint16_t>(coded.group / Scales::kGroupUnit),
                     .file_idx = static_cast<uint16_t>(found->file_idx),
                     .order = coded.kind == CodedWeights::Kind::kIntColumns ? CodeOrder::kInputWords
                              : coded.kind == CodedWeights::Kind::kAwq      ? CodeOrder::kRowWords
                                                                            : CodeOrder::kRows,
                     .divides = coded.kind == CodedWeights::Kind::kPackedNvfp4,
                     .zeros_are_less_1 = coded.zeros_are_less_1,
                     .block_rows = static_cast<int32_t>(block_rows),
                     .extent = found->extent};
    const auto count = [](int64_t all, int64_t each) { return (all + each - 1) / each; };
    std::vector<int64_t> expected(tensor->shape.begin(), tensor->shape.end() - 2);
    expected.push_back(count(num_rows, block_rows));
    expected.push_back(count(inputs, group));
    const bool are_columns = scales.order != CodeOrder::kRows;
    if (are_columns) std::swap(expected[0], expected[1]);
    // One scale, or one for each output, may be a scalar or a vector.
    const bool is_flat = group >= inputs && found->shape.size() < 2;
    int64_t num_found = 1;
    for (const int64_t dim : found->shape) num_found *= dim;
    if (is_flat ? num_found != expected[0] * expected[1] : found->shape != expected) ReportShape(*found, expected);
    if (coded.format == WeightFormat::kU4) {
      std::vector<int64_t> words = expected;
      words[are_columns ? 1 : 0] = count(num_rows, 8);
      TakeExtra(FindPart(names.extra, Dtype::kI32), words, scales);
    } else if (coded.format == WeightFormat::kNvfp4) {
      TakeExtra(FindPart(names.extra, Dtype::kF32), {}, scales);
    } else if (!names.extra.empty()) {
      Ignore(names.extra);
    }
    if (!names.groups.empty()) scales.groups = FindPart(names.groups, Dtype::kI32);
    const std::vector<int64_t> of_groups = {inputs};
    if (scales.groups != nullptr && scales.groups->shape != of_groups) ReportShape(*scales.groups, of_groups);
    tensor->scales = scales;
    known = &own_->emplace_back(*std::move(tensor));
    return known;
  }

  // Returns a tensor beside codes. Reports an error when it is missing or has another dtype; kF32 is any float.
  const TensorInfo* FindPart(const std::string& name, Dtype dtype) {
    const TensorInfo* found = checkpoint_->Find(name);
    if (found == nullptr) {
      Report(fmt::format("{} is missing", name));
      return nullptr;
    }
    taken_.insert(found);
    if (dtype == Dtype::kF32 ? !IsFloat(found->dtype) : found->dtype != dtype) {
      Report(fmt::format("{} has dtype {}, expected {}", name, DtypeName(found->dtype),
                         dtype == Dtype::kF32 ? "a float" : DtypeName(dtype)));
    }
    return found;
  }

  // Adds what codes need besides scales. Empty `shape`: one f32.
  void TakeExtra(const TensorInfo* found, const std::vector<int64_t>& shape, Scales& scales) {
    if (found == nullptr) return;
    const bool is_one = found->extent.size_bytes == sizeof(float) && found->dtype == Dtype::kF32;
    if (shape.empty() ? !is_one : found->shape != shape) ReportShape(*found, shape);
    scales.extra = found;
  }

  const TensorInfo* TakeWhole(const Weight& weight, const TensorInfo& stored) {
    if (stored.shape != weight.shape) ReportShape(stored, weight.shape);
    if (stored.name == weight.FullName()) return &stored;
    TensorInfo& tensor = own_->emplace_back(stored);  // with our name, which packed stores keep
    tensor.name = weight.FullName();
    return &tensor;
  }

  // Returns the weight as a tensor of its own: the whole stored tensor, or the weight's rows of it.
  const TensorInfo* TakePart(const Weight& weight, StoredName rule, const TensorInfo& stored) {
    // Coded tensors are not transposed: an output's inputs lie in one row.
    if (stored.scales.has_value() && weight.shape.size() < 3) rule.is_transposed = false;
    if (rule.may_be_transposed) rule.is_transposed = stored.shape.back() != weight.shape.back();
    TensorInfo& tensor = own_->emplace_back(stored);
    tensor.name = weight.FullName();
    tensor.shape = weight.shape;
    int64_t num_members = 0, member_idx = 0;
    const auto module_of = [](std::string_view name) { return name.substr(0, name.find('.')); };
    for (const StoredName& other : RulesFor(weight)) {
      // A layer has attention or a recurrence, whose weights may have the same stored name.
      if (other.stored != rule.stored || module_of(other.name) != module_of(rule.name)) continue;
      if (other.name == rule.name) member_idx = num_members;
      ++num_members;
    }
    const bool is_stacked = weight.expert_idx >= 0 && rule.stored.find("{expert}") == std::string_view::npos;
    const bool has_zeros = stored.scales.has_value() && stored.scales->format == WeightFormat::kU4;
    if (stored.places.has_value() ? num_members > 1 || weight.shape.size() == 3 : is_stacked && has_zeros) {
      Report(
          fmt::format("{} holds several weights: such codes by columns or with zero points are not read", stored.name));
      return &tensor;
    }
    if (weight.shape.size() == 3 && num_members > 1) return TakeHeads(stored, rule.is_transposed, tensor);
    const bool is_vector = weight.shape.size() == 1;
    if (stored.shape.size() == 1 && weight.shape.size() == 2 && weight.shape[0] == 1) {
      if (stored.shape[0] != weight.shape[1]) ReportShape(stored, weight.shape);
      return &tensor;
    }
    if (num_members == 1 && !is_stacked && !rule.is_transposed && !is_vector) {
      if (stored.shape != weight.shape) ReportShape(stored, weight.shape);
      if (rule.is_paired) tensor.places = PairsOf(weight.shape[0]);
      return &tensor;
    }
    // Views the stored tensor as [num_matrices, rows, inputs], whatever its dims are.
    const int64_t inputs = is_vector ? 1 : weight.shape.back(),
                  num_matrices = is_stacked ? config_->num_stored_experts() : 1;
    int64_t num_elements = 1;
    for (const int64_t dim : stored.shape) num_elements *= dim;
    const int64_t stored_rows = num_elements / (inputs * num_matrices), own_rows = weight.shape[0];
    const size_t rank = stored.shape.size();
    bool has_inputs = is_vector || (rank >= 2 && stored.shape.back() == inputs);
    if (rule.is_transposed) has_inputs = rank >= 2 && stored.shape.back() == stored_rows;
    if (!has_inputs || stored_rows * inputs * num_matrices != num_elements) {
      std::vector<int64_t> expected = {num_matrices, own_rows * num_members, inputs};
      if (rule.is_transposed) std::swap(expected[1], expected[2]);
      ReportShape(stored, expected);
      return &tensor;
    }
    // The second row of a selection bias is that of the experts of images.
    const bool has_image_row = is_vector && config_->family->has_experts_of_images && stored.shape.size() == 2 &&
                               stored.shape[0] == 2 && stored_rows == 2 * own_rows;
    Rows& rows = rows_taken_[{&stored, weight.expert_idx}];
    const int64_t first = rule.is_interleaved ? member_idx : rows.taken / (rule.is_grouped ? weight.num_groups : 1);
    rows.taken += has_image_row ? stored_rows : own_rows;
    rows.stored = stored_rows;
    if (rows.taken > rows.stored) return &tensor;  // Finish() reports it
    if (tensor.scales.has_value()) {
      Scales& scales = *tensor.scales;
      scales.extent.size_bytes /= static_cast<uint64_t>(num_matrices);
      if (is_stacked) scales.extent.offset_bytes += static_cast<uint64_t>(weight.expert_idx) * scales.extent.size_bytes;
      if (!rule.is_interleaved) scales.first_row = static_cast<int32_t>(first);
    }
    const uint64_t matrix_bytes = stored.extent.size_bytes / static_cast<uint64_t>(num_matrices);
    tensor.extent = {
        stored.extent.offset_bytes + static_cast<uint64_t>(is_stacked ? weight.expert_idx : 0) * matrix_bytes,
        matrix_bytes};
    PlaceRows(tensor, rule, {stored_rows, own_rows, first, rule.is_interleaved ? num_members : 1, weight.num_groups});
    return &tensor;
  }

  struct PartRows {
    int64_t stored;  // of the matrix
    int64_t own;
    int64_t first;
    int64_t step;
    int64_t num_groups;
  };
  // Says where a tensor's own rows lie in its extent, which is that of the whole stored matrix.
  void PlaceRows(TensorInfo& tensor, const StoredName& rule, const PartRows& rows) const {
    if (rule.is_transposed || rule.is_interleaved) {
      tensor.places = {.stored_rows = static_cast<int32_t>(rows.stored),
                       .first = static_cast<int32_t>(rows.first),
                       .step = static_cast<int32_t>(rows.step),
                       .is_transposed = rule.is_transposed};
    } else if (rule.is_grouped) {
      tensor.places = {.stored_rows = static_cast<int32_t>(rows.stored),
                       .first = static_cast<int32_t>(rows.first),
                       .head_rows = static_cast<int32_t>(rows.own / rows.num_groups),
                       .head_stride = static_cast<int32_t>(rows.stored / rows.num_groups)};
    } else if (rule.is_paired) {
      tensor.places = PairsOf(rows.stored);
      tensor.places->first = static_cast<int32_t>(rows.first);
    } else {
      const uint64_t row_bytes = tensor.extent.size_bytes / static_cast<uint64_t>(rows.stored);
      tensor.extent.offset_bytes += static_cast<uint64_t>(rows.first) * row_bytes;
      tensor.extent.size_bytes = static_cast<uint64_t>(rows.own) * row_bytes;
    }
  }

  RowPlaces PairsOf(int64_t stored_rows) const {
    return {.stored_rows = static_cast<int32_t>(stored_rows), .head_rows = static_cast<int32_t>(config_->head_dim)};
  }

  // Takes a part of MLA's kv_b_proj, [heads, nope_dim + value_dim, kv_lora_rank]: k_up_proj (transposed), which applies
  // to q, or v_up_proj.
  const TensorInfo* TakeHeads(const TensorInfo& stored, bool is_transposed, TensorInfo& tensor) {
    const Mla& mla = config_->mla;
    const int64_t head_rows = mla.nope_dim + mla.value_dim;
    const std::vector<int64_t> expected = {config_->num_heads * head_rows, mla.kv_lora_rank};
    if (stored.shape != expected) {
      ReportShape(stored, expected);
      return &tensor;
    }
    const uint64_t row_bytes = stored.extent.size_bytes / static_cast<uint64_t>(expected[0]);
    const uint64_t skipped = is_transposed ? 0 : static_cast<uint64_t>(mla.nope_dim) * row_bytes;
    tensor.extent.offset_bytes += skipped;
    tensor.extent.size_bytes -= skipped;
    // A column of codes is not a row of codes, so a transposed tensor becomes floats.
    tensor.as_floats = is_transposed && IsCoded(stored);
    if (tensor.scales.has_value() && !is_transposed) tensor.scales->first_row = static_cast<int32_t>(mla.nope_dim);
    tensor.places = {.stored_rows = static_cast<int32_t>(is_transposed ? mla.kv_lora_rank : mla.value_dim),
                     .matrix_rows = static_cast<int32_t>(head_rows),
                     .first = 0,
                     .step = 1,
                     .is_transposed = is_transposed};
    return &tensor;
  }

  // Old checkpoints store the RoPE frequencies, which follow from the config. Others store scales for a KV cache in
  // FP8.
  static bool IsNotNeeded(const std::string& name) {
    return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".k_scale") || name.ends_with(".v_scale");
  }

  bool IsOfMtpLayer(const TensorInfo& tensor) const {
    if (tensor.name.starts_with("mtp.") || tensor.name.starts_with("model.mtp_")) return true;  // K-EXAONE, ERNIE 4.5
    for (int64_t i = 0; i < config_->num_mtp_layers; ++i) {
      const std::string prefix = ReplaceIdx(layer_prefix_, "{layer}", config_->num_layers + i);
      if (tensor.name.starts_with(prefix)) return true;
    }
    return false;
  }

  // Says whether no text needs an expert: those of images, and what transformers writes for identity experts.
  bool IsOfOtherExperts(const TensorInfo& tensor) const {
    if (!config_->family->has_experts_of_images && config_->num_identity_experts == 0) return false;
    if (tensor.name.ends_with(".mlp.gate.weight_1")) return true;
    constexpr std::string_view kExperts = ".mlp.experts.";
    const size_t begin = tensor.name.find(kExperts);
    int64_t expert_idx = -1;
    if (begin == std::string::npos) return false;
    std::from_chars(tensor.name.data() + begin + kExperts.size(), tensor.name.data() + tensor.name.size(), expert_idx);
    return expert_idx >= config_->num_stored_experts();
  }

  void ReportShape(const TensorInfo& stored, std::span<const int64_t> expected) {
    Report(fmt::format("{} has shape [{}], expected [{}]", stored.name, fmt::join(stored.shape, ", "),
                       fmt::join(expected, ", ")));
  }
  void Report(const std::string& fault) {
    if (num_faults_++ < kMaxListed) listed_ += (listed_.empty() ? "" : "; ") + fault;
  }

  static constexpr std::string_view kUsualPrefix = "model.layers.{layer}.";
  static constexpr std::string_view kWeight = ".weight";

  const CodedWeights fp8_beside_ = Fp8InRows(0);
  const ModelConfig* config_;
  const Checkpoint* checkpoint_;
  std::deque<TensorInfo>* own_;
  std::vector<StoredName> rules_;  // empty: every weight is stored under its own name
  std::string_view layer_prefix_ = kUsualPrefix;
  int64_t layers_of_number_ = 1;
  std::vector<StoredName> encoder_rules_;
  std::string_view encoder_prefix_;  // empty: layers have one sequence of numbers
  absl::flat_hash_set<const TensorInfo*> taken_;
  absl::flat_hash_map<const TensorInfo*, const TensorInfo*> coded_;
  absl::flat_hash_map<std::pair<const TensorInfo*, int64_t>, Rows> rows_taken_;  // of shared tensors, by expert
  std::string listed_;
  int64_t num_faults_ = 0;
  int64_t num_compressed_ = 0;  // matrices of experts
};

}  // namespace

uint64_t FfnTensors::total_bytes() const {
  uint64_t bytes = 0;
  ForEach([&](const TensorInfo& tensor) { bytes += StoredBytes(tensor); });
  return bytes;
}

absl::StatusOr<WeightMap> MapWeights(const ModelConfig& config, const Checkpoint& checkpoint) {
  WeightMap map;
  Mapper mapper(config, checkpoint, map.own);
  TakeWeights(mapper, config, map);
  if (config.tie_embeddings) mapper.Ignore("lm_head.weight");
  const TensorInfo* first_of_attention = nullptr;
  const TensorInfo* first_of_ffns = nullptr;
  for (const LayerTensors& layer : map.layers) {
    layer.ForEachDense([](const TensorInfo&) {},
                       [&](const TensorInfo& tensor, MatrixKind kind) {
                         if (kind == MatrixKind::kAttention) mapper.CheckAlike(tensor, first_of_attention);
                         if (kind == MatrixKind::kFfn) mapper.CheckAlike(tensor, first_of_ffns);
                       });
    for (const FfnTensors& expert : layer.experts) {
      expert.ForEach([&](const TensorInfo& tensor) { mapper.CheckAlike(tensor, first_of_ffns); });
      mapper.CheckCompressed(expert);
    }
  }
  PENSTOCK_RETURN_IF_ERROR(mapper.Finish());
  return map;
}

}  // namespace penstock
