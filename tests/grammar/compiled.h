// Compiled output formats for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "tests/grammar/walks.h"

namespace penstock {

// REQUIRES: the format is valid.
inline std::shared_ptr<const Constraint> Compiled(const OutputFormat& format) {
  auto constraint = Constraint::Compile(format, ByteVocabulary());
  EXPECT_TRUE(constraint.ok()) << Message(constraint.status());
  PENSTOCK_CHECK(constraint.ok());
  return *std::move(constraint);
}

}  // namespace penstock
