// An engine as tests and benchmarks open it: with hooks between it and the machine, and with its decisions in view.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/ops/pass_observer.h"
#include "penstock/parallel/communicator.h"
#include "penstock/runtime/disk_reader.h"
#include "penstock/simulate/plan_simulator.h"

namespace penstock {

struct EngineHooks {
  // Takes the disk reader and returns the one that the engine uses in its place.
  std::function<std::unique_ptr<DiskReader>(std::unique_ptr<DiskReader>)> wrap_disk = {};
  // Sets the KV entries of all prompt tokens but the last to zero without computing them. So decoding can be timed
  // without waiting for long prompts. Answers mean nothing.
  bool empty_prompts = false;
  // Replaces sampled tokens by random ones. A model with random weights falls into loops: a sequence chooses the same
  // few experts again and again. A cache of them then looks better than it is.
  bool random_answers = false;
  // Drafts every token that can be guessed, also where that costs more than it gains.
  bool drafts_all = false;
  // Sees what the host computes; outlives the engine. Null: nobody looks.
  PassObserver* observer = nullptr;
  // Shares the experts with the engines of other ranks; outlives the engine. All of them must have the same model and
  // options, except memory. Step() is then a step of all ranks, each with its own requests: every rank must call it as
  // often as the others.
  Communicator* communicator = nullptr;
};

class InstrumentedEngine : public Engine {
 public:
  // Returns the inputs that simulate this engine's passes (simulate/simulated_run.h). Valid while the engine lives.
  virtual SimulationInputs simulation_inputs() const = 0;
  // Returns whether any rank had requests at the beginning of the last step.
  virtual bool ranks_were_busy() const = 0;
};

// Opens an engine as Engine::Open() does, with hooks.
absl::StatusOr<std::unique_ptr<InstrumentedEngine>> OpenInstrumentedEngine(const EngineOptions& options,
                                                                           const EngineHooks& hooks);

}  // namespace penstock
