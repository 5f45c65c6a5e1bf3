// Parses the header of a GGUF file.
#include <algorithm>
#include <bit>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/checked.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kMaxNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// The minimum sizes of a value and of a tensor: the bytes that are left bound how many there can be.
constexpr uint64_t kMinFieldBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// A read position in the header. Reading beyond the given bytes is an error only when the file ends there.
class Cursor {
 public:
  Cursor(std::string_view bytes, uint64_t file_bytes) : bytes_(bytes), file_bytes_(file_bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t bytes_left() const { return file_bytes_ - offset_; }
  // Returns whether the header continues beyond the given bytes.
  bool needs_more() const { return needs_more_; }

  // Takes the next `count` bytes. Returns an error when the file ends before them.
  absl::StatusOr<std::string_view> Take(uint64_t count, std::string_view what) {
    if (count > bytes_left()) {
      return ModelError("{} at byte {} needs {} bytes, but the file ends after {}: download it again", what, offset_,
                        count, bytes_left());
    }
    if (offset_ + count > bytes_.size()) {
      needs_more_ = true;
      return ModelError("{} at byte {}: not read yet", what, offset_);
    }
    const std::string_view taken = bytes_.substr(offset_, count);
    offset_ += count;
    return taken;
  }
  template <typename T>
  absl::StatusOr<T> Number(std::string_view what) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view taken, Take(sizeof(T), what));
    return LoadNumber<T>(taken.data());
  }
  absl::StatusOr<std::string_view> Text(uint64_t max_bytes, std::string_view what) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>(what));
    if (size > max_bytes)
      return ModelError("{} at byte {} has {} bytes, the limit is {}", what, offset_, size, max_bytes);
    return Take(size, what);
  }

 private:
  std::string_view bytes_;
  uint64_t file_bytes_;
  uint64_t offset_ = 0;
  bool needs_more_ = false;
};

// A tensor type that GGUF files may have: elements of a dtype, or blocks.
struct TensorType {
  std::optional<Dtype> dtype = {};
  std::optional<WeightFormat> blocks = {};
};
struct FloatType {
  uint32_t id;
  std::string_view name;  // ggml's
  Dtype dtype;
};
constexpr FloatType kFloatTypes[] = {{0, "F32", Dtype::kF32}, {1, "F16", Dtype::kF16}, {30, "BF16", Dtype::kBF16}};

