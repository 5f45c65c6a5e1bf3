#include "penstock/tokenizer/split/split_regex.h"

#include <algorithm>

#include "penstock/tokenizer/split/unicode.h"

namespace penstock {

using unicode::Rune;
using unicode::RuneAt;

void RuneSet::Finish() {
  for (RuneSet& part : parts_) part.Finish();
  for (RuneSet& set : within_) set.Finish();
  std::sort(ranges_.begin(), ranges_.end());
  for (char32_t c = 0; c < small_.size(); ++c) small_[c] = Compute(c);
}

bool RuneSet::Compute(char32_t c) const {
  bool has = ComputeExact(c);
  if (ignore_case_ && !has) {
    const char32_t upper = unicode::ToUpper(c);
    has = ComputeExact(upper) || ComputeExact(unicode::ToLower(c)) || ComputeExact(unicode::ToLower(upper));
  }
  for (const RuneSet& set : within_) has = has && set.Has(c);
  return has != negated_;
}

bool RuneSet::ComputeExact(char32_t c) const {
  if (categories_ != 0 && (unicode::CategoryBit(c) & categories_) != 0) return true;
  if (classes_ != 0 && (unicode::ClassesOf(c) & classes_) != 0) return true;
  for (const auto& [first, last] : ranges_) {
    if (c >= first && c <= last) return true;
  }
  return std::any_of(parts_.begin(), parts_.end(), [c](const RuneSet& part) { return part.Has(c); });
}

bool SplitRegex::Memo::Has(uint32_t choice, size_t pos) const {
  if (blocks_.empty() || pos > last_set_) return false;
  const auto block = blocks_.find(pos / kBlockBytes);
  if (block == blocks_.end()) return false;
  const size_t bit = choice * kBlockBytes + pos % kBlockBytes;
  return (block->second[bit / 64] >> (bit % 64) & 1) != 0;
}

void SplitRegex::Memo::Set(uint32_t choice, size_t pos) {
  last_set_ = std::max(last_set_, pos);
  std::vector<uint64_t>& block = blocks_[pos / kBlockBytes];
  if (block.empty()) block.resize(num_choices_ * kBlockBytes / 64);
  const size_t bit = choice * kBlockBytes + pos % kBlockBytes;
  block[bit / 64] |= uint64_t{1} << (bit % 64);
}

void SplitRegex::Memo::Forget(size_t pos) {
  for (; first_block_ < pos / kBlockBytes; ++first_block_) blocks_.erase(first_block_);
}

size_t SplitRegex::MatchAt(std::string_view text, size_t pos, Memo& memo) const {
  memo.num_choices_ = num_choices_;
  return Search(text, 0, pos, memo);
}

size_t SplitRegex::Search(std::string_view text, uint32_t pc, size_t pos, Memo& memo) const {
  const size_t base = memo.stack_.size();
  while (true) {
    const Instruction& instruction = program_[pc];
    bool ok = true;
    switch (instruction.op) {
      case Op::kSet: {
        const Rune rune = RuneAt(text, pos);
        ok = rune.num_bytes > 0 && sets_[instruction.a].Has(rune.code_point);
        pos += rune.num_bytes;
        ++pc;
        break;
      }
      case Op::kRun:
      case Op::kPossessive: {
        const bool possessive = instruction.op == Op::kPossessive;
        if (instruction.only_asks && memo.Has(instruction.choice + 1, pos)) return Succeed(base, pos, memo);
        ok = possessive || !memo.Has(instruction.choice, pos);
        if (!ok) break;
        const RuneSet& set = sets_[instruction.a];
        if (possessive) {
          size_t left = instruction.b;
          for (Rune rune = RuneAt(text, pos); left > 0 && rune.num_bytes > 0 && set.Has(rune.code_point);
               rune = RuneAt(text, pos), --left) {
            pos += rune.num_bytes;
          }
          ++pc;
          break;
        }
        // A longer run is useless where a run that begins later is known to fail: no match continues from there.
        const size_t begin = pos;
        for (Rune rune = RuneAt(text, pos); rune.num_bytes > 0 && set.Has(rune.code_point); rune = RuneAt(text, pos)) {
          if (memo.Has(instruction.choice, pos + rune.num_bytes)) break;
          pos += rune.num_bytes;
        }
        memo.stack_.push_back({Memo::Frame::Kind::kRun, pc, pos, begin, pos});
        ++pc;
        break;
      }
      case Op::kChoice:
        if (instruction.only_asks && memo.Has(instruction.choice + 1, pos)) return Succeed(base, pos, memo);
        ok = !memo.Has(instruction.choice, pos);
        if (!ok) break;
        memo.stack_.push_back({Memo::Frame::Kind::kChoice, pc, pos});
        memo.stack_.push_back({Memo::Frame::Kind::kOther, instruction.b, pos});
        pc = instruction.a;
        break;
      case Op::kJump: pc = instruction.a; break;
      case Op::kLook: {
        const bool matches = Search(text, pc + 1, pos, memo) != kNone;
        ok = matches == (instruction.b == 0);
        pc = instruction.a;
        break;
      }
      case Op::kAtomic: {
        const size_t end = Search(text, pc + 1, pos, memo);
        ok = end != kNone;
        pos = end;
        pc = instruction.a;
        break;
      }
      case Op::kDone: return Succeed(base, pos, memo);
      default:
        ok = Assert(instruction, text, pos);
        ++pc;
        break;
    }
    if (!ok && !Resume(text, base, pc, pos, memo)) return kNone;
  }
}

// Records, for look-aheads, which choices led to a match.
size_t SplitRegex::Succeed(size_t base, size_t pos, Memo& memo) const {
  for (size_t i = base; i < memo.stack_.size(); ++i) {
    const Memo::Frame& frame = memo.stack_[i];
    if (frame.kind == Memo::Frame::Kind::kOther || !program_[frame.pc].only_asks) continue;
    memo.Set(program_[frame.pc].choice + 1, frame.kind == Memo::Frame::Kind::kRun ? frame.begin : frame.pos);
  }
  memo.stack_.resize(base);
  return pos;
}

bool SplitRegex::Assert(const Instruction& instruction, std::string_view text, size_t pos) const {
  const auto before = [&] { return pos == 0 ? Rune() : RuneAt(text, unicode::PreviousRune(text, pos)); };
  switch (instruction.op) {
    case Op::kLookBehind: {
      const Rune rune = before();
      return (rune.num_bytes > 0 && sets_[instruction.a].Has(rune.code_point)) == (instruction.b == 0);
    }
    case Op::kTextBegin: return pos == 0;
    case Op::kTextEnd: return pos == text.size();
    case Op::kLineBegin: return pos == 0 || text[pos - 1] == '\n';
    case Op::kLineEnd: return pos == text.size() || text[pos] == '\n';
    default: {
      const bool boundary = before().Is(unicode::kWord) != RuneAt(text, pos).Is(unicode::kWord);
      return boundary == (instruction.b == 0);
    }
  }
}

// Backtracks to the last choice above `base` that has another alternative. Returns false if there is none.
bool SplitRegex::Resume(std::string_view text, size_t base, uint32_t& pc, size_t& pos, Memo& memo) const {
  while (memo.stack_.size() > base) {
    Memo::Frame& frame = memo.stack_.back();
    switch (frame.kind) {
      case Memo::Frame::Kind::kOther:
        pc = frame.pc;
        pos = frame.pos;
        memo.stack_.pop_back();
        return true;
      case Memo::Frame::Kind::kChoice:
        memo.Set(program_[frame.pc].choice, frame.pos);
        memo.stack_.pop_back();
        break;
      case Memo::Frame::Kind::kRun:
        if (frame.pos > frame.begin) {
          frame.pos = unicode::PreviousRune(text, frame.pos);
          pc = frame.pc + 1;
          pos = frame.pos;
          return true;
        }
        // No match continues from any place of the run, so a run that begins at one of these places fails, too.
        for (size_t place = frame.begin; place <= frame.end;
             place += std::max<size_t>(1, RuneAt(text, place).num_bytes)) {
          memo.Set(program_[frame.pc].choice, place);
        }
        memo.stack_.pop_back();
        break;
    }
  }
  return false;
}

}  // namespace penstock
