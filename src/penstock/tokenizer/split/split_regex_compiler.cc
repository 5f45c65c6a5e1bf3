#include "penstock/tokenizer/split/split_regex_compiler.h"

#include <utility>

#include "penstock/base/status.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

constexpr size_t kMaxInstructions = 4096;
constexpr uint32_t kMaxRepeats = 1024;

}  // namespace

absl::StatusOr<SplitRegex> SplitRegex::Compile(std::string_view regex, std::string_view where) {
  return SplitRegexCompiler(regex, where).Compile();
}

absl::StatusOr<SplitRegex> SplitRegexCompiler::Compile() {
  rest_ = regex_;
  PENSTOCK_ASSIGN_OR_RETURN(const Node root, Alternatives(Flags(), 0));
  if (!rest_.empty()) return Refuse("a ')' without '('");
  PENSTOCK_RETURN_IF_ERROR(Emit(root, /*only_asks=*/false));
  Add(Op::kDone);
  return std::move(out_);
}

absl::Status SplitRegexCompiler::Refuse(std::string_view what) const {
  return ModelError("{}: the pattern {} is not implemented ({}); the model cannot be tokenized", where_, regex_, what);
}

uint32_t SplitRegexCompiler::Add(Op op, uint32_t a, uint32_t b) {
  out_.program_.push_back({op, a, b});
  return static_cast<uint32_t>(out_.program_.size() - 1);
}

uint32_t SplitRegexCompiler::AddChoice(Op op, bool only_asks) {
  const uint32_t at = Add(op);
  out_.program_[at].choice = out_.num_choices_;
  out_.program_[at].only_asks = only_asks;
  out_.num_choices_ += only_asks ? 2 : 1;
  return at;
}

uint32_t SplitRegexCompiler::AddSet(const RuneSet& set) {
  out_.sets_.push_back(set);
  out_.sets_.back().Finish();
  return static_cast<uint32_t>(out_.sets_.size() - 1);
}

bool SplitRegexCompiler::CanBeEmpty(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kSet: return false;
    case Node::Kind::kSequence:
    case Node::Kind::kAtomic:
      for (const Node& part : node.nodes) {
        if (!CanBeEmpty(part)) return false;
      }
      return true;
    case Node::Kind::kAlternatives:
      for (const Node& part : node.nodes) {
        if (CanBeEmpty(part)) return true;
      }
      return false;
    case Node::Kind::kRepeat: return node.min == 0 || CanBeEmpty(node.nodes[0]);
    default: return true;
  }
}

