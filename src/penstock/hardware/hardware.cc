#include "penstock/hardware/hardware.h"

#include "penstock/base/text.h"

namespace penstock {
namespace {

struct Feature {
  std::string_view name;
  bool CpuFeatures::*value;
};
constexpr Feature kFeatures[] = {{"avx2", &CpuFeatures::avx2},
                                 {"avx512", &CpuFeatures::avx512},
                                 {"avx_vnni", &CpuFeatures::avx_vnni},
                                 {"avx512_vnni", &CpuFeatures::avx512_vnni},
                                 {"avx512_bf16", &CpuFeatures::avx512_bf16},
                                 {"asimd_dot", &CpuFeatures::asimd_dot}};

json::value PeakJson(const ComputePeak& peak) {
  if (peak.rates.empty()) return nullptr;
  json::array rates;
  for (const ComputeRate& rate : peak.rates) {
    rates.push_back(json::object{{"threads", rate.num_threads}, {"ops_per_second", rate.ops_per_s}});
  }
  return json::object{{"instructions", peak.instructions}, {"rates", std::move(rates)}};
}

json::object ProcessorJson(const Processor& processor) {
  json::object features, peaks;
  for (const Feature& feature : kFeatures) features[feature.name] = processor.features.*feature.value;
  for (const ComputePeak& peak : processor.peaks) peaks[ArithmeticName(peak.arithmetic)] = PeakJson(peak);
  json::value model;
  if (!processor.model.empty()) model = ReplaceInvalidUtf8(processor.model);
  return {{"name", processor.name},
          {"model", std::move(model)},
          {"cpus", processor.num_cpus},
          {"features", std::move(features)},
          {"peaks", std::move(peaks)}};
}

json::object TierJson(const MemoryTier& tier) {
  json::array rates;
  for (const MemoryRates& rate : tier.rates) {
    rates.push_back(json::object{{"threads", rate.num_threads},
                                 {"read_bytes_per_second", rate.read_bytes_per_s},
                                 {"write_bytes_per_second", rate.write_bytes_per_s},
                                 {"copy_bytes_per_second", rate.copy_bytes_per_s}});
  }
  return {{"name", tier.name}, {"capacity_bytes", tier.capacity_bytes}, {"rates", std::move(rates)}};
}

}  // namespace

std::string_view ArithmeticName(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF32: return "f32";
    case Arithmetic::kBf16: return "bf16";
    case Arithmetic::kInt8: return "int8";
  }
  return "unknown";
}

std::vector<std::string_view> FeatureNames(const CpuFeatures& features) {
  std::vector<std::string_view> names;
  for (const Feature& feature : kFeatures) {
    if (features.*feature.value) names.push_back(feature.name);
  }
  return names;
}

json::object ToJson(const Hardware& hardware) {
  json::array processors, tiers;
  for (const Processor& processor : hardware.processors) processors.push_back(ProcessorJson(processor));
  for (const MemoryTier& tier : hardware.tiers) tiers.push_back(TierJson(tier));
  return {{"processors", std::move(processors)}, {"tiers", std::move(tiers)}};
}

}  // namespace penstock
