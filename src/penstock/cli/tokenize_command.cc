#include "penstock/cli/commands.h"

#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock::cli {
namespace {

constexpr uint64_t kMaxTokenizedBytes = 1 * kGiB;

absl::StatusOr<std::string> DecodeLine(const Tokenizer& tokenizer, std::string_view line, SkipSpecial skip_special) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value value, ParseJson(line, Fault::kInput));
  if (!value.is_array()) return InputError("expected a JSON array of token ids, found {}", JsonTypeName(value));
  std::vector<TokenId> ids;
  for (const json::value& entry : value.get_array()) {
    if (!entry.is_int64() || entry.get_int64() < 0 || entry.get_int64() >= tokenizer.vocab_size()) {
      return InputError("expected token ids from 0 to {}, found {}", tokenizer.vocab_size() - 1,
                        json::serialize(entry));
    }
    ids.push_back(static_cast<TokenId>(entry.get_int64()));
  }
  return tokenizer.Decode(ids, skip_special);
}

std::string EncodeLine(const Tokenizer& tokenizer, std::string_view line, const TokenizeFlags& flags) {
  const std::vector<TokenId> ids = tokenizer.Encode(line, flags.as_message ? Origin::kMessage : Origin::kTemplate,
                                                    flags.no_special ? AddSpecial::kNo : AddSpecial::kYes);
  return fmt::format("[{}]", fmt::join(ids, ", "));
}

// Calls body(line number, line) for each line of `content`. The last line may lack its newline.
absl::Status ForLines(std::string_view content, absl::FunctionRef<absl::Status(int64_t, std::string_view)> body) {
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = std::min(content.find('\n'), content.size());
    PENSTOCK_RETURN_IF_ERROR(body(number, content.substr(0, end)));
    content.remove_prefix(std::min(content.size(), end + 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> TokenizeCommand(const TokenizeFlags& flags) {
  if (!flags.text && !flags.file) return UsageError("tokenize needs --text TEXT or --file FILE");
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(flags.model_dir));
  if (folder.Has(kPackedIndexFile)) PENSTOCK_RETURN_IF_ERROR(ReadPackedIndex(folder).status());
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder));
  const SkipSpecial skip_special = flags.no_special ? SkipSpecial::kYes : SkipSpecial::kNo;
  const auto convert = [&](std::string_view line) -> absl::StatusOr<std::string> {
    if (flags.decode) return DecodeLine(*tokenizer, line, skip_special);
    return EncodeLine(*tokenizer, line, flags);
  };
  if (flags.text) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string converted, convert(*flags.text));
    PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, converted + "\n", "stdout"));
    return 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(*flags.file, kMaxTokenizedBytes));
  PENSTOCK_RETURN_IF_ERROR(ForLines(content, [&](int64_t number, std::string_view line) -> absl::Status {
    auto converted = convert(line);
    if (!converted.ok()) return Annotate(converted.status(), fmt::format("{}, line {}", *flags.file, number));
    return WriteFully(STDOUT_FILENO, *converted + "\n", "stdout");
  }));
  return 0;
}

}  // namespace penstock::cli
