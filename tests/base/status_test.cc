// Proves that errors carry their fault as exit code and are one printable line, also when context is added.
#include "penstock/base/status.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Status, EveryMakerHasItsExitCode) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("not made by MakeError")), 1);
  EXPECT_EQ(ExitCode(UsageError("x")), 2);
  EXPECT_EQ(ExitCode(ModelError("x")), 3);
  EXPECT_EQ(ExitCode(InputError("x")), 4);
  EXPECT_EQ(ExitCode(IoError("x")), 5);
  EXPECT_EQ(ExitCode(ResourceError("x")), 6);
  EXPECT_EQ(ExitCode(MakeError(Fault::kStopped, "x")), 7);
  EXPECT_EQ(ExitCode(MakeError(Fault::kInternal, "x")), 1);
}

TEST(Status, NoMakerYieldsOk) {
  for (int fault = 1; fault <= 7; ++fault) {
    const absl::Status status = MakeError(static_cast<Fault>(fault), "x");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(FaultOf(status), static_cast<Fault>(fault));
  }
}

TEST(Status, MessagesAreFormattedAndPrintable) {
  EXPECT_EQ(Message(ModelError("{}: {} of {}", "a\nb\x1b[31m", 3, "\xff")), "a\\nb\\x1b[31m: 3 of \\xff");
}

TEST(Status, AnnotateKeepsFaultAndText) {
  const absl::Status inner = IoError("cannot read '{}'", "\n");
  const absl::Status outer = Annotate(inner, "file\tx");
  EXPECT_EQ(Message(outer), "file\\tx: cannot read '\\n'");
  EXPECT_EQ(FaultOf(outer), Fault::kIo);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InputError("{} is odd", value);
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  PENSTOCK_ASSIGN_OR_RETURN(const int half, Half(value));
  PENSTOCK_RETURN_IF_ERROR(Half(half).status());
  PENSTOCK_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Status, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Message(Quarter(7).status()), "7 is odd");
  EXPECT_EQ(Message(Quarter(6).status()), "3 is odd");
}

}  // namespace
}  // namespace penstock
