#include "penstock/cli/quality/text_file.h"

#include <filesystem>
#include <system_error>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::cli {

absl::StatusOr<std::string> ReadTextFlag(const std::string& path, uint64_t memory_bytes) {
  constexpr uint64_t kMaxTextBytes = 64 * kMiB;
  std::error_code error;
  const uintmax_t num_bytes = path == "-" ? 0 : std::filesystem::file_size(path, error);
  if (!error && memory_bytes > 0 && num_bytes > memory_bytes) {
    return ResourceError("{}: the text has {}, more than the {} of --memory", Printable(path), FormatBytes(num_bytes),
                         FormatBytes(memory_bytes));
  }
  absl::StatusOr<std::string> text = ReadFileOrStdin(path, kMaxTextBytes);
  if (!text.ok()) return Annotate(text.status(), "--text names a file");
  if (!IsUtf8(*text)) {
    return InputError("{}: the text is not UTF-8 (at byte {})", Printable(path), FindInvalidUtf8(*text));
  }
  return text;
}

}  // namespace penstock::cli
