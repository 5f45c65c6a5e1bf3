// Headers precompiled once for all tests, as precompiled.h is for the libraries.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "precompiled.h"
