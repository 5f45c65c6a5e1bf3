// Proves that every preset is a complete machine, survives its JSON, and takes other parts. Proves that an unknown name
// is refused with the list of known ones.
#include "penstock/hardware/presets.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

TEST(Presets, AreWholeMachines) {
  int num_machines = 0;
  for (const PresetInfo& info : AllPresets()) {
    EXPECT_FALSE(info.source.empty()) << info.name;
    if (info.kind != "machine") continue;
    ++num_machines;
    const Hardware hardware = HardwarePreset(info.name).value();
    const Processor* cpu = hardware.FindProcessor("cpu");
    ASSERT_NE(cpu, nullptr) << info.name;
    EXPECT_GT(cpu->PeakOps(Arithmetic::kF32), 1e11);
    EXPECT_GE(cpu->PeakOps(Arithmetic::kBf16), cpu->PeakOps(Arithmetic::kF32)) << info.name;
    ASSERT_NE(hardware.FindTier(cpu->tier), nullptr);
    EXPECT_GT(hardware.FindTier("dram")->ReadRate(), 1e10);
    EXPECT_GT(hardware.FindLink("disk_to_dram")->bytes_per_s, 1e8);
    const Processor* gpu = hardware.FindProcessor("gpu");
    EXPECT_EQ(gpu == nullptr, info.name == "none") << info.name;
    EXPECT_EQ(gpu == nullptr, hardware.FindLink("dram_to_device") == nullptr);
    const absl::StatusOr<Hardware> read = ParseHardware(ToJson(hardware));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(json::serialize(ToJson(*read)), json::serialize(ToJson(hardware)));
  }
  EXPECT_GE(num_machines, 5);
}

TEST(Presets, TakeOtherParts) {
  const Hardware hardware = HardwarePreset("l4:gpu=t4,cpu=epyc-9654,dram=96GiB,disk=nvme5").value();
  EXPECT_EQ(hardware.FindTier("device")->capacity_bytes, uint64_t{16} << 30);
  EXPECT_EQ(hardware.FindTier("dram")->capacity_bytes, uint64_t{96} << 30);
  EXPECT_EQ(hardware.FindProcessor("cpu")->num_cpus, 96);
  EXPECT_GT(hardware.FindLink("disk_to_dram")->bytes_per_s, 1e10);
  EXPECT_EQ(HardwarePreset("l4:gpu=none").value().FindTier("device"), nullptr);
  const Hardware two =
      HardwarePreset("t4:gpus=2,link=6GB/s,copy=5GB/s,disk=1.5GB/s,gpu-call-us=50,gpu-efficiency=0.3").value();
  EXPECT_EQ(two.FindTier("device")->capacity_bytes, uint64_t{32} << 30);
  EXPECT_EQ(two.FindTier("device")->ReadRate(), 2 * HardwarePreset("t4").value().FindTier("device")->ReadRate());
  EXPECT_EQ(two.FindLink("dram_to_device")->bytes_per_s, 6e9);
  EXPECT_EQ(two.FindLink("device_to_dram")->bytes_per_s, 6e9);
  EXPECT_EQ(two.FindLink("disk_to_dram")->bytes_per_s, 1.5e9);
  EXPECT_EQ(two.FindTier("dram")->rates[0].copy_bytes_per_s, 5e9);
  EXPECT_DOUBLE_EQ(two.FindProcessor("gpu")->call_s, 50e-6);
  EXPECT_EQ(two.FindProcessor("gpu")->compute_efficiency, 0.3);
}

TEST(Presets, NetworksHaveNamesOrRates) {
  EXPECT_EQ(NetworkPreset("10gbe").value().name, kRankLink);
  EXPECT_DOUBLE_EQ(NetworkPreset("10gbe").value().bytes_per_s, 0.9 * 1.25e9);
  EXPECT_DOUBLE_EQ(NetworkPreset("1.5GB/s").value().bytes_per_s, 1.5e9);
  for (const PresetInfo& info : AllPresets()) {
    if (info.kind != "network") continue;
    EXPECT_GT(NetworkPreset(info.name).value().latency_s, 0) << info.name;
  }
  const absl::Status unknown = NetworkPreset("string").status();
  EXPECT_EQ(FaultOf(unknown), Fault::kUsage);
  EXPECT_THAT(Message(unknown), testing::HasSubstr("10gbe"));
}

TEST(Presets, NameWhatThereIs) {
  const absl::Status machine = HardwarePreset("cray").status();
  EXPECT_EQ(FaultOf(machine), Fault::kUsage);
  EXPECT_THAT(std::string(machine.message()), testing::HasSubstr("rtx4090"));
  EXPECT_THAT(std::string(HardwarePreset("l4:disk=tape").status().message()), testing::HasSubstr("nvme4"));
  for (const char* spec : {"l4:dram=much", "l4:dram", "l4:ram=1GiB", "l4:link=6GB", "l4:gpus=0", "l4:gpu-efficiency=2",
                           "l4:gpus=2x", ""}) {
    EXPECT_EQ(FaultOf(HardwarePreset(spec).status()), Fault::kUsage) << spec;
  }
}

}  // namespace
}  // namespace penstock
