// Regular expressions that split text into words: alternatives, groups, classes with \p{...}, greedy, lazy and
// possessive quantifiers, look-ahead and anchors, as Hugging Face's tokenizers (Oniguruma) and tiktoken read them.
//
// The search goes back over its choices in the order of those engines, so it finds the same matches. A choice that
// failed at a place is remembered, for the whole text: a text is searched in time linear in its length, whatever the
// pattern. There are no captures and no references to them, which would break that.
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

// A set of code points: ranges, Unicode categories, classes and scripts, other sets, all minus those outside `within`.
class RuneSet {
 public:
  void AddRange(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void AddCategories(uint32_t categories) { categories_ |= categories; }
  void AddClasses(uint16_t classes) { classes_ |= classes; }
  void AddSet(RuneSet set) { parts_.push_back(std::move(set)); }
  void Intersect(RuneSet set) { within_.push_back(std::move(set)); }
  void Negate() { negated_ = !negated_; }
  void IgnoreCase() { ignore_case_ = true; }
  // Makes Has fast for small code points. To be called once, when the set is complete.
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

  // What a search remembers of a text, to be used again while the same text is searched from left to right.
  class Memo {
   public:
    // Is it known of this choice at this place that it fails?
    bool Has(uint32_t choice, size_t pos) const;
    void Set(uint32_t choice, size_t pos);
    // Forgets what lies before `pos`.
    void Forget(size_t pos);

   private:
    friend class SplitRegex;
    struct Frame {
      enum class Kind : uint8_t { kChoice, kOther, kRun } kind;
      uint32_t pc;
      size_t pos;  // kRun: where the run stands now
      size_t begin = 0;
      size_t end = 0;
    };
    static constexpr size_t kBlockBytes = 512;

    absl::flat_hash_map<size_t, std::vector<uint64_t>> blocks_;  // of kBlockBytes places: a bit per choice and place
    size_t first_block_ = 0;
    size_t last_set_ = 0;  // the last place that anything is known of
    size_t num_choices_ = 0;
    std::vector<Frame> stack_;
  };

  // kModel naming the pattern, `where` and what is not understood.
  static absl::StatusOr<SplitRegex> Compile(std::string_view regex, std::string_view where);

  // End of the match that begins at `pos`, or kNone.
  size_t MatchAt(std::string_view text, size_t pos, Memo& memo) const;

 private:
  friend class SplitRegexCompiler;
  enum class Op : uint8_t {
    kSet,           // one code point of sets_[a]
    kRun,           // any number of sets_[a], as many as possible; gives back
    kPossessive,    // the same, without giving back; at most `b` times
    kChoice,        // goes on at `a`, or else at `b`
    kJump,          // goes on at `a`
    kLook,          // what follows here matches and ends with kDone; goes on at `a`; with `b`, it must not match
    kAtomic,        // the same, and its text is taken; no other way is tried
    kLookBehind,    // the code point before is one of sets_[a]; with `b`, it is none
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
    uint32_t choice = 0;     // of kRun and kChoice: their number
    bool only_asks = false;  // of these: inside of a look-ahead, where only it counts whether there is a match. Then
                             // `choice` + 1 is the number of their successes.
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
