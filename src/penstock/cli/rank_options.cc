#include "penstock/cli/rank_options.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "penstock/base/status.h"
#include "penstock/base/thread_pool.h"
#include "penstock/plan/engine_plan.h"

namespace penstock::cli {

void ShareMachine(const MpiRanks& ranks, EngineOptions& options) {
  if (options.memory_bytes == 0) {
    options.memory_share =
        (options.memory_share > 0 ? options.memory_share : kDefaultMemoryShare) / ranks.num_ranks_here;
  }
  if (options.threads == 0) options.threads = std::max(1, NumUsableCpus() / ranks.num_sharing_cpus);
  UseShareOfCpus(ranks.place_among_sharing, ranks.num_sharing_cpus);
  if (options.device == "auto") options.device = "cpu";
}

int EndOtherRank(const absl::Status& status) {
  if (!status.ok()) std::this_thread::sleep_for(std::chrono::seconds(2));
  return ExitCode(status);
}

void UseFilesOfRank(int rank, EngineOptions& options) {
  if (rank == 0) return;
  for (std::string* path : {&options.trace_path, &options.trace_html_path}) {
    if (path->empty()) continue;
    std::filesystem::path named(*path);
    const std::string extension = named.extension().string();
    *path = named.replace_extension(fmt::format("rank{}{}", rank, extension)).string();
  }
  options.routing_path.clear();
  options.correlation_path.clear();
}

}  // namespace penstock::cli
