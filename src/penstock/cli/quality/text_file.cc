#include "penstock/cli/quality/text_file.h"

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::cli {

absl::StatusOr<std::string> ReadTextFlag(const std::string& path) {
  constexpr uint64_t kMaxTextBytes = 64 * kMiB;
  absl::StatusOr<std::string> text = ReadFileOrStdin(path, kMaxTextBytes);
  if (!text.ok()) return Annotate(text.status(), "--text names a file");
  if (!IsUtf8(*text)) {
    return InputError("{}: the text is not UTF-8 (at byte {})", Printable(path), FindInvalidUtf8(*text));
  }
  return text;
}

}  // namespace penstock::cli
