#include "penstock/grammar/constraint.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "penstock/base/check.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/grammar/trie_walk.h"

namespace penstock {
namespace grammar {
namespace {

// Adds the tokens that end at some nodes that follow each other.
void AddTokens(const TokenTrie& trie, uint32_t first, uint32_t count, std::span<uint64_t> mask) {
  for (const TokenTrie::Node& node : trie.nodes().subspan(first, count)) {
    if (node.token >= 0) AddToken(mask, node.token);
  }
}

// Collects the nodes whose tokens are allowed. They come in increasing order.
class AllowedNodes {
 public:
  void Add(uint32_t first, uint32_t count) {
    num_nodes_ += count;
    if (!ranges_.empty() && ranges_.back().second == first) {
      ranges_.back().second += count;
    } else {
      ranges_.emplace_back(first, first + count);
    }
  }

  // Returns the mask of their tokens. Where most are allowed, as inside of strings, it takes out the others.
  TokenMask Mask(const TokenTrie& trie) const {
    const std::span<const TokenTrie::Node> nodes = trie.nodes();
    if (2 * num_nodes_ <= nodes.size()) {
      TokenMask mask(MaskWords(trie.vocab_size()), 0);
      for (const auto& [first, end] : ranges_) AddTokens(trie, first, end - first, mask);
      return mask;
    }
    TokenMask mask(trie.all_tokens().begin(), trie.all_tokens().end());
    const auto take_out = [&](uint32_t first, uint32_t end) {
      for (const TokenTrie::Node& node : nodes.subspan(first, end - first)) {
        if (node.token >= 0) RemoveToken(mask, node.token);
      }
    };
    uint32_t last_end = 0;
    for (const auto& [first, end] : ranges_) {
      take_out(last_end, first);
      last_end = end;
    }
    take_out(last_end, static_cast<uint32_t>(nodes.size()));
    return mask;
  }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;  // [first, end)
  size_t num_nodes_ = 0;
};

// Returns the classes of the bytes that may come next.
ByteClasses FirstClasses(const Automaton& automaton, std::span<const Thread> threads) {
  ByteClasses classes = 0;
  for (const Thread& thread : threads) {
    for (const ByteEdge& edge : automaton.edges(automaton.state(thread.state))) {
      for (int byte = edge.first; byte <= edge.last; ++byte) {
        classes |= byte < 0x80 ? ClassOf(static_cast<uint8_t>(byte)) : kWideClass | kOtherClass;
      }
    }
  }
  return classes;
}

}  // namespace

}  // namespace grammar

absl::StatusOr<std::shared_ptr<const Constraint>> Constraint::Compile(
    const OutputFormat& format, std::shared_ptr<const grammar::FormatVocabulary> vocabulary) {
  PENSTOCK_ASSIGN_OR_RETURN(grammar::Automaton automaton, grammar::CompileFormat(format));
  return std::shared_ptr<const Constraint>(new Constraint(format, std::move(automaton), std::move(vocabulary)));
}

using grammar::Frame;
using grammar::Matcher;
using grammar::StackId;
using grammar::Thread;

ConstraintState::ConstraintState(std::shared_ptr<const Constraint> constraint, bool begins_text)
    : constraint_(std::move(constraint)), matcher_(constraint_->automaton()), at_start_(begins_text) {
  position_.complete = matcher_.Enter(constraint_->automaton().start(), grammar::kNoStack, position_.threads);
}

// Whether no token can reach a limit of the repetition.
bool ConstraintState::IsFarFromLimits(const Frame& frame) const {
  const grammar::Automaton::Repeat& repeat = matcher_.automaton().repeat(matcher_.automaton().state(frame.state));
  const auto reach = static_cast<int32_t>(constraint_->trie().longest_token()) + 1;
  return Matcher::IsFarFromLimits(repeat, frame.count, reach);
}

// A count matters only if a token can reach one of its limits.
int32_t ConstraintState::NearCount(const Frame& frame) const {
  const grammar::Automaton& automaton = constraint_->automaton();
  const grammar::Automaton::State& state = automaton.state(frame.state);
  if (state.repeat < 0) return frame.count;
  const grammar::Automaton::Repeat& repeat = automaton.repeat(state);
  const auto reach = static_cast<int32_t>(constraint_->trie().longest_token()) + 1;
  if (frame.count < repeat.min) return repeat.min - frame.count > reach ? 0 : frame.count;
  return IsFarFromLimits(frame) ? repeat.min : frame.count;
}

grammar::MaskCache::Key ConstraintState::KeyOf() const {
  constexpr size_t kMaxKey = 1024;  // longer ones are not kept
  grammar::MaskCache::Key key;
  key.push_back(constraint_->id());
  key.push_back(at_start_ ? 1 : 0);
  for (const Thread& thread : position_.threads) {
    key.push_back(thread.state);
    for (StackId stack = thread.stack; stack != grammar::kNoStack && key.size() <= kMaxKey;) {
      const Frame& frame = matcher_.stacks().top(stack);
      key.push_back(frame.state);
      key.push_back(NearCount(frame));
      stack = frame.parent;
    }
    key.push_back(-1);
    if (key.size() > kMaxKey) return {};
  }
  return key;
}

// The part of a thread has the calls that repeat directly around its state, and their counts. Where no token can reach
// a limit of a count, the rule that loops without counting stands for it: its walk is much faster.
std::shared_ptr<const grammar::Part> ConstraintState::PartOf(const Matcher& matcher, const Thread& thread,
                                                             StackId& outer) const {
  const grammar::Automaton& automaton = matcher.automaton();
  std::vector<Frame> frames;
  Thread start{thread.state, grammar::kNoStack};
  for (outer = thread.stack; outer != grammar::kNoStack; outer = matcher.stacks().top(outer).parent) {
    Frame frame = matcher.stacks().top(outer);
    const grammar::Automaton::State& state = automaton.state(frame.state);
    if (state.repeat < 0) break;
    const bool is_first = frames.empty() && start.state == automaton.repeat(state).callee;
    if (is_first && IsFarFromLimits(frame)) {
      start.state = automaton.repeat(state).loop;
      continue;
    }
    frame.count = NearCount(frame);
    frames.push_back(frame);
  }
  grammar::MaskCache::Key key = {constraint_->id(), start.state};
  for (const Frame& frame : frames) key.insert(key.end(), {frame.state, frame.count});
  if (auto part = constraint_->cache().FindPart(key); part != nullptr) return part;
  Matcher inner(automaton);
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    start.stack = inner.stacks().Push({frame->state, frame->count, start.stack});
  }
  const grammar::TokenTrie& trie = constraint_->trie();
  auto part = std::make_shared<grammar::Part>();
  grammar::AllowedNodes allowed;
  const auto visit = [&](uint32_t i, const grammar::TokenTrie::Node& node, bool complete, uint32_t num_alike) {
    allowed.Add(i, 1 + num_alike);
    if (complete && node.num_below > 0) (num_alike > 0 ? part->open_exits : part->exits).push_back(i);
  };
  grammar::TrieWalk(inner, trie).Run(0, static_cast<uint32_t>(trie.nodes().size()), {&start, 1}, visit);
  if (inner.num_steps() > kMaxMaskSteps || inner.has_overflown()) return nullptr;
  part->allowed = grammar::CompactMask(allowed.Mask(trie));
  part->exits.shrink_to_fit();
  part->open_exits.shrink_to_fit();
  constraint_->cache().AddPart(key, part);
  return part;
}

