// Guards of the interpreter: they bound the depth of evaluation and the life of scopes.
#pragma once

#include <memory>

#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

// One level of nesting in a template takes several levels of evaluation: an operator inside an argument inside a tag.
inline constexpr int kFramesPerDepth = 8;

class Interp::Frame {
 public:
  explicit Frame(Interp& interp) : interp_(interp) { ++interp_.frames_; }
  ~Frame() { --interp_.frames_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  bool ok() const { return interp_.frames_ <= interp_.limits_.max_depth * kFramesPerDepth; }

 private:
  Interp& interp_;
};

class Interp::ScopeHolder {
 public:
  ScopeHolder(Interp& interp, Scope* parent) : interp_(interp), scope_(std::make_unique<Scope>(parent)) {}
  ~ScopeHolder() {
    if (scope_->captured()) interp_.kept_scopes_.push_back(std::move(scope_));
  }
  ScopeHolder(const ScopeHolder&) = delete;
  ScopeHolder& operator=(const ScopeHolder&) = delete;
  Scope& operator*() const { return *scope_; }
  Scope* operator->() const { return scope_.get(); }

 private:
  Interp& interp_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace penstock::jinja
