#include "penstock/cli/chat/chat_terminal.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kBlock = "\"\"\"";

std::atomic<int> interrupts{0};
std::atomic<bool> is_busy{false};
// Readable after an interrupt, so that one that comes just before poll() ends the wait too.
int wake_fd = -1;

void OnInterrupt(int) {
  if (interrupts.fetch_add(1) > 0 && is_busy) _exit(static_cast<int>(Fault::kStopped));
  const int saved_errno = errno;
  eventfd_write(wake_fd, 1);
  errno = saved_errno;
}

// Returns the text without control characters, which could change a terminal's state.
std::string Shown(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F || is_c1;
    if (is_c1) ++i;
    is_control ? out.append("\xEF\xBF\xBD") : out.append(1, static_cast<char>(byte));
  }
  return out;
}

bool ChangesColours() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

}  // namespace

MessageReader::MessageReader() : shows_prompt_(::isatty(STDIN_FILENO) == 1) {}

absl::StatusOr<MessageReader::Outcome> MessageReader::NextLine(std::string_view prompt, std::string& line) {
  if (shows_prompt_) PENSTOCK_RETURN_IF_ERROR(WriteFully(STDERR_FILENO, prompt, "stderr"));
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (at_end_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      return Outcome::kMessage;
    }
    if (at_end_) return Outcome::kEnd;
    eventfd_t count = 0;
    eventfd_read(wake_fd, &count);
    if (Interrupts::Came()) {
      buffer_.clear();
      return Outcome::kInterrupted;
    }
    pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {wake_fd, POLLIN, 0}};
    const int num_ready = ::poll(waits, std::size(waits), -1);
    if (num_ready < 0 && errno != EINTR) return IoError("stdin: cannot wait for it: {}", ErrnoText(errno));
    if (num_ready < 0 || waits[0].revents == 0) continue;
    char chunk[4096];
    const ssize_t num_read = ::read(STDIN_FILENO, chunk, sizeof(chunk));
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return IoError("stdin: cannot read: {}", ErrnoText(errno));
    if (num_read == 0) at_end_ = true;
    buffer_.append(chunk, static_cast<size_t>(num_read));
    if (buffer_.size() > kMaxRequestLineBytes) return InputError("a line has more than {} bytes", kMaxRequestLineBytes);
  }
}

absl::StatusOr<MessageReader::Outcome> MessageReader::Next(std::string& message) {
  message.clear();
  std::string line;
  PENSTOCK_ASSIGN_OR_RETURN(Outcome outcome, NextLine("> ", line));
  const bool is_block = line.starts_with(kBlock);
  if (is_block) line.erase(0, kBlock.size());
  while (outcome == Outcome::kMessage) {
    message += line;
    if (message.size() > kMaxRequestLineBytes) {
      return InputError("a message has more than {} bytes", kMaxRequestLineBytes);
    }
    if (is_block && message.ends_with(kBlock)) {
      message.resize(message.size() - kBlock.size());
      return Outcome::kMessage;
    }
    if (!is_block && !message.ends_with('\\')) return message.starts_with('/') ? Outcome::kCommand : Outcome::kMessage;
    if (!is_block) message.pop_back();
    message += '\n';
    PENSTOCK_ASSIGN_OR_RETURN(outcome, NextLine(". ", line));
  }
  // The input ended within a message.
  return outcome == Outcome::kEnd && !message.empty() ? Outcome::kMessage : outcome;
}

AnswerDisplay::AnswerDisplay() : dims_(ChangesColours()) {}

absl::Status AnswerDisplay::Write(bool to_stdout, std::string_view text) {
  const int fd = to_stdout ? STDOUT_FILENO : STDERR_FILENO;
  return WriteFully(fd, ::isatty(fd) == 1 ? Shown(text) : text, to_stdout ? "stdout" : "stderr");
}

absl::Status AnswerDisplay::LeaveThoughts() {
  if (!in_thoughts_) return absl::OkStatus();
  in_thoughts_ = false;
  return WriteFully(STDERR_FILENO, dims_ ? "\x1b[0m\n" : "\n", "stderr");
}

absl::Status AnswerDisplay::Show(const AnswerDelta& delta) {
  if (delta.kind == AnswerDelta::Kind::kReasoning) {
    if (!in_thoughts_ && dims_) PENSTOCK_RETURN_IF_ERROR(WriteFully(STDERR_FILENO, "\x1b[2m", "stderr"));
    in_thoughts_ = true;
    return Write(false, delta.text);
  }
  PENSTOCK_RETURN_IF_ERROR(LeaveThoughts());
  has_content_ = true;
  if (delta.kind == AnswerDelta::Kind::kCallBegin) return Write(true, fmt::format("\ncalls {}: ", delta.text));
  return Write(true, delta.text);
}

absl::Status AnswerDisplay::End() {
  PENSTOCK_RETURN_IF_ERROR(LeaveThoughts());
  return has_content_ ? Write(true, "\n") : absl::OkStatus();
}

Interrupts::Interrupts() {
  wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupts::Take() { return interrupts.exchange(0) > 0; }

bool Interrupts::Came() { return interrupts.load() > 0; }

void Interrupts::SetBusy(bool busy) { is_busy = busy; }

}  // namespace penstock::cli
