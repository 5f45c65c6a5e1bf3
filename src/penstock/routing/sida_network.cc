#include "penstock/routing/sida_network.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/model_folder.h"

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

// Adds the products of a matrix, stored column by column, with a vector: out += sum of x[j] * column j.
void AddProduct(const float* matrix, const float* x, size_t num_columns, float* __restrict out, size_t num_rows) {
  size_t j = 0;
  for (; j + 4 <= num_columns; j += 4) {
    const float* a = matrix + j * num_rows;
    const float* b = a + num_rows;
    const float* c = b + num_rows;
    const float* d = c + num_rows;
    for (size_t i = 0; i < num_rows; ++i) {
      out[i] += (x[j] * a[i] + x[j + 1] * b[i]) + (x[j + 2] * c[i] + x[j + 3] * d[i]);
    }
  }
  for (; j < num_columns; ++j) {
    for (size_t i = 0; i < num_rows; ++i) out[i] += x[j] * matrix[j * num_rows + i];
  }
}

float Dot(const float* a, const float* b, size_t size) {
  constexpr size_t kSums = 8;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < size; ++i) sums[i % kSums] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Returns [num_columns, num_rows] of a matrix [num_rows, num_columns].
std::vector<float> Transposed(const std::vector<float>& matrix, size_t num_columns) {
  const size_t num_rows = matrix.size() / num_columns;
  std::vector<float> columns(matrix.size());
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t j = 0; j < num_columns; ++j) columns[j * num_rows + row] = matrix[row * num_columns + j];
  }
  return columns;
}

}  // namespace

uint64_t SidaShape::network_bytes() const {
  const auto of = [](int64_t a, int64_t b) { return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * 4; };
  // Matrices are transposed when they are read, the largest one beside its copy.
  const uint64_t output = of(num_layers * num_experts, dim + 1);
  return of(vocab_size, dim) + of(dim, 25 * dim + 16) + 3 * output + kMaxSidaHeaderBytes;
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

void SparseMax(std::span<const float> scores, std::span<float> scratch, std::span<float> weights) {
  PENSTOCK_CHECK(!scores.empty() && scratch.size() == scores.size() && weights.size() == scores.size());
  std::copy(scores.begin(), scores.end(), scratch.begin());
  std::sort(scratch.begin(), scratch.end(), std::greater<>());
  // The k largest are positive in the result for the largest k with 1 + k z_k > z_1 + ... + z_k.
  double sum = 0, threshold = 0;
  for (size_t k = 0; k < scratch.size(); ++k) {
    const double z = scratch[k];
    if (1 + static_cast<double>(k + 1) * z <= sum + z) break;
    sum += z;
    threshold = (sum - 1) / static_cast<double>(k + 1);
  }
  std::transform(scores.begin(), scores.end(), weights.begin(),
                 [&](float score) { return static_cast<float>(std::max(0.0, score - threshold)); });
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
  const size_t dim = network->shape_.dim;
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
    lstm.input = Transposed(read(input), dim);
    lstm.hidden = Transposed(read(hidden), dim);
    lstm.bias = read(bias);
  }
  network->query_ = Transposed(read("attention.query"), dim);
  network->output_ = Transposed(read("output.weight"), dim);
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

SidaNetwork::State SidaNetwork::NewState() const {
  const size_t dim = shape_.dim;
  return {.cells = std::vector<float>(2 * dim),
          .outputs = std::vector<float>(2 * dim),
          .window = std::vector<float>(static_cast<size_t>(shape_.window) * dim)};
}

SidaNetwork::Scratch SidaNetwork::NewScratch() const {
  const size_t dim = shape_.dim, window = shape_.window;
  const auto of = [](size_t size) { return std::vector<float>(size); };
  return {.gates = of(4 * dim),
          .hidden = of(dim),
          .query = of(dim),
          .scores = of(window),
          .sorted = of(window),
          .weights = of(window)};
}

void SidaNetwork::StepLstm(size_t layer, const float* x, State& state, Scratch& scratch) const {
  const size_t dim = shape_.dim;
  const Lstm& lstm = lstm_[layer];
  float* gates = scratch.gates.data();
  float* output = state.outputs.data() + layer * dim;
  float* cell = state.cells.data() + layer * dim;
  std::copy(lstm.bias.begin(), lstm.bias.end(), gates);
  AddProduct(lstm.input.data(), x, dim, gates, 4 * dim);
  AddProduct(lstm.hidden.data(), output, dim, gates, 4 * dim);
  for (size_t i = 0; i < dim; ++i) {
    cell[i] = Sigmoid(gates[dim + i]) * cell[i] + Sigmoid(gates[i]) * std::tanh(gates[2 * dim + i]);
    output[i] = Sigmoid(gates[3 * dim + i]) * std::tanh(cell[i]);
  }
}

// Sets scratch.hidden to the weighted sum of the outputs in the window.
void SidaNetwork::Attend(const State& state, Scratch& scratch) const {
  const size_t dim = shape_.dim;
  const float* output = state.outputs.data() + dim;
  const auto size = static_cast<size_t>(std::min(state.num_tokens, shape_.window));
  std::fill(scratch.query.begin(), scratch.query.end(), 0.0f);
  AddProduct(query_.data(), output, dim, scratch.query.data(), dim);
  for (size_t i = 0; i < size; ++i) {
    scratch.scores[i] = Dot(scratch.query.data(), state.window.data() + i * dim, dim);
  }
  const std::span<float> weights = std::span(scratch.weights).first(size);
  SparseMax(std::span(scratch.scores).first(size), std::span(scratch.sorted).first(size), weights);
  std::fill(scratch.hidden.begin(), scratch.hidden.end(), 0.0f);
  for (size_t i = 0; i < size; ++i) {
    if (weights[i] > 0) AddProduct(state.window.data() + i * dim, &weights[i], 1, scratch.hidden.data(), dim);
  }
}

void SidaNetwork::Step(int32_t token_id, State& state, Scratch& scratch, std::span<float> logits) const {
  PENSTOCK_CHECK(token_id >= 0 && token_id < shape_.vocab_size);
  const size_t dim = shape_.dim;
  const float* x = table_.data() + static_cast<size_t>(token_id) * dim;
  StepLstm(0, x, state, scratch);
  StepLstm(1, state.outputs.data(), state, scratch);
  const auto place = static_cast<ptrdiff_t>(state.num_tokens++ % shape_.window) * shape_.dim;
  std::copy_n(state.outputs.begin() + shape_.dim, shape_.dim, state.window.begin() + place);
  if (logits.empty()) return;
  Attend(state, scratch);
  PENSTOCK_CHECK(logits.size() == bias_.size());
  for (size_t i = 0; i < dim; ++i) scratch.hidden[i] += x[i];
  std::copy(bias_.begin(), bias_.end(), logits.begin());
  AddProduct(output_.data(), scratch.hidden.data(), dim, logits.data(), logits.size());
}

}  // namespace penstock
