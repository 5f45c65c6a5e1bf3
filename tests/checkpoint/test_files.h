// Builds safetensors bytes and folders for the tests of this floor.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Returns `header` after its 8-byte little-endian length.
inline std::string WithLength(std::string_view header) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  return bytes.append(header);
}

struct TestTensor {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape;
};

inline uint64_t BytesOf(const TestTensor& tensor) {
  const bool is_byte = tensor.dtype == "U8" || tensor.dtype == "F8_E4M3";
  uint64_t size = is_byte ? 1 : tensor.dtype == "F32" || tensor.dtype == "I32" ? 4 : 2;
  for (const int64_t dim : tensor.shape) size *= static_cast<uint64_t>(dim);
  return size;
}

// Returns a header that lays `tensors` out one after another. Names must not need escapes.
inline std::string HeaderOf(const std::vector<TestTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t offset = 0;
  for (const TestTensor& tensor : tensors) {
    const uint64_t end = offset + BytesOf(tensor);
    header += fmt::format(",\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", tensor.name,
                          tensor.dtype, fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  return header + "}";
}

// Returns a whole file; its data bytes count up.
inline std::string FileOf(const std::vector<TestTensor>& tensors) {
  uint64_t data_bytes = 0;
  for (const TestTensor& tensor : tensors) data_bytes += BytesOf(tensor);
  std::string file = WithLength(HeaderOf(tensors));
  for (uint64_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i & 0x7F));
  return file;
}

// A folder that lives as long as this object. `path` has no symlinks.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = testing::TempDir() + "/penstock-test-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = std::filesystem::canonical(pattern).string();
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes `content` to the file `name`, creates missing folders on its path, and returns its path.
  std::string Write(const std::string& name, std::string_view content) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

  // Makes the symlink `name` to `target`, which is not resolved.
  void Link(const std::string& name, const std::string& target) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_symlink(target, path);
  }

 private:
  std::string path_;
};

}  // namespace penstock
