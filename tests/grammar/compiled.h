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
  auto automaton = grammar::CompileFormat(format);
  EXPECT_TRUE(automaton.ok()) << Message(automaton.status());
  PENSTOCK_CHECK(automaton.ok());
  return std::make_shared<const Constraint>(format, *std::move(automaton), ByteTrie());
}

}  // namespace penstock
