// Reads messages from the terminal and shows answers there. Both also work with pipes and files.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/chat_answer.h"

namespace penstock::cli {

// Reads messages from standard input. A line that ends in a backslash goes on in the next one. A message that begins
// with """ ends with """, and is never a command.
class MessageReader {
 public:
  enum class Outcome : uint8_t { kMessage, kCommand, kInterrupted, kEnd };

  MessageReader();
  // Takes the next message. kInterrupted: a signal came. Returns kInput for a message of too many bytes.
  absl::StatusOr<Outcome> Next(std::string& message);

 private:
  absl::StatusOr<Outcome> NextLine(std::string_view prompt, std::string& line);

  bool shows_prompt_;
  std::string buffer_;
  bool at_end_ = false;
};

// Writes an answer as it grows: content to stdout, thoughts to stderr and dimmed on a terminal. Control characters do
// not reach a terminal.
class AnswerDisplay {
 public:
  AnswerDisplay();
  absl::Status Show(const AnswerDelta& delta);
  // Ends the answer's last line.
  absl::Status End();

 private:
  absl::Status Write(bool to_stdout, std::string_view text);
  absl::Status LeaveThoughts();

  bool dims_;
  bool in_thoughts_ = false;
  bool has_content_ = false;
};

// Counts Ctrl-C from now on, instead of letting it end the process.
class Interrupts {
 public:
  Interrupts();
  static bool Take();  // returns whether one came, and forgets it
  static bool Came();
  static void SetBusy(bool busy);  // busy: a second one ends the process at once
};

}  // namespace penstock::cli
