#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/routing/sida_network.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {
namespace {

constexpr std::string_view kSidaFormat = "penstock sida 1";
constexpr uint64_t kLengthBytes = 8;  // before the header
constexpr size_t kFingerprintDigits = 32;
constexpr const char* kLstmNames[2][3] = {{"lstm.0.input", "lstm.0.hidden", "lstm.0.bias"},
                                          {"lstm.1.input", "lstm.1.hidden", "lstm.1.bias"}};

absl::StatusOr<OpenedFile> OpenNetwork(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not hang.
  OpenedFile file{.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), .path = path};
  if (!file.fd.valid()) return IoError("{}: cannot open: {}", Printable(path), ErrnoText(errno));
  struct stat info = {};
  if (::fstat(file.fd.get(), &info) != 0) return IoError("{}: cannot stat: {}", Printable(path), ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return IoError("{}: expected a regular file", Printable(path));
  file.size_bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::StatusOr<std::string> MetadataOf(const SafetensorsMetadata& metadata, std::string_view key) {
  for (const auto& [found, value] : metadata) {
    if (found == key) return value;
  }
  return ModelError("__metadata__ has no '{}': not a predictor of tools/train_predictor", key);
}

absl::StatusOr<int64_t> ParseWindow(const std::string& text) {
  int64_t window = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9' || window > kMaxSidaWindow) return ModelError("window '{}'", Excerpt(text));
    window = 10 * window + (digit - '0');
  }
  if (window < 1 || window > kMaxSidaWindow) {
    return ModelError("window: expected 1 to {}, found '{}'", kMaxSidaWindow, Excerpt(text));
  }
  return window;
}

absl::Status CheckDim(std::string_view name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return ModelError("{}: expected 1 to {}, found {}", name, max, value);
}

absl::StatusOr<const TensorInfo*> FindTensor(const std::vector<TensorInfo>& tensors, std::string_view name) {
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name != name) continue;
    if (tensor.dtype != Dtype::kF32) {
      return ModelError("tensor '{}': expected F32, found {}", name, DtypeName(tensor.dtype));
    }
    return &tensor;
  }
  return ModelError("tensor '{}' is missing", name);
}

absl::Status CheckTensor(const std::vector<TensorInfo>& tensors, std::string_view name, std::vector<int64_t> shape) {
  PENSTOCK_ASSIGN_OR_RETURN(const TensorInfo* tensor, FindTensor(tensors, name));
  if (tensor->shape == shape) return absl::OkStatus();
  return ModelError("tensor '{}': expected shape [{}], found [{}]", name, fmt::join(shape, ", "),
                    fmt::join(tensor->shape, ", "));
}

absl::Status CheckTensors(const std::vector<TensorInfo>& tensors, SidaShape& shape) {
  PENSTOCK_ASSIGN_OR_RETURN(const TensorInfo* table, FindTensor(tensors, "table"));
  PENSTOCK_ASSIGN_OR_RETURN(const TensorInfo* output, FindTensor(tensors, "output.weight"));
  if (table->shape.size() != 2) return ModelError("tensor 'table': expected 2 dimensions");
  if (output->shape.size() != 3) return ModelError("tensor 'output.weight': expected 3 dimensions");
  shape.vocab_size = table->shape[0];
  shape.dim = table->shape[1];
  shape.num_layers = output->shape[0];
  shape.num_experts = output->shape[1];
  PENSTOCK_RETURN_IF_ERROR(CheckDim("tokens", shape.vocab_size, kMaxVocabSize));
  PENSTOCK_RETURN_IF_ERROR(CheckDim("width", shape.dim, kMaxSidaDim));
  PENSTOCK_RETURN_IF_ERROR(CheckDim("layers", shape.num_layers, kMaxLayers));
  PENSTOCK_RETURN_IF_ERROR(CheckDim("experts", shape.num_experts, kMaxExperts));
  for (const auto& [input, hidden, bias] : kLstmNames) {
    PENSTOCK_RETURN_IF_ERROR(CheckTensor(tensors, input, {4 * shape.dim, shape.dim}));
    PENSTOCK_RETURN_IF_ERROR(CheckTensor(tensors, hidden, {4 * shape.dim, shape.dim}));
    PENSTOCK_RETURN_IF_ERROR(CheckTensor(tensors, bias, {4 * shape.dim}));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckTensor(tensors, "attention.query", {shape.dim, shape.dim}));
  PENSTOCK_RETURN_IF_ERROR(CheckTensor(tensors, "output.weight", {shape.num_layers, shape.num_experts, shape.dim}));
  return CheckTensor(tensors, "output.bias", {shape.num_layers, shape.num_experts});
}

}  // namespace

