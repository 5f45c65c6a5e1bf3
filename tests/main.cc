// The main function of a floor's test program. `--file=base/json_test.cc` runs the tests of that file alone; with
// PENSTOCK_TEST_REPORTS=FOLDER each run leaves a report there, named after the file or the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kFileFlag = "--file=";

// A filter that admits the tests of one source file.
std::string FilterOf(std::string_view file) {
  const std::string suffix = "/" + std::string(file);
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(suffix)) continue;
      filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

std::string ReportName(std::string_view program, std::string_view file) {
  std::string name(file.empty() ? program.substr(program.rfind('/') + 1) : file);
  if (name.ends_with(".cc")) name.resize(name.size() - 3);
  std::replace(name.begin(), name.end(), '/', '_');
  return name + ".xml";
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view file;
  if (argc > 1 && std::string_view(argv[1]).starts_with(kFileFlag)) {
    file = std::string_view(argv[1]).substr(kFileFlag.size());
    std::move(argv + 2, argv + argc + 1, argv + 1);
    --argc;
  }
  if (const char* folder = std::getenv("PENSTOCK_TEST_REPORTS")) {
    GTEST_FLAG_SET(output, "xml:" + std::string(folder) + "/" + ReportName(argv[0], file));
  }
  testing::InitGoogleMock(&argc, argv);
  if (!file.empty()) {
    const std::string filter = FilterOf(file);
    if (filter.empty()) {
      std::fprintf(stderr, "%s has no tests of %.*s\n", argv[0], static_cast<int>(file.size()), file.data());
      return 2;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
