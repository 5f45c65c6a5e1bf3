#include "penstock/hardware/hardware.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "penstock/base/status.h"
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
                                 {"avx512_vbmi", &CpuFeatures::avx512_vbmi},
                                 {"avx512_bf16", &CpuFeatures::avx512_bf16},
                                 {"amx_int8", &CpuFeatures::amx_int8},
                                 {"asimd_dot", &CpuFeatures::asimd_dot}};

json::value PeakJson(const ComputePeak& peak) {
  if (peak.rates.empty()) return nullptr;
  json::array rates;
  for (const ComputeRate& rate : peak.rates) {
    rates.push_back(json::object{{"threads", rate.num_threads}, {"ops_per_second", rate.ops_per_s}});
  }
  return json::object{{"instructions", peak.instructions}, {"rates", std::move(rates)}};
}

json::object GemmJson(const GemmRates& rates) {
  json::array points;
  for (const GemmPoint& point : rates.points) {
    points.push_back(json::object{{"ops_per_byte", point.ops_per_byte}, {"seconds_per_byte", point.seconds_per_byte}});
  }
  return {{"threads", rates.num_threads},
          {"weights", rates.weights},
          {"arithmetic", ArithmeticName(rates.arithmetic)},
          {"points", std::move(points)},
          {"pack_seconds_per_byte", rates.pack_s}};
}

json::object LinkJson(const Link& link) {
  json::array rates;
  for (const TransferRate& rate : link.rates) {
    rates.push_back(json::object{{"transfer_bytes", rate.transfer_bytes},
                                 {"under_way", rate.num_under_way},
                                 {"bytes_per_second", rate.bytes_per_s}});
  }
  json::object object = {{"name", link.name},
                         {"bytes_per_second", link.bytes_per_s},
                         {"latency_seconds", link.latency_s},
                         {"rates", std::move(rates)}};
  if (link.cpu_s > 0) object["cpu_seconds"] = link.cpu_s;
  return object;
}

json::object RowsJson(const RowRates& rates) {
  json::array points;
  for (const RowPoint& point : rates.points) {
    points.push_back(json::object{{"rows", point.rows},
                                  {"embed_seconds", point.embed_s},
                                  {"attention_seconds", point.attention_s},
                                  {"routed_seconds", point.routed_s}});
  }
  return {{"threads", rates.num_threads}, {"draw_seconds", rates.draw_s}, {"points", std::move(points)}};
}

json::object ProcessorJson(const Processor& processor) {
  json::object features, peaks;
  json::array gemm, attention, rows;
  for (const GemmRates& rates : processor.gemm) gemm.push_back(GemmJson(rates));
  for (const AttentionRates& rates : processor.attention) {
    attention.push_back(json::object{{"threads", rates.num_threads},
                                     {"kv", rates.kv},
                                     {"bytes_per_second", rates.bytes_per_s},
                                     {"ops_per_second", rates.ops_per_s},
                                     {"call_seconds", rates.call_s}});
  }
  for (const RowRates& rates : processor.rows) rows.push_back(RowsJson(rates));
  for (const Feature& feature : kFeatures) features[feature.name] = processor.features.*feature.value;
  for (const ComputePeak& peak : processor.peaks) peaks[ArithmeticName(peak.arithmetic)] = PeakJson(peak);
  json::value model;
  if (!processor.model.empty()) model = ReplaceInvalidUtf8(processor.model);
  return {{"name", processor.name},
          {"model", std::move(model)},
          {"tier", processor.tier},
          {"cpus", processor.num_cpus},
          {"features", std::move(features)},
          {"peaks", std::move(peaks)},
          {"gemm", std::move(gemm)},
          {"attention", std::move(attention)},
          {"rows", std::move(rows)},
          {"compute_efficiency", processor.compute_efficiency},
          {"memory_efficiency", processor.memory_efficiency},
          {"call_seconds", processor.call_s}};
}

json::object TierJson(const MemoryTier& tier) {
  json::array rates;
  for (const MemoryRates& rate : tier.rates) {
    json::object object = {{"threads", rate.num_threads}, {"read_bytes_per_second", rate.read_bytes_per_s}};
    // No caller needs these rates of a device's memory.
    if (rate.write_bytes_per_s > 0) object["write_bytes_per_second"] = rate.write_bytes_per_s;
    if (rate.copy_bytes_per_s > 0) object["copy_bytes_per_second"] = rate.copy_bytes_per_s;
    rates.push_back(std::move(object));
  }
  json::object object = {{"name", tier.name}, {"capacity_bytes", tier.capacity_bytes}, {"rates", std::move(rates)}};
  if (tier.first_use_bytes_per_s > 0) object["first_use_bytes_per_second"] = tier.first_use_bytes_per_s;
  return object;
}

