// The flags of penstock simulate.
#include "penstock/cli/flags/simulate_flags.h"

#include "penstock/cli/flags/common_flags.h"

namespace penstock::cli {

void AddSimulateFlags(CLI::App& command, SimulateFlags& flags) {
  AddDescribedFlags(command, flags.described,
                    "all (side by side), " + ScheduleNames() +
                        "(default: klotski when experts stream to many sequences, else on-demand)");
  AddTraceFlags(command, flags.described.model.engine);
  BeginGroup(command, "Simulation");
  AddFlag(command, "--sweep", flags.sweep,
          "print the best policy while one number changes, as CSV: cpu-memory=16GiB..256GiB, gpu-memory=.., "
          "disk=1GB..14GB and link=4GB..64GB (a second), batch-size=1..256")
      .TypeName("SPEC");
  AddFlag(command, "--plot", flags.plot_path, "with --sweep: draw the curves, as SVG").TypeName("FILE");
  AddFlag(command, "--routing-skew", flags.routing_skew,
          "a layer's r-th expert, in an order of its own, is as likely as 1 / r^Z (Zipf); 0: all alike "
          "(default: as earlier runs with --policy auto chose on this machine, else 0.8)")
      .NumberFrom(0, 10);
  AddFlag(command, "--routing-trace", flags.routing_trace,
          "instead: experts are as likely as they were chosen in this trace of --record-routing")
      .TypeName("FILE");
  AddFlag(command, "--routing-repeat", flags.routing_repeat,
          "probability that a token chooses an expert of the sequence's last token again "
          "(default: as in earlier runs, else 0.12)")
      .NumberFrom(0, 0.99);
  AddFlag(command, "--routing-follow", flags.routing_follow,
          "probability that a token's choice has the place of its choice in the layer before, in that order "
          "(default: 0 after earlier runs, else 0.4)")
      .NumberFrom(0, 0.99);
  AddFlag(command, "--gate-accuracy", flags.gate_accuracy,
          "share of a layer's choices that its gate predicts one layer ahead; 0: no prediction")
      .NumberFrom(0, 1)
      .ShowDefault();
  AddFlag(command, "--seed", flags.seed, "seed of the routing").Unsigned();
  AddFlag(command, "--json", flags.as_json, "print JSON");
}

}  // namespace penstock::cli