absl::Status ConstraintState::AllowedTokens(std::span<uint64_t> mask) const {
  const absl::Status too_much = InputError("the output format has too many ways to match the answer so far");
  if (matcher_.has_overflown()) return too_much;
  const grammar::MaskCache::Key key = KeyOf();
  if (!key.empty() && constraint_->cache().AddMaskTo(key, mask)) return absl::OkStatus();
  const grammar::TokenTrie& trie = constraint_->trie();
  grammar::TokenMask allowed(grammar::MaskWords(trie.vocab_size()), 0);
  Matcher matcher = matcher_;
  matcher.ResetSteps();
  grammar::TrieWalk walk(matcher, trie);
  for (const Thread& thread : position_.threads) {
    StackId outer = grammar::kNoStack;
    const auto part = PartOf(matcher, thread, outer);
    if (part == nullptr) return too_much;
    part->allowed.AddTo(allowed);
    std::vector<Thread> around;
    if ((part->exits.empty() && part->open_exits.empty()) || outer == grammar::kNoStack) continue;
    matcher.Return(outer, around);
    // The next byte behind the call is mostly one that is nowhere below.
    const grammar::ByteClasses first = grammar::FirstClasses(matcher.automaton(), around);
    const auto follow = [&](uint32_t exit) {
      if ((trie.classes_below(exit) & first) == 0) return;
      walk.Run(exit + 1, exit + 1 + trie.nodes()[exit].num_below, around,
               [&](uint32_t i, const grammar::TokenTrie::Node&, bool, uint32_t num_alike) {
                 grammar::AddTokens(trie, i, 1 + num_alike, allowed);
               });
    };
    for (const uint32_t exit : part->exits) follow(exit);
    for (const uint32_t open : part->open_exits) {
      if ((trie.classes_below(open) & first) == 0) continue;
      for (uint32_t exit = open; exit <= open + trie.nodes()[open].num_below; ++exit) follow(exit);
    }
    if (matcher.num_steps() > kMaxMaskSteps || matcher.has_overflown()) return too_much;
  }
  if (at_start_) {
    const std::span<const uint64_t> changed = trie.changed_at_start();
    for (size_t i = 0; i < allowed.size(); ++i) allowed[i] &= ~changed[i];
  }
  for (size_t i = 0; i < allowed.size(); ++i) mask[i] |= allowed[i];
  if (!key.empty()) constraint_->cache().AddMask(key, grammar::CompactMask(allowed));
  return absl::OkStatus();
}

bool ConstraintState::Accept(TokenId token) {
  const std::string_view text = token >= 0 && token < constraint_->trie().vocab_size() ? TokenText(token) : "";
  if (text.empty() || (at_start_ && grammar::HasToken(constraint_->trie().changed_at_start(), token))) return false;
  grammar::Position next = position_, before;
  for (const char c : text) {
    std::swap(before, next);
    next.threads.clear();
    next.complete = matcher_.Step(before.threads, static_cast<uint8_t>(c), next.threads);
  }
  if (!next.complete && next.threads.empty()) return false;
  position_ = std::move(next);
  at_start_ = false;
  DropOldStacks();
  return true;
}

// Keeps only stacks that threads have. The others were those of earlier bytes.
void ConstraintState::DropOldStacks() {
  constexpr size_t kManyStacks = 4096;
  if (matcher_.stacks().size() < std::max(kManyStacks, 2 * num_kept_stacks_)) return;
  Matcher fresh(constraint_->automaton());
  for (Thread& thread : position_.threads) {
    std::vector<Frame> frames;
    for (StackId stack = thread.stack; stack != grammar::kNoStack; stack = frames.back().parent) {
      frames.push_back(matcher_.stacks().top(stack));
    }
    thread.stack = grammar::kNoStack;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      thread.stack = fresh.stacks().Push({frame->state, frame->count, thread.stack});
    }
  }
  matcher_.ReplaceStacks(fresh);
  num_kept_stacks_ = matcher_.stacks().size();
}

std::string ConstraintState::ForcedText(size_t max_bytes) const {
  std::string text;
  Matcher matcher = matcher_;
  grammar::Position position = position_;
  while (!position.complete && text.size() < max_bytes) {
    int byte = -1;
    for (const Thread& thread : position.threads) {
      const auto edges = matcher.automaton().edges(matcher.automaton().state(thread.state));
      const bool is_one = edges.size() == 1 && edges[0].first == edges[0].last;
      if (!is_one || (byte >= 0 && byte != edges[0].first)) byte = -2;
      if (byte == -2) break;
      byte = edges[0].first;
    }
    if (byte < 0) break;
    std::vector<Thread> next;
    position.complete = matcher.Step(position.threads, static_cast<uint8_t>(byte), next);
    position.threads = std::move(next);
    text += static_cast<char>(byte);
  }
  const size_t valid = FindInvalidUtf8(text);
  return valid == std::string::npos ? text : text.substr(0, valid);
}

}  // namespace penstock
