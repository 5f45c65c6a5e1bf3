// A folder that lives as long as the object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

namespace penstock {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(testing::TempDir() + "/penstock-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << path_;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock
