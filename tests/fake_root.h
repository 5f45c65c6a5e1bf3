// A folder that stands for the root of the file system, with files such as /proc/self/cgroup.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <unistd.h>

namespace penstock {

class FakeRoot {
 public:
  FakeRoot() : path_(testing::TempDir() + "/fake-root-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file by its absolute path; makes its folders.
  void Write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + name).parent_path());
    std::ofstream(path_ + name) << content;
  }

 private:
  std::string path_;
};

}  // namespace penstock
