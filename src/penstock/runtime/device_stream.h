// An in-order queue of a device: a CUDA stream, or a thread in its place (thread_stream.h).
//
// Work is given to a stream, which does it later. A mark is a point in a stream: it is reached when all work given
// before it is done. Another stream of the device can wait for a mark; the host need not know when it is reached.
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

  // Calls `body`, which gives work to the stream. On an error nothing was given.
  virtual absl::Status Run(const std::function<absl::Status()>& body) = 0;
  virtual std::shared_ptr<Mark> Record() = 0;
  // Work given after this call waits for `mark`, which belongs to another stream of the same device.
  virtual void WaitFor(const std::shared_ptr<Mark>& mark) = 0;
  // Blocks until `mark`, which belongs to this stream, is reached. A failure on a device fails all later work.
  virtual absl::Status Synchronise(const Mark& mark) = 0;
};

}  // namespace penstock
