// Compiles the text of a regular expression to a program of SplitRegex.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/tokenizer/split/split_regex.h"

namespace penstock {

class SplitRegexCompiler {
 public:
  SplitRegexCompiler(std::string_view regex, std::string_view where) : regex_(regex), where_(where) {}

  absl::StatusOr<SplitRegex> Compile();

 private:
  using Op = SplitRegex::Op;
  struct Node {
    enum class Kind : uint8_t { kSet, kSequence, kAlternatives, kRepeat, kLook, kAtomic, kLookBehind, kAnchor } kind;
    std::vector<Node> nodes = {};
    RuneSet set = {};
    uint32_t min = 0;  // kRepeat
    uint32_t max = 0;
    bool lazy = false;
    bool negated = false;   // kLook, kLookBehind and \B
    Op anchor = Op::kDone;  // kAnchor
  };
  struct Flags {
    bool ignore_case = false;
    bool dot_all = false;
  };
  static constexpr uint32_t kUnlimited = UINT32_MAX;

  // Parsing: each function removes what it reads from the front of rest_.
  absl::StatusOr<Node> Alternatives(Flags flags, int depth);
  absl::StatusOr<Node> Sequence(Flags& flags, int depth);
  absl::StatusOr<Node> Item(Flags& flags, int depth);
  absl::StatusOr<Node> Group(Flags& flags, int depth);
  absl::StatusOr<Node> Escape(Flags flags);
  absl::StatusOr<Node> Quantified(Node item);
  absl::StatusOr<RuneSet> Class(Flags flags, int depth);
  absl::Status ClassItem(RuneSet& set, Flags flags, int depth);
  absl::StatusOr<RuneSet> EscapedSet(char letter);
  absl::StatusOr<RuneSet> Property(bool negated);
  absl::StatusOr<char32_t> EscapedRune();
  bool ReadBounds(uint32_t& min, uint32_t& max);

  bool Take(std::string_view prefix);
  char32_t TakeRune();
  Node SetOf(char32_t rune, Flags flags) const;
  absl::Status Refuse(std::string_view what) const;

  // Code generation.
  absl::Status Emit(const Node& node, bool only_asks);
  absl::Status EmitRepeat(const Node& node, bool only_asks);
  uint32_t Add(Op op, uint32_t a = 0, uint32_t b = 0);
  uint32_t AddChoice(Op op, bool only_asks);
  uint32_t AddSet(const RuneSet& set);
  static bool CanBeEmpty(const Node& node);

  std::string_view regex_;
  std::string_view where_;
  std::string_view rest_;
  SplitRegex out_;
};

}  // namespace penstock
