// Regular expressions that split text into words: alternatives, groups, classes with \p{...}, greedy, lazy and
// possessive quantifiers, look-ahead and anchors, as Hugging Face's tokenizers (Oniguruma) and tiktoken read them.
//
// The search backtracks in the order of those engines, so it finds the same matches. It remembers for the whole text
// which choice failed at which place, so the time is linear in the text, whatever the pattern. Captures and references
// to them would break that, so there are none.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace penstock {

// A set of code points: ranges, Unicode categories, classes, scripts and other sets, restricted to the sets in
// `within_`.
class RuneSet {
 public:
  void AddRange(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void AddCategories(uint32_t categories) { categories_ |= categories; }
  void AddClasses(uint16_t classes) { classes_ |= classes; }
  void AddSet(RuneSet set) { parts_.push_back(std::move(set)); }
  void Intersect(RuneSet set) { within_.push_back(std::move(set)); }
  void Negate() { negated_ = !negated_; }
  void IgnoreCase() { ignore_case_ = true; }
  // Makes Has fast for small code points. Call it once, when the set is complete.
  void Finish();

  bool Has(char32_t c) const { return c < small_.size() ? small_[c] : Compute(c); }

 private:
  bool Compute(char32_t c) const;
  bool ComputeExact(char32_t c) const;

  std::vector<std::pair<char32_t, char32_t>> ranges_;  // both ends included
  uint32_t categories_ = 0;                            // unicode::CategoryBit
  uint16_t classes_ = 0;                               // unicode::ClassesOf
  std::vector<RuneSet> parts_;
  std::vector<RuneSet> within_;
  bool negated_ = false;
  bool ignore_case_ = false;
  std::bitset<0x800> small_;
};

class SplitRegex {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // The results that a search remembers about a text. Reuse them while the same text is searched from left to right.
  class Memo {
   public:
    // Returns whether this choice is known to fail at this place.
    bool Has(uint32_t choice, size_t pos) const;
    void Set(uint32_t choice, size_t pos);
    // Forgets everything before `pos`.
    void Forget(size_t pos);

   private:
    friend class SplitRegex;
    struct Frame {
      enum class Kind : uint8_t { kChoice, kOther, kRun } kind;
      uint32_t pc;
      size_t pos;  // kRun: where the run ends now
      size_t begin = 0;
      size_t end = 0;
    };
    static constexpr size_t kBlockBytes = 512;

    absl::flat_hash_map<size_t, std::vector<uint64_t>> blocks_;  // each covers kBlockBytes places: one bit per choice
                                                                 // and place
    size_t first_block_ = 0;
    size_t last_set_ = 0;  // the last place with a known result
    size_t num_choices_ = 0;
    std::vector<Frame> stack_;
  };

  // Returns kModel, naming the pattern, `where` and what is not supported.
  static absl::StatusOr<SplitRegex> Compile(std::string_view regex, std::string_view where);

  // Returns the end of the match that begins at `pos`, or kNone.
  size_t MatchAt(std::string_view text, size_t pos, Memo& memo) const;

 private:
  friend class SplitRegexCompiler;
  enum class Op : uint8_t {
    kSet,           // matches one code point of sets_[a]
    kRun,           // matches as many of sets_[a] as possible; backtracks to fewer
    kPossessive,    // matches as many of sets_[a] as possible, at most `b`; does not backtrack
    kChoice,        // continues at `a`, or else at `b`
    kJump,          // continues at `a`
    kLook,          // look-ahead: the code from here to kDone must match (with `b`: must not); continues at `a`
    kAtomic,        // like kLook, but takes the matched text and tries no other way to match it
    kLookBehind,    // the code point before is in sets_[a] (with `b`: is not)
    kTextBegin,     // \A
    kTextEnd,       // \z
    kLineBegin,     // ^
    kLineEnd,       // $
    kWordBoundary,  // \b; with `b`, \B
    kDone,
  };
  struct Instruction {
    Op op = Op::kDone;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t choice = 0;     // kRun and kChoice: their number
    bool only_asks = false;  // kRun and kChoice inside a look-ahead, where only the existence of a match counts. Number
                             // `choice` + 1 then records their successes.
  };

  size_t Search(std::string_view text, uint32_t pc, size_t pos, Memo& memo) const;
  size_t Succeed(size_t base, size_t pos, Memo& memo) const;
  bool Assert(const Instruction& instruction, std::string_view text, size_t pos) const;
  bool Resume(std::string_view text, size_t base, uint32_t& pc, size_t& pos, Memo& memo) const;

  std::vector<Instruction> program_;
  std::vector<RuneSet> sets_;
  uint32_t num_choices_ = 0;
};

}  // namespace penstock