// ggml's names of types that are not read, for messages.
struct NamedType {
  uint32_t id;
  std::string_view name;
};
constexpr NamedType kUnreadTypes[] = {
    {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"}, {28, "F64"}, {40, "NVFP4"},
};

// Returns ggml's name of a block format: "Q8_0".
std::string GgufNameOf(const WeightFormatTraits& format) {
  std::string upper(format.name);
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return upper;
}

absl::StatusOr<TensorType> TensorTypeOf(uint32_t id, std::string_view name) {
  std::string known;
  for (const FloatType& type : kFloatTypes) {
    if (type.id == id) return TensorType{.dtype = type.dtype};
    known += fmt::format("{}{}", known.empty() ? "" : ", ", type.name);
  }
  for (const WeightFormatTraits& format : kWeightFormats) {
    if (format.gguf_type < 0) continue;
    if (static_cast<uint32_t>(format.gguf_type) == id) return TensorType{.blocks = format.value};
    known += ", " + GgufNameOf(format);
  }
  for (const NamedType& type : kUnreadTypes) {
    if (type.id != id) continue;
    return ModelError("tensor '{}': type {} is not supported: expected one of {}", name, type.name, known);
  }
  return ModelError("tensor '{}': type {} is unknown: expected one of {}", name, id, known);
}

bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

// Skips a value and records its position.
absl::Status ReadValue(Cursor& cursor, GgufMetadata::Field& field) {
  PENSTOCK_ASSIGN_OR_RETURN(uint32_t type, cursor.Number<uint32_t>(field.key));
  if (type > static_cast<uint32_t>(GgufType::kFloat64))
    return ModelError("key '{}': value type {} is unknown", field.key, type);
  if (static_cast<GgufType>(type) == GgufType::kArray) {
    field.is_array = true;
    PENSTOCK_ASSIGN_OR_RETURN(type, cursor.Number<uint32_t>(field.key));
    if (type > static_cast<uint32_t>(GgufType::kFloat64)) {
      return ModelError("key '{}': element type {} is unknown", field.key, type);
    }
    if (static_cast<GgufType>(type) == GgufType::kArray)
      return ModelError("key '{}': arrays of arrays are not read", field.key);
    PENSTOCK_ASSIGN_OR_RETURN(field.count, cursor.Number<uint64_t>(field.key));
  }
  field.type = static_cast<GgufType>(type);
  field.offset = cursor.offset();
  const std::optional<uint64_t> min_bytes = CheckedMul(field.count, WidthOf(field.type));
  if (!min_bytes.has_value() || *min_bytes > cursor.bytes_left()) {
    return ModelError("key '{}': {} elements, but the file ends after {} bytes", field.key, field.count,
                      cursor.bytes_left());
  }
  if (field.type == GgufType::kString) {
    for (uint64_t i = 0; i < field.count; ++i) {
      PENSTOCK_RETURN_IF_ERROR(cursor.Text(cursor.bytes_left(), field.key).status());
    }
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view bytes, cursor.Take(*min_bytes, field.key));
  if (field.type == GgufType::kBool &&
      std::any_of(bytes.begin(), bytes.end(), [](char c) { return c != 0 && c != 1; })) {
    return ModelError("key '{}': a bool that is neither 0 nor 1", field.key);
  }
  return absl::OkStatus();
}

absl::Status ReadFields(Cursor& cursor, uint64_t count, std::vector<GgufMetadata::Field>& fields) {
  absl::flat_hash_set<std::string_view> keys;
  for (uint64_t i = 0; i < count; ++i) {
    GgufMetadata::Field field;
    PENSTOCK_ASSIGN_OR_RETURN(field.key, cursor.Text(kMaxKeyBytes, fmt::format("key {}", i)));
    field.key_offset = cursor.offset() - field.key.size();
    if (field.key.empty()) return ModelError("key {} is empty", i);
    if (!IsPrintableAscii(field.key)) return ModelError("key {} is not printable ASCII: '{}'", i, Excerpt(field.key));
    if (!keys.insert(field.key).second) return ModelError("key '{}' appears twice", Excerpt(field.key));
    PENSTOCK_RETURN_IF_ERROR(ReadValue(cursor, field));
    fields.push_back(field);
  }
  return absl::OkStatus();
}

absl::Status ReadTensor(Cursor& cursor, uint64_t idx, TensorInfo& tensor) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view name,
                            cursor.Text(kMaxNameBytes, fmt::format("name of tensor {}", idx)));
  if (name.empty()) return ModelError("tensor {} has no name", idx);
  tensor.name = Printable(name);
  PENSTOCK_ASSIGN_OR_RETURN(const uint32_t num_dims, cursor.Number<uint32_t>(tensor.name));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return ModelError("tensor '{}': {} dimensions, expected 1 to {}", tensor.name, num_dims, kMaxDims);
  }
  uint64_t num_elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t dim, cursor.Number<uint64_t>(tensor.name));
    const std::optional<uint64_t> product = CheckedMul(num_elements, dim);
    if (dim < 1 || dim > (1ull << 40)) {
      return ModelError("tensor '{}': dimension {} is {}, expected 1 to 2^40", tensor.name, i, dim);
    }
    if (!product.has_value() || *product > (1ull << 58))
      return ModelError("tensor '{}': its size overflows", tensor.name);
    num_elements = *product;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));  // ggml lists the dim within a row first
  }
  PENSTOCK_ASSIGN_OR_RETURN(const uint32_t type_id, cursor.Number<uint32_t>(tensor.name));
  PENSTOCK_ASSIGN_OR_RETURN(const TensorType type, TensorTypeOf(type_id, tensor.name));
  if (type.blocks.has_value()) {
    const int64_t row = tensor.shape.back(), block = BlockElements(*type.blocks);
    if (row % block != 0) {
      return ModelError("tensor '{}': rows of {} are not whole blocks of {} ({})", tensor.name, row, block,
                        GgufNameOf(TraitsOf(*type.blocks)));
    }
    tensor.packed = type.blocks;
    tensor.extent.size_bytes = num_elements / static_cast<uint64_t>(row) * BlockRowBytes(*type.blocks, row);
  } else {
    tensor.dtype = *type.dtype;
    tensor.extent.size_bytes = num_elements * SizeOf(tensor.dtype);
  }
  PENSTOCK_ASSIGN_OR_RETURN(tensor.extent.offset_bytes, cursor.Number<uint64_t>(tensor.name));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AlignmentOf(std::string_view header, const std::vector<GgufMetadata::Field>& fields) {
  for (const GgufMetadata::Field& field : fields) {
    if (field.key != "general.alignment") continue;
    if (field.is_array || field.type != GgufType::kUint32) {
      return ModelError("key 'general.alignment': expected u32, found {}", GgufTypeName(field));
    }
    const uint64_t alignment = LoadNumber<uint32_t>(header.data() + field.offset);
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment) {
      return ModelError("key 'general.alignment': expected a power of two from 8 to {}, found {}", kMaxAlignment,
                        alignment);
    }
    return alignment;
  }
  return kDefaultAlignment;
}