// Reads the fields and remembers the first one that is not as expected.
class HardwareReader {
 public:
  const absl::Status& status() const { return status_; }

  Hardware Read(const json::value& value) {
    Hardware hardware;
    const json::object& object = Object(value, "hardware");
    for (const json::value& item : Array(object, "processors")) hardware.processors.push_back(ReadProcessor(item));
    for (const json::value& item : Array(object, "tiers")) hardware.tiers.push_back(ReadTier(item));
    for (const json::value& item : Array(object, "links")) {
      hardware.links.push_back(ReadLink(item));
    }
    return hardware;
  }

 private:
  Processor ReadProcessor(const json::value& value) {
    const json::object& object = Object(value, "processors");
    Processor processor;
    processor.name = Text(object, "name");
    if (const json::value* model = object.if_contains("model"); model != nullptr && model->is_string()) {
      processor.model = std::string(model->get_string());
    }
    if (object.contains("tier")) processor.tier = Text(object, "tier");
    processor.num_cpus = Count(object, "cpus");
    processor.compute_efficiency = NumberOr(object, "compute_efficiency", 1, 1e-6, 1);
    processor.memory_efficiency = NumberOr(object, "memory_efficiency", 1, 1e-6, 1);
    processor.call_s = NumberOr(object, "call_seconds", 0, 0, 3600);
    if (const json::value* features = object.if_contains("features")) {
      for (const Feature& feature : kFeatures) {
        const json::value* has = Object(*features, "features").if_contains(json::string_view(feature.name));
        processor.features.*feature.value = has != nullptr && has->is_bool() && has->get_bool();
      }
    }
    const json::value* peaks = object.if_contains("peaks");
    if (peaks != nullptr && !Object(*peaks, "peaks").empty()) {
      for (const Arithmetic arithmetic : kAllArithmetics) {
        ComputePeak peak{.arithmetic = arithmetic};
        const json::value* found = Object(*peaks, "peaks").if_contains(json::string_view(ArithmeticName(arithmetic)));
        if (found != nullptr && !found->is_null()) {
          const json::object& rates = Object(*found, "peaks");
          peak.instructions = Text(rates, "instructions");
          for (const json::value& item : Array(rates, "rates")) {
            const json::object& rate = Object(item, "rates");
            peak.rates.push_back({Count(rate, "threads"), Rate(rate, "ops_per_second")});
          }
        }
        processor.peaks.push_back(std::move(peak));
      }
    }
    for (const json::value& item : Array(object, "gemm")) processor.gemm.push_back(ReadGemm(item));
    for (const json::value& item : Array(object, "attention")) {
      const json::object& rates = Object(item, "attention");
      processor.attention.push_back({Count(rates, "threads"), Text(rates, "kv"), Rate(rates, "bytes_per_second"),
                                     Rate(rates, "ops_per_second"), NumberOr(rates, "call_seconds", 0, 0, 3600)});
    }
    for (const json::value& item : Array(object, "rows")) processor.rows.push_back(ReadRows(item));
    return processor;
  }

  RowRates ReadRows(const json::value& value) {
    const json::object& object = Object(value, "rows");
    RowRates rates{.num_threads = Count(object, "threads"), .draw_s = NumberOr(object, "draw_seconds", 0, 0, 3600)};
    for (const json::value& item : Array(object, "points")) {
      const json::object& point = Object(item, "points");
      rates.points.push_back({Rate(point, "rows"), NumberOr(point, "embed_seconds", 0, 0, 3600),
                              NumberOr(point, "attention_seconds", 0, 0, 3600),
                              NumberOr(point, "routed_seconds", 0, 0, 3600)});
      const size_t count = rates.points.size();
      if (count > 1 && rates.points[count - 1].rows <= rates.points[count - 2].rows) {
        Refuse("rows", "values that grow from point to point");
      }
    }
    if (rates.points.empty()) Refuse("points", "at least one");
    return rates;
  }

