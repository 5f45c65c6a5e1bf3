// Proves that an instruction set can be forced by name, that a wrong name is a usage error that lists the right ones,
// and that every table is complete.
#include <algorithm>

#include <gmock/gmock.h>

#include "kernels/kernel_testing.h"
#include "penstock/base/status.h"

namespace penstock::kernels {
namespace {

TEST(DispatchTest, ScalarIsAlwaysThereAndTheBestIsLast) {
  const std::vector<Isa> isas = SupportedIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kScalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(BestIsa(), isas.back());
  EXPECT_EQ(ChooseIsa("").value(), isas.back());
}

TEST(DispatchTest, EverySupportedIsaCanBeForced) {
  for (const Isa isa : SupportedIsas()) EXPECT_EQ(ChooseIsa(IsaName(isa)).value(), isa);
}

TEST(DispatchTest, AnUnknownNameIsAUsageErrorThatNamesTheKnownOnes) {
  const absl::StatusOr<Isa> isa = ChooseIsa("sse9");
  ASSERT_FALSE(isa.ok());
  EXPECT_EQ(FaultOf(isa.status()), Fault::kUsage);
  EXPECT_THAT(Message(isa.status()), ::testing::AllOf(::testing::HasSubstr("sse9"), ::testing::HasSubstr("scalar")));
}

TEST(DispatchTest, AnIsaThatTheMachineLacksIsAUsageError) {
  const std::vector<Isa> isas = SupportedIsas();
  if (isas.size() == 6) GTEST_SKIP() << "this machine supports every instruction set";
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAvx512Amx}) {
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) continue;
    const absl::StatusOr<Isa> chosen = ChooseIsa(IsaName(isa));
    ASSERT_FALSE(chosen.ok());
    EXPECT_EQ(FaultOf(chosen.status()), Fault::kUsage);
    EXPECT_THAT(Message(chosen.status()), ::testing::HasSubstr(std::string(IsaName(isa))));
  }
}

TEST(DispatchTest, TablesAreCompleteAndOfTheirOwn) {
  std::vector<const KernelTable*> tables;
  for (const Isa isa : SupportedIsas()) {
    const KernelTable& table = KernelsFor(isa);
    EXPECT_TRUE(table.prepare_rows && table.gemm && table.norm && table.rope && table.router_topk && table.swiglu &&
                table.attention && table.combine && table.exp && table.soft_cap && table.add && table.to_bf16 &&
                table.to_f32 && table.decode_exponents);
    for (const KernelTable* other : tables) EXPECT_NE(other->gemm, table.gemm);
    tables.push_back(&table);
  }
}

}  // namespace
}  // namespace penstock::kernels
