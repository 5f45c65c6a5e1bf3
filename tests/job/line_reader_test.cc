// Proves that lines are read as they were written, for all line ends, byte-order marks and lengths. A line over the
// limit is recognised and skipped in constant memory. Offsets and lengths cover the file without gaps.
#include "penstock/job/input/line_reader.h"

#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/mman.h>
#include <unistd.h>

#include "penstock/base/file.h"

namespace penstock {
namespace {

struct OwnedLine {
  std::string text;
  bool terminated;
  bool too_long;
  uint64_t offset;
  uint64_t num_bytes;
};

std::vector<OwnedLine> ReadLines(const std::string& content, uint64_t max_line_bytes,
                                 uint64_t* buffer_bytes = nullptr) {
  const UniqueFd fd(::memfd_create("lines", MFD_CLOEXEC));
  EXPECT_TRUE(WriteFully(fd.get(), content, "memfd").ok());
  LineReader reader(fd.get(), "memfd", max_line_bytes);
  std::vector<OwnedLine> lines;
  Line line;
  while (*reader.Next(line)) {
    lines.push_back({std::string(line.text), line.terminated, line.too_long, line.offset, line.num_bytes});
    EXPECT_EQ(line.number, static_cast<int64_t>(lines.size()));
  }
  if (buffer_bytes != nullptr) *buffer_bytes = reader.buffer_bytes();
  return lines;
}

TEST(LineReader, EndsAndMarks) {
  EXPECT_TRUE(ReadLines("", 10).empty());
  const auto lines = ReadLines(
      "\xEF\xBB\xBF"
      "a\r\n\n\xEF\xBB\xBFz\r\r\nlast\r",
      10);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].text, "a");
  EXPECT_EQ(lines[1].text, "");
  EXPECT_EQ(lines[2].text, "\xEF\xBB\xBFz\r");
  EXPECT_EQ(lines[3].text, "last\r");
  EXPECT_FALSE(lines[3].terminated);
}

TEST(LineReader, TheLimitIsExact) {
  const auto lines = ReadLines("12345\r\n123456\n12345", 5);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_FALSE(lines[0].too_long);
  EXPECT_TRUE(lines[1].too_long);
  EXPECT_EQ(lines[1].text, "12345");
  EXPECT_EQ(lines[1].num_bytes, 6u);
  EXPECT_FALSE(lines[2].too_long);
}

TEST(LineReader, AHugeLineIsSkippedInConstantMemory) {
  uint64_t buffer_bytes = 0;
  const auto lines = ReadLines(std::string(20 << 20, 'x') + "\nnext\n", 1 << 20, &buffer_bytes);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].too_long);
  EXPECT_EQ(lines[0].num_bytes, 20u << 20);
  EXPECT_EQ(lines[1].text, "next");
  EXPECT_LT(buffer_bytes, 4u << 20);
}

TEST(LineReader, AnyFileIsTiled) {
  EXPECT_TRUE(rc::check("lines tile the file", [](const std::vector<uint16_t>& lengths, bool last_newline) {
    std::string content;
    std::vector<std::string> wanted;
    for (const uint16_t length : lengths) {
      wanted.emplace_back(length, static_cast<char>('a' + length % 26));
      content += wanted.back() + "\n";
    }
    if (!last_newline && !content.empty() && !wanted.back().empty()) content.pop_back();
    const auto lines = ReadLines(content, 1 << 20);
    RC_ASSERT(lines.size() == wanted.size());
    uint64_t offset = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      RC_ASSERT(lines[i].text == wanted[i]);
      RC_ASSERT(lines[i].offset == offset);
      offset += lines[i].num_bytes + (lines[i].terminated ? 1 : 0);
    }
    RC_ASSERT(offset == content.size());
  }));
}

}  // namespace
}  // namespace penstock
