// Precompiled once for all tests, like precompiled.h for the libraries.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "precompiled.h"
