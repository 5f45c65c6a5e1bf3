// An in-order queue of a device: a CUDA stream, or a thread that stands for one (thread_stream.h).
//
// Work is given to a stream and done later. A mark is the point in a stream up to which work has been given: another
// stream of the device may wait for it without anyone on the host knowing when it was reached.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace penstock {

class DeviceStream {
 public:
  class Mark {
   public:
    virtual ~Mark() = default;
  };

  virtual ~DeviceStream() = default;

  // Calls `body`, which gives work to the stream. An error: nothing was given.
  virtual absl::Status Run(const std::function<absl::Status()>& body) = 0;
  virtual std::shared_ptr<Mark> Record() = 0;
  // What is given from now on is done after `mark`, of another stream of the same device.
  virtual void WaitFor(const std::shared_ptr<Mark>& mark) = 0;
  // Blocks until `mark`, of this stream, is reached. What failed on a device fails everything after it.
  virtual absl::Status Synchronise(const Mark& mark) = 0;
};

}  // namespace penstock