  GemmRates ReadGemm(const json::value& value) {
    const json::object& object = Object(value, "gemm");
    GemmRates rates{.num_threads = Count(object, "threads"), .weights = Text(object, "weights")};
    const std::string arithmetic = Text(object, "arithmetic");
    const auto known = std::find_if(std::begin(kAllArithmetics), std::end(kAllArithmetics),
                                    [&](Arithmetic a) { return ArithmeticName(a) == arithmetic; });
    if (known == std::end(kAllArithmetics)) {
      Refuse("arithmetic", "f32, bf16 or int8");
    } else {
      rates.arithmetic = *known;
    }
    for (const json::value& item : Array(object, "points")) {
      const json::object& point = Object(item, "points");
      rates.points.push_back({Rate(point, "ops_per_byte"), Rate(point, "seconds_per_byte")});
      const size_t count = rates.points.size();
      if (count > 1 && rates.points[count - 1].ops_per_byte <= rates.points[count - 2].ops_per_byte) {
        Refuse("ops_per_byte", "values that grow from point to point");
      }
    }
    if (rates.points.empty()) Refuse("points", "at least one");
    rates.pack_s = NumberOr(object, "pack_seconds_per_byte", 0, 0, 3600);
    return rates;
  }

  Link ReadLink(const json::value& value) {
    const json::object& object = Object(value, "links");
    Link link{.name = Text(object, "name"),
              .bytes_per_s = Rate(object, "bytes_per_second"),
              .latency_s = NumberOr(object, "latency_seconds", 0, 0, 3600),
              .cpu_s = NumberOr(object, "cpu_seconds", 0, 0, 3600)};
    for (const json::value& item : Array(object, "rates")) {
      const json::object& rate = Object(item, "rates");
      link.rates.push_back(
          {Whole(rate, "transfer_bytes", uint64_t{1} << 60), Count(rate, "under_way"), Rate(rate, "bytes_per_second")});
      const size_t count = link.rates.size();
      if (count > 1 && link.rates[count - 1].transfer_bytes < link.rates[count - 2].transfer_bytes) {
        Refuse("transfer_bytes", "sizes that grow from rate to rate");
      }
      if (count > 1 && link.rates[count - 1].transfer_bytes == link.rates[count - 2].transfer_bytes &&
          link.rates[count - 1].num_under_way <= link.rates[count - 2].num_under_way) {
        Refuse("under_way", "numbers that grow within a size");
      }
    }
    return link;
  }

  MemoryTier ReadTier(const json::value& value) {
    const json::object& object = Object(value, "tiers");
    MemoryTier tier;
    tier.name = Text(object, "name");
    tier.capacity_bytes = Whole(object, "capacity_bytes", uint64_t{1} << 60);
    tier.first_use_bytes_per_s = RateOr0(object, "first_use_bytes_per_second");
    for (const json::value& item : Array(object, "rates")) {
      const json::object& rates = Object(item, "rates");
      tier.rates.push_back({Count(rates, "threads"), Rate(rates, "read_bytes_per_second"),
                            RateOr0(rates, "write_bytes_per_second"), RateOr0(rates, "copy_bytes_per_second")});
    }
    return tier;
  }

  const json::object& Object(const json::value& value, std::string_view field) {
    if (value.is_object()) return value.get_object();
    Refuse(field, "an object");
    return no_object_;
  }
  // Returns an empty array when the field is missing.
  const json::array& Array(const json::object& object, std::string_view field) {
    const json::value* found = object.if_contains(json::string_view(field));
    if (found == nullptr) return no_array_;
    if (found->is_array()) return found->get_array();
    Refuse(field, "an array");
    return no_array_;
  }
  std::string Text(const json::object& object, std::string_view field) {
    const json::value* found = object.if_contains(json::string_view(field));
    if (found != nullptr && found->is_string()) return std::string(found->get_string());
    Refuse(field, "a string");
    return {};
  }
  double Rate(const json::object& object, std::string_view field) {
    const json::value* found = object.if_contains(json::string_view(field));
    if (found != nullptr && found->is_number() && found->to_number<double>() > 0) return found->to_number<double>();
    Refuse(field, "a positive number");
    return 0;
  }
  // Returns 0, which means unknown, when the field is missing.
  double RateOr0(const json::object& object, std::string_view field) {
    return object.if_contains(json::string_view(field)) == nullptr ? 0 : Rate(object, field);
  }
  double NumberOr(const json::object& object, std::string_view field, double absent, double min, double max) {
    const json::value* found = object.if_contains(json::string_view(field));
    if (found == nullptr) return absent;
    const double number = found->is_number() ? found->to_number<double>() : -1;
    if (number >= min && number <= max) return number;
    Refuse(field, fmt::format("a number from {} to {}", min, max));
    return absent;
  }
  uint64_t Whole(const json::object& object, std::string_view field, uint64_t max) {
    const json::value* found = object.if_contains(json::string_view(field));
    boost::system::error_code error;
    const auto number = found != nullptr && found->is_number() ? found->to_number<uint64_t>(error) : 0;
    if (!error.failed() && number >= 1 && number <= max) return number;
    Refuse(field, fmt::format("a whole number from 1 to {}", max));
    return 1;
  }
  int Count(const json::object& object, std::string_view field) {
    return static_cast<int>(Whole(object, field, 1 << 20));
  }
  void Refuse(std::string_view field, std::string_view expected) {
    status_.Update(InputError("the hardware's '{}': expected {}", field, expected));
  }