uint64_t SidaShape::network_bytes() const {
  const auto floats = [](int64_t a, int64_t b) { return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * 4; };
  const auto packed = [&](int64_t num_cols) { return PackedBytes(WeightFormat::kF32, num_cols, dim); };
  const int64_t num_outputs = num_layers * num_experts;
  // A matrix lies beside its packed form while it is read.
  const uint64_t read = floats(std::max(num_outputs, 4 * dim), dim);
  return floats(vocab_size, dim) + 4 * packed(4 * dim) + packed(dim) + packed(num_outputs) + read +
         floats(num_outputs + 8 * dim, 1) + kMaxSidaHeaderBytes;
}

uint64_t SidaShape::state_bytes() const {
  constexpr uint64_t kOther = 256;  // of containers
  return static_cast<uint64_t>(window + 4) * static_cast<uint64_t>(dim) * 4 + kOther;
}

absl::Status CheckSidaShape(const SidaShape& shape, int64_t vocab_size, int64_t num_layers, int64_t num_experts,
                            std::string_view fingerprint) {
  if (shape.num_layers != num_layers || shape.num_experts != num_experts || shape.vocab_size != vocab_size) {
    return ModelError(
        "a predictor for {} MoE layers of {} experts and {} tokens, and the model has {} of {} and {}: train one for "
        "this model",
        shape.num_layers, shape.num_experts, shape.vocab_size, num_layers, num_experts, vocab_size);
  }
  if (fingerprint.empty() || fingerprint == shape.fingerprint) return absl::OkStatus();
  return ModelError("a predictor for another model: expected fingerprint {}, found {}", fingerprint, shape.fingerprint);
}

absl::StatusOr<SidaNetwork::Header> SidaNetwork::ReadHeader(Reader reader, uint64_t file_bytes) {
  std::string prefix(std::min(kLengthBytes, file_bytes), '\0');
  PENSTOCK_RETURN_IF_ERROR(reader(0, std::as_writable_bytes(std::span(prefix))));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(prefix, file_bytes));
  if (header_bytes > kMaxSidaHeaderBytes) {
    return ModelError("the header has {} bytes, more than the {} of a predictor", header_bytes, kMaxSidaHeaderBytes);
  }
  std::string text(header_bytes, '\0');
  PENSTOCK_RETURN_IF_ERROR(reader(kLengthBytes, std::as_writable_bytes(std::span(text))));
  SafetensorsMetadata metadata;
  Header header;
  PENSTOCK_ASSIGN_OR_RETURN(header.tensors, ParseSafetensorsHeader(text, file_bytes, &metadata));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string format, MetadataOf(metadata, "format"));
  if (format != kSidaFormat) return ModelError("format: expected '{}', found '{}'", kSidaFormat, Excerpt(format));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string window, MetadataOf(metadata, "window"));
  PENSTOCK_ASSIGN_OR_RETURN(header.shape.window, ParseWindow(window));
  PENSTOCK_ASSIGN_OR_RETURN(header.shape.fingerprint, MetadataOf(metadata, "fingerprint"));
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const std::string& digits = header.shape.fingerprint;
  if (digits.size() != kFingerprintDigits || !std::all_of(digits.begin(), digits.end(), is_digit)) {
    return ModelError("fingerprint: expected {} hexadecimal digits, found '{}'", kFingerprintDigits, Excerpt(digits));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckTensors(header.tensors, header.shape));
  return header;
}

