// Writes files of SiDA's network, with random weights or with given ones.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "penstock/routing/sida_network.h"

namespace penstock {

// `weight` returns the value of a tensor at an index of its elements.
inline std::string SidaFile(const SidaShape& shape,
                            const std::function<float(const std::string& name, int64_t i)>& weight) {
  const int64_t dim = shape.dim;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"table", {shape.vocab_size, dim}},
      {"lstm.0.input", {4 * dim, dim}},
      {"lstm.0.hidden", {4 * dim, dim}},
      {"lstm.0.bias", {4 * dim}},
      {"lstm.1.input", {4 * dim, dim}},
      {"lstm.1.hidden", {4 * dim, dim}},
      {"lstm.1.bias", {4 * dim}},
      {"attention.query", {dim, dim}},
      {"output.weight", {shape.num_layers, shape.num_experts, dim}},
      {"output.bias", {shape.num_layers, shape.num_experts}},
  };
  std::string header =
      fmt::format(R"({{"__metadata__":{{"format":"penstock sida 1","window":"{}","fingerprint":"{}"}})", shape.window,
                  shape.fingerprint);
  uint64_t end = 0;
  for (const auto& [name, dims] : tensors) {
    uint64_t size = 4;
    for (const int64_t size_of_dim : dims) size *= static_cast<uint64_t>(size_of_dim);
    header += fmt::format(R"(,"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", name, fmt::join(dims, ","),
                          end, end + size);
    end += size;
  }
  header += "}";
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  bytes += header;
  for (const auto& [name, dims] : tensors) {
    int64_t num_elements = 1;
    for (const int64_t size_of_dim : dims) num_elements *= size_of_dim;
    for (int64_t i = 0; i < num_elements; ++i) {
      const float value = weight(name, i);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  return bytes;
}

inline std::string RandomSidaFile(const SidaShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  return SidaFile(shape, [&](const std::string&, int64_t) { return static_cast<float>(random() % 2001) / 1000 - 1; });
}

}  // namespace penstock