  const json::object no_object_;
  const json::array no_array_;
  absl::Status status_;
};

// Returns the rates of `num_threads` threads, or the entry with the most threads.
template <typename Rates>
const typename Rates::value_type* RatesOf(const Rates& rates, int num_threads) {
  for (const auto& rate : rates) {
    if (rate.num_threads == num_threads) return &rate;
  }
  return rates.empty() ? nullptr : &rates.back();
}

// Returns the ratio of `num_threads` (0: all) to the measured number of threads.
double ShareOf(int num_threads, int num_measured) {
  return num_threads == 0 ? 1 : std::min(1.0, static_cast<double>(num_threads) / static_cast<double>(num_measured));
}

template <typename List>
auto* FindByName(List& list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.name == name; });
  return found == list.end() ? nullptr : &*found;
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
  json::array processors, tiers, links;
  for (const Link& link : hardware.links) links.push_back(LinkJson(link));
  for (const Processor& processor : hardware.processors) processors.push_back(ProcessorJson(processor));
  for (const MemoryTier& tier : hardware.tiers) tiers.push_back(TierJson(tier));
  return {{"processors", std::move(processors)}, {"tiers", std::move(tiers)}, {"links", std::move(links)}};
}

absl::StatusOr<Hardware> ParseHardware(const json::value& value) {
  HardwareReader reader;
  Hardware hardware = reader.Read(value);
  if (!reader.status().ok()) return reader.status();
  return hardware;
}

double Processor::PeakOps(Arithmetic arithmetic, int num_threads) const {
  double f32 = 0;
  for (const ComputePeak& peak : peaks) {
    const ComputeRate* rate = RatesOf(peak.rates, num_threads);
    if (rate == nullptr) continue;
    const double ops_per_s = rate->ops_per_s * ShareOf(num_threads, rate->num_threads);
    if (peak.arithmetic == arithmetic) return ops_per_s;
    if (peak.arithmetic == Arithmetic::kF32) f32 = ops_per_s;
  }
  return f32;
}

double MemoryTier::ReadRate(int num_threads) const {
  const MemoryRates* found = RatesOf(rates, num_threads);
  // A quarter of the threads reads at the full rate.
  return found == nullptr ? 0 : found->read_bytes_per_s * std::min(1.0, 4 * ShareOf(num_threads, found->num_threads));
}

const Processor* Hardware::FindProcessor(std::string_view name) const { return FindByName(processors, name); }
Processor* Hardware::FindProcessor(std::string_view name) { return FindByName(processors, name); }
const MemoryTier* Hardware::FindTier(std::string_view name) const { return FindByName(tiers, name); }
MemoryTier* Hardware::FindTier(std::string_view name) { return FindByName(tiers, name); }
const Link* Hardware::FindLink(std::string_view name) const { return FindByName(links, name); }
Link* Hardware::FindLink(std::string_view name) { return FindByName(links, name); }

const GemmRates* Processor::FindGemm(std::string_view weights, Arithmetic arithmetic, int num_threads) const {
  const auto found = std::find_if(gemm.begin(), gemm.end(), [&](const GemmRates& rates) {
    return rates.num_threads == num_threads && rates.weights == weights && rates.arithmetic == arithmetic;
  });
  return found == gemm.end() ? nullptr : &*found;
}