// Places the extents, which were relative to the start of the tensors, in the file.
absl::Status PlaceTensors(uint64_t begin, uint64_t alignment, uint64_t file_bytes, std::vector<TensorInfo>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.extent.offset_bytes < b.extent.offset_bytes;
  });
  uint64_t end = begin;
  const TensorInfo* last = nullptr;
  for (TensorInfo& tensor : tensors) {
    if (tensor.extent.offset_bytes % alignment != 0) {
      return ModelError("tensor '{}': offset {} is not a multiple of {}", tensor.name, tensor.extent.offset_bytes,
                        alignment);
    }
    const std::optional<uint64_t> first = CheckedAdd(begin, tensor.extent.offset_bytes);
    const std::optional<uint64_t> own_end =
        first.has_value() ? CheckedAdd(*first, tensor.extent.size_bytes) : std::nullopt;
    if (!own_end.has_value() || *own_end > file_bytes) {
      return ModelError("tensor '{}': {} bytes at offset {} reach beyond the file's {}: download it again", tensor.name,
                        tensor.extent.size_bytes, tensor.extent.offset_bytes, file_bytes);
    }
    if (*first < end) return ModelError("tensor '{}' overlaps '{}'", tensor.name, last == nullptr ? "" : last->name);
    tensor.extent.offset_bytes = *first;
    end = *own_end;
    last = &tensor;
  }
  return absl::OkStatus();
}

absl::Status ReadHeader(Cursor& cursor, std::string_view bytes, uint64_t file_bytes, GgufHeader& header) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view magic, cursor.Take(4, "the magic"));
  if (magic != "GGUF") return ModelError("this is not a GGUF file: it begins with '{}'", Excerpt(magic));
  PENSTOCK_ASSIGN_OR_RETURN(const uint32_t version, cursor.Number<uint32_t>("the version"));
  if ((version & 0xFFFF) == 0 && version != 0) {
    return ModelError("version {}: the file is big-endian, which is not read", __builtin_bswap32(version));
  }
  if (version != 3) return ModelError("version {} of GGUF is not read, only 3 is", version);
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.Number<uint64_t>("the number of tensors"));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t num_fields, cursor.Number<uint64_t>("the number of keys"));
  if (num_tensors > cursor.bytes_left() / kMinTensorBytes || num_tensors > kMaxTensors) {
    return ModelError("{} tensors do not fit a file of {} bytes", num_tensors, file_bytes);
  }
  if (num_fields > cursor.bytes_left() / kMinFieldBytes) {
    return ModelError("{} keys do not fit a file of {} bytes", num_fields, file_bytes);
  }
  PENSTOCK_RETURN_IF_ERROR(ReadFields(cursor, num_fields, header.fields));
  header.metadata_bytes = cursor.offset();
  absl::flat_hash_set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    PENSTOCK_RETURN_IF_ERROR(ReadTensor(cursor, i, header.tensors.emplace_back()));
    if (!names.insert(header.tensors.back().name).second) {
      return ModelError("tensor '{}' appears twice", header.tensors.back().name);
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t alignment, AlignmentOf(bytes, header.fields));
  return PlaceTensors(RoundUp(cursor.offset(), alignment), alignment, file_bytes, header.tensors);
}

}  // namespace

std::string GgufTypeName(const GgufMetadata::Field& field) {
  static constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  const std::string_view name = kNames[static_cast<size_t>(field.type)];
  return field.is_array ? fmt::format("array of {}", name) : std::string(name);
}

absl::StatusOr<std::optional<GgufHeader>> ParseGgufHeader(std::string_view first_bytes, uint64_t file_bytes) {
  Cursor cursor(first_bytes, file_bytes);
  GgufHeader header;
  const absl::Status status = ReadHeader(cursor, first_bytes, file_bytes, header);
  if (cursor.needs_more()) return std::nullopt;
  if (!status.ok()) return status;
  return header;
}

}  // namespace penstock