absl::StatusOr<std::shared_ptr<const SidaNetwork>> SidaNetwork::Read(Reader reader, uint64_t file_bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const Header header, ReadHeader(reader, file_bytes));
  auto network = std::shared_ptr<SidaNetwork>(new SidaNetwork());
  network->shape_ = header.shape;
  const int64_t dim = network->shape_.dim;
  absl::Status status;
  const auto read = [&](std::string_view name) {
    const TensorInfo& tensor = **FindTensor(header.tensors, name);
    std::vector<float> values(tensor.extent.size_bytes / sizeof(float));
    status.Update(reader(tensor.extent.offset_bytes, std::as_writable_bytes(std::span(values))));
    // NaN fails the comparison, too.
    const auto is_fine = [](float value) { return std::abs(value) <= kMaxSidaWeight; };
    const auto wrong = std::find_if_not(values.begin(), values.end(), is_fine);
    if (wrong != values.end()) {
      status.Update(ModelError("tensor '{}': expected values within {} of 0, found {}", name, kMaxSidaWeight, *wrong));
    }
    return values;
  };
  network->table_ = read("table");
  for (size_t layer = 0; layer < 2; ++layer) {
    const auto& [input, hidden, bias] = kLstmNames[layer];
    Lstm& lstm = network->lstm_[layer];
    lstm.input = Pack(read(input), dim);
    lstm.hidden = Pack(read(hidden), dim);
    lstm.bias = read(bias);
  }
  network->query_ = Pack(read("attention.query"), dim);
  network->output_ = Pack(read("output.weight"), dim);
  network->bias_ = read("output.bias");
  PENSTOCK_RETURN_IF_ERROR(status);
  return network;
}

absl::StatusOr<SidaShape> SidaNetwork::ReadShape(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const OpenedFile file, OpenNetwork(path));
  const auto reader = [&](uint64_t offset_bytes, std::span<std::byte> out) {
    return PreadFully(file.fd.get(), out, offset_bytes, path);
  };
  absl::StatusOr<Header> header = ReadHeader(reader, file.size_bytes);
  if (!header.ok()) return Annotate(header.status(), Printable(path));
  return std::move(header)->shape;
}

absl::StatusOr<uint64_t> SidaNetwork::Checksum(const std::string& path) {
  PENSTOCK_RETURN_IF_ERROR(ReadShape(path).status());
  PENSTOCK_ASSIGN_OR_RETURN(const OpenedFile file, OpenNetwork(path));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(digest.get());
  std::vector<std::byte> piece(1 << 16);
  for (uint64_t begin = 0; begin < file.size_bytes; begin += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), file.size_bytes - begin));
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), piece, begin, path));
    XXH3_64bits_update(digest.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(digest.get());
}

absl::StatusOr<std::shared_ptr<const SidaNetwork>> SidaNetwork::Load(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const OpenedFile file, OpenNetwork(path));
  const auto reader = [&](uint64_t offset_bytes, std::span<std::byte> out) {
    return PreadFully(file.fd.get(), out, offset_bytes, path);
  };
  auto network = Read(reader, file.size_bytes);
  if (!network.ok()) return Annotate(network.status(), Printable(path));
  return network;
}

absl::StatusOr<std::shared_ptr<const SidaNetwork>> SidaNetwork::OfBytes(std::string_view bytes,
                                                                        const std::string& name) {
  const auto reader = [&](uint64_t offset_bytes, std::span<std::byte> out) {
    PENSTOCK_CHECK(offset_bytes <= bytes.size() && out.size() <= bytes.size() - offset_bytes);
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset_bytes, out.size());
    return absl::OkStatus();
  };
  auto network = Read(reader, bytes.size());
  if (!network.ok()) return Annotate(network.status(), name);
  return network;
}

}  // namespace penstock