const AttentionRates* Processor::FindAttention(std::string_view kv, int num_threads) const {
  const auto found = std::find_if(attention.begin(), attention.end(), [&](const AttentionRates& rates) {
    return rates.num_threads == num_threads && rates.kv == kv;
  });
  return found == attention.end() ? nullptr : &*found;
}

const RowRates* Processor::FindRows(int num_threads) const {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const RowRates& rates) { return rates.num_threads == num_threads; });
  return found == rows.end() ? nullptr : &*found;
}

namespace {

double SecondsOfRows(const std::vector<RowPoint>& points, double rows, double RowPoint::*seconds) {
  if (rows <= 0) return 0;
  if (rows <= points.front().rows) return points.front().*seconds;
  for (size_t i = 1; i < points.size(); ++i) {
    const RowPoint &below = points[i - 1], &above = points[i];
    if (rows > above.rows) continue;
    const double share = (rows - below.rows) / (above.rows - below.rows);
    return below.*seconds + share * (above.*seconds - below.*seconds);
  }
  return rows * points.back().*seconds / points.back().rows;
}

}  // namespace

double RowRates::EmbedSeconds(double rows) const { return SecondsOfRows(points, rows, &RowPoint::embed_s); }

double RowRates::AttentionSeconds(double rows) const { return SecondsOfRows(points, rows, &RowPoint::attention_s); }

double RowRates::RoutedSeconds(double rows) const { return SecondsOfRows(points, rows, &RowPoint::routed_s); }

double GemmRates::Seconds(double ops, double bytes) const {
  if (bytes <= 0) return 0;
  const double intensity = ops / bytes;
  if (intensity <= points.front().ops_per_byte) return bytes * points.front().seconds_per_byte;
  for (size_t i = 1; i < points.size(); ++i) {
    const GemmPoint &below = points[i - 1], &above = points[i];
    if (intensity > above.ops_per_byte) continue;
    const double share = (intensity - below.ops_per_byte) / (above.ops_per_byte - below.ops_per_byte);
    return bytes * (below.seconds_per_byte + share * (above.seconds_per_byte - below.seconds_per_byte));
  }
  return ops * points.back().seconds_per_byte / points.back().ops_per_byte;
}

namespace {

// Returns the seconds of a transfer of the size that these rates have in common, at the best of them.
double BestSeconds(std::span<const TransferRate> of_size, double max_under_way) {
  double best = 0;
  for (size_t i = 0; i < of_size.size(); ++i) {
    const TransferRate& rate = of_size[i];
    if (i == 0 || rate.num_under_way <= max_under_way) {
      best = std::max(best, rate.bytes_per_s);
      continue;
    }
    // The number doubles between measured ones.
    const TransferRate& below = of_size[i - 1];
    const double share = std::log2(max_under_way / below.num_under_way) /
                         std::log2(static_cast<double>(rate.num_under_way) / below.num_under_way);
    best = std::max(best, below.bytes_per_s + share * (rate.bytes_per_s - below.bytes_per_s));
    break;
  }
  return static_cast<double>(of_size.front().transfer_bytes) / best;
}

}  // namespace

double Link::Seconds(uint64_t bytes, double max_under_way) const {
  if (rates.empty() || bytes >= rates.back().transfer_bytes) {
    return latency_s + static_cast<double>(bytes) / bytes_per_s;
  }
  double below_s = 0, below_bytes = 0;
  for (auto first = rates.begin();;) {
    const auto size = first->transfer_bytes;
    const auto end = std::find_if(first, rates.end(), [&](const TransferRate& r) { return r.transfer_bytes != size; });
    const double seconds = BestSeconds({first, end}, std::max(1.0, max_under_way));
    if (bytes <= size) {
      if (below_bytes == 0) return latency_s + seconds;
      const double share = (static_cast<double>(bytes) - below_bytes) / (static_cast<double>(size) - below_bytes);
      return latency_s + below_s + share * (seconds - below_s);
    }
    below_s = seconds;
    below_bytes = static_cast<double>(size);
    first = end;
  }
}

void Link::SetRate(double new_bytes_per_s) {
  for (TransferRate& rate : rates) rate.bytes_per_s *= new_bytes_per_s / bytes_per_s;
  bytes_per_s = new_bytes_per_s;
}

}  // namespace penstock