absl::Status SplitRegexCompiler::Emit(const Node& node, bool only_asks) {
  if (out_.program_.size() > kMaxInstructions) return Refuse("it is too long");
  switch (node.kind) {
    case Node::Kind::kSet: Add(Op::kSet, AddSet(node.set)); return absl::OkStatus();
    case Node::Kind::kSequence:
      for (const Node& part : node.nodes) PENSTOCK_RETURN_IF_ERROR(Emit(part, only_asks));
      return absl::OkStatus();
    case Node::Kind::kAlternatives: {
      std::vector<uint32_t> jumps;
      for (size_t i = 0; i + 1 < node.nodes.size(); ++i) {
        const uint32_t choice = AddChoice(Op::kChoice, only_asks);
        out_.program_[choice].a = choice + 1;
        PENSTOCK_RETURN_IF_ERROR(Emit(node.nodes[i], only_asks));
        jumps.push_back(Add(Op::kJump));
        out_.program_[choice].b = static_cast<uint32_t>(out_.program_.size());
      }
      PENSTOCK_RETURN_IF_ERROR(Emit(node.nodes.back(), only_asks));
      for (const uint32_t jump : jumps) out_.program_[jump].a = static_cast<uint32_t>(out_.program_.size());
      return absl::OkStatus();
    }
    case Node::Kind::kRepeat: return EmitRepeat(node, only_asks);
    case Node::Kind::kLook:
    case Node::Kind::kAtomic: {
      const bool looks = node.kind == Node::Kind::kLook;
      const uint32_t at = Add(looks ? Op::kLook : Op::kAtomic, 0, node.negated ? 1 : 0);
      PENSTOCK_RETURN_IF_ERROR(Emit(node.nodes[0], looks));
      Add(Op::kDone);
      out_.program_[at].a = static_cast<uint32_t>(out_.program_.size());
      return absl::OkStatus();
    }
    case Node::Kind::kLookBehind: Add(Op::kLookBehind, AddSet(node.set), node.negated ? 1 : 0); return absl::OkStatus();
    case Node::Kind::kAnchor: Add(node.anchor, 0, node.negated ? 1 : 0); return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status SplitRegexCompiler::EmitRepeat(const Node& node, bool only_asks) {
  const Node& body = node.nodes[0];
  for (uint32_t i = 0; i < node.min; ++i) PENSTOCK_RETURN_IF_ERROR(Emit(body, only_asks));
  if (node.max == kUnlimited) {
    if (CanBeEmpty(body)) return Refuse("it repeats a part that may be empty");
    if (body.kind == Node::Kind::kSet && !node.lazy) {
      const uint32_t set = AddSet(body.set);
      out_.program_[AddChoice(Op::kRun, only_asks)].a = set;
      return absl::OkStatus();
    }
    const uint32_t choice = AddChoice(Op::kChoice, only_asks);
    PENSTOCK_RETURN_IF_ERROR(Emit(body, only_asks));
    Add(Op::kJump, choice);
    out_.program_[choice].a = choice + 1;
    out_.program_[choice].b = static_cast<uint32_t>(out_.program_.size());
    if (node.lazy) std::swap(out_.program_[choice].a, out_.program_[choice].b);
    return absl::OkStatus();
  }
  std::vector<uint32_t> choices;
  for (uint32_t i = node.min; i < node.max; ++i) {
    choices.push_back(AddChoice(Op::kChoice, only_asks));
    PENSTOCK_RETURN_IF_ERROR(Emit(body, only_asks));
  }
  for (const uint32_t choice : choices) {
    out_.program_[choice].a = choice + 1;
    out_.program_[choice].b = static_cast<uint32_t>(out_.program_.size());
    if (node.lazy) std::swap(out_.program_[choice].a, out_.program_[choice].b);
  }
  return absl::OkStatus();
}

bool SplitRegexCompiler::Take(std::string_view prefix) {
  if (!rest_.starts_with(prefix)) return false;
  rest_.remove_prefix(prefix.size());
  return true;
}

char32_t SplitRegexCompiler::TakeRune() {
  const unicode::Rune rune = unicode::RuneAt(rest_, 0);
  rest_.remove_prefix(rune.num_bytes);
  return rune.code_point;
}

SplitRegexCompiler::Node SplitRegexCompiler::SetOf(char32_t rune, Flags flags) const {
  Node node{.kind = Node::Kind::kSet};
  node.set.AddRange(rune, rune);
  if (flags.ignore_case) node.set.IgnoreCase();
  return node;
}

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Alternatives(Flags flags, int depth) {
  if (depth > 16) return Refuse("groups are nested more than 16 deep");
  Node node{.kind = Node::Kind::kAlternatives};
  do {
    PENSTOCK_ASSIGN_OR_RETURN(Node sequence, Sequence(flags, depth));
    node.nodes.push_back(std::move(sequence));
  } while (Take("|"));
  return node;
}

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Sequence(Flags& flags, int depth) {
  Node node{.kind = Node::Kind::kSequence};
  while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
    PENSTOCK_ASSIGN_OR_RETURN(Node item, Item(flags, depth));
    PENSTOCK_ASSIGN_OR_RETURN(item, Quantified(std::move(item)));
    node.nodes.push_back(std::move(item));
  }
  return node;
}

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Item(Flags& flags, int depth) {
  if (Take("(")) return Group(flags, depth);
  if (Take("\\")) return Escape(flags);
  if (Take("[")) {
    Node node{.kind = Node::Kind::kSet};
    PENSTOCK_ASSIGN_OR_RETURN(node.set, Class(flags, depth));
    return node;
  }
  if (Take("^")) return Node{.kind = Node::Kind::kAnchor, .anchor = Op::kLineBegin};
  if (Take("$")) return Node{.kind = Node::Kind::kAnchor, .anchor = Op::kLineEnd};
  if (Take(".")) {
    Node node{.kind = Node::Kind::kSet};
    if (!flags.dot_all) node.set.AddRange('\n', '\n');
    node.set.Negate();
    return node;
  }
  if (rest_[0] == '*' || rest_[0] == '+' || rest_[0] == '?') return Refuse("a quantifier without anything before it");
  return SetOf(TakeRune(), flags);
}

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Group(Flags& flags, int depth) {
  Flags inner = flags;
  Node group{.kind = Node::Kind::kSequence};
  if (Take("?:")) {
  } else if (Take("?=") || Take("?!")) {
    group.kind = Node::Kind::kLook;
    group.negated = rest_.data()[-1] == '!';
  } else if (Take("?>")) {
    group.kind = Node::Kind::kAtomic;
  } else if (Take("?<=") || Take("?<!")) {
    group.kind = Node::Kind::kLookBehind;
    group.negated = rest_.data()[-1] == '!';
  } else if (Take("?")) {
    bool value = true;
    while (!rest_.empty() && rest_[0] != ')' && rest_[0] != ':') {
      const char letter = rest_[0];
      rest_.remove_prefix(1);
      if (letter == '-') {
        value = false;
      } else if (letter == 'i') {
        inner.ignore_case = value;
      } else if (letter == 's') {
        inner.dot_all = value;
      } else {
        return Refuse("an unknown kind of group");
      }
    }
    if (Take(")")) {  // the flags hold until the end of the enclosing group
      flags = inner;
      return group;
    }
    if (!Take(":")) return Refuse("a group is not closed");
  }
  PENSTOCK_ASSIGN_OR_RETURN(Node body, Alternatives(inner, depth + 1));
  if (!Take(")")) return Refuse("a group is not closed");
  if (group.kind != Node::Kind::kLookBehind) {
    group.nodes.push_back(std::move(body));
    return group;
  }
  const bool is_set =
      body.nodes.size() == 1 && body.nodes[0].nodes.size() == 1 && body.nodes[0].nodes[0].kind == Node::Kind::kSet;
  if (!is_set) return Refuse("a look-behind at more than one character");
  group.set = body.nodes[0].nodes[0].set;
  return group;
}

bool SplitRegexCompiler::ReadBounds(uint32_t& min, uint32_t& max) {
  const std::string_view saved = rest_;
  const auto number = [this](uint32_t& value) {
    const size_t size = rest_.size();
    value = 0;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9' && value < 1'000'000) {
      value = value * 10 + static_cast<uint32_t>(rest_[0] - '0');
      rest_.remove_prefix(1);
    }
    return rest_.size() < size;
  };
  bool ok = Take("{");
  const bool has_min = ok && number(min);
  if (!Take(",")) {
    max = min;
    ok = ok && has_min;
  } else if (!number(max)) {
    max = kUnlimited;
    ok = ok && has_min;
  }
  ok = ok && Take("}");
  if (!ok) rest_ = saved;
  return ok;
}

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Quantified(Node item) {
  uint32_t min = 0;
  uint32_t max = kUnlimited;
  const bool is_bounds = !rest_.empty() && rest_[0] == '{';
  if (Take("*")) {
  } else if (Take("+")) {
    min = 1;
  } else if (Take("?")) {
    max = 1;
  } else if (!is_bounds || !ReadBounds(min, max)) {
    return item;
  }
  if (min > max || min > kMaxRepeats || (max != kUnlimited && max > kMaxRepeats))
    return Refuse("bounds of a repetition");
  Node repeat{.kind = Node::Kind::kRepeat, .min = min, .max = max};
  repeat.nodes.push_back(std::move(item));
  repeat.lazy = Take("?");
  if (repeat.lazy || !Take("+")) return Quantified(std::move(repeat));
  Node atomic{.kind = Node::Kind::kAtomic};
  atomic.nodes.push_back(std::move(repeat));
  return Quantified(std::move(atomic));
}

}  // namespace penstock
