// Gives each test of jobs its own folder, and shorthands to run a job in it.
#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_engine.h"
#include "penstock/job/job.h"

namespace penstock {

class JobFixture : public testing::Test {
 protected:
  JobFixture() {
    std::string path = (std::filesystem::temp_directory_path() / "penstock-job-XXXXXX").string();
    dir_ = ::mkdtemp(path.data());
    options_.input_paths = {dir_ + "/in.jsonl"};
    options_.output_path = dir_ + "/out.jsonl";
    options_.quiet = true;
  }
  ~JobFixture() override { std::filesystem::remove_all(dir_); }

  void WriteInput(const std::string& text) { WriteFile(options_.input_paths[0], text); }
  static void WriteFile(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  static std::string ReadAll(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static std::vector<std::string> Lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  std::vector<std::string> Output() const { return Lines(ReadAll(options_.output_path)); }
  std::vector<std::string> SortedOutput() const {
    std::vector<std::string> lines = Output();
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  // Returns the one result with this custom_id.
  json::object Result(const std::string& custom_id) const {
    json::object found;
    int count = 0;
    for (const std::string& line : Output()) {
      const json::value value = *ParseJson(line, Fault::kInternal);
      const json::value& id = value.at("custom_id");
      if (!id.is_string() || id.get_string() != custom_id) continue;
      found = value.get_object();
      ++count;
    }
    EXPECT_EQ(count, 1) << custom_id;
    return found;
  }

  absl::StatusOr<JobSummary> Run() {
    return RunJob(
        options_,
        [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          ++num_opened_;
          return std::make_unique<FakeEngine>(engine_);
        },
        stop_);
  }
  // Runs the job and expects this fault, with these texts in its message.
  void ExpectFault(Fault fault, const std::vector<std::string>& texts) {
    const absl::StatusOr<JobSummary> summary = Run();
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(FaultOf(summary.status()), fault) << summary.status();
    for (const std::string& text : texts) EXPECT_THAT(Message(summary.status()), testing::HasSubstr(text));
  }

  static std::string ManyRequests(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      switch (i % 4) {
        case 0: text += fmt::format(R"({{"id": "r{}", "prompt": "same prompt"}})", i); break;
        case 1:
          text += fmt::format(R"({{"custom_id": "r{}", "method": "POST", "url": "/v1/chat/completions", "body": )"
                              R"({{"messages": [{{"role": "user", "content": "hi {}"}}], "max_tokens": 9}}}})",
                              i, i);
          break;
        case 2:
          text += fmt::format(R"({{"question_id": {}, "category": "x", "turns": ["one {}", "two"]}})", i, i);
          break;
        default:
          text += i % 8 == 3 ? fmt::format(R"({{"id": "r{}", "prompt": "p", "max_tokens": 0}})", i) : "{broken";
          break;
      }
      text += "\n";
    }
    return text;
  }

  std::string dir_;
  JobOptions options_;
  FakeEngineOptions engine_;
  std::atomic<bool> stop_{false};
  int num_opened_ = 0;
};

}  // namespace penstock
