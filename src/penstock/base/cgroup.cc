#include "penstock/base/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace penstock {
namespace {

// A mounted hierarchy of groups, and this process's group in it.
struct Hierarchy {
  std::string mount;  // where it is mounted
  std::string group;  // this process's group below `mount`: "" or "/a/b"
  bool is_v2 = false;
};

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::istringstream stream{std::string(text)}; stream;) {
    std::string part;
    if (std::getline(stream, part, separator)) parts.push_back(std::move(part));
  }
  return parts;
}

bool Contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Returns the path of this process's group from /proc/self/cgroup, whose lines are "0::/a/b" (v2) or
// "4:memory:/a/b" (v1). `controller` is empty for v2.
std::optional<std::string> GroupOf(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool matches = controller.empty() ? controllers.empty() : Contains(Split(controllers, ','), controller);
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Finds the hierarchies that can limit `controller` ("memory", "cpu") in /proc/self/mountinfo. Its lines are
// "36 35 98:0 /root/of/mount /mount/point options ... - type source options".
std::vector<Hierarchy> HierarchiesOf(const std::string& root, std::string_view controller) {
  std::vector<Hierarchy> hierarchies;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = Split(line.substr(0, dash), ' '), after = Split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    const bool is_v2 = after[0] == "cgroup2";
    if (!is_v2 && (after[0] != "cgroup" || !Contains(Split(after[2], ','), controller))) continue;
    std::optional<std::string> group = GroupOf(root, is_v2 ? "" : controller);
    if (!group.has_value()) continue;
    // In a container the mount may show only a part of the hierarchy.
    const std::string& shown = before[3];
    if (shown != "/" && (*group + "/").starts_with(shown + "/")) group->erase(0, shown.size());
    if (group->find("..") != std::string::npos || !group->starts_with("/") || *group == "/") group->clear();
    hierarchies.push_back({root + before[4], *group, is_v2});
  }
  return hierarchies;
}

// Calls visit(folder) for this process's group and all groups above it.
void VisitGroups(const Hierarchy& hierarchy, const std::function<void(const std::string&)>& visit) {
  std::string group = hierarchy.group;
  for (;;) {
    visit(hierarchy.mount + group + "/");
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

// Reads the next word as a number; nothing for "max", and where there is no such file.
std::optional<uint64_t> ReadNumber(std::istream& file) {
  std::string word;
  uint64_t number = 0;
  if (!(file >> word)) return std::nullopt;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  return ReadNumber(file);
}

// Returns the page cache of a group and all groups below it.
uint64_t ReadPageCache(const std::string& path, std::string_view prefix) {
  std::ifstream file(path);
  uint64_t total = 0, bytes = 0;
  for (std::string name; file >> name >> bytes;) {
    if (name == fmt::format("{}inactive_file", prefix) || name == fmt::format("{}active_file", prefix)) total += bytes;
  }
  return total;
}

void AddMemory(const Hierarchy& hierarchy, CgroupLimits& limits) {
  const char* const limit_name = hierarchy.is_v2 ? "memory.max" : "memory.limit_in_bytes";
  const char* const usage_name = hierarchy.is_v2 ? "memory.current" : "memory.usage_in_bytes";
  VisitGroups(hierarchy, [&](const std::string& folder) {
    const std::optional<uint64_t> limit = ReadNumber(folder + limit_name);
    if (!limit.has_value()) return;
    const uint64_t used = ReadNumber(folder + usage_name).value_or(0);
    const uint64_t cached = std::min(used, ReadPageCache(folder + "memory.stat", hierarchy.is_v2 ? "" : "total_"));
    limits.memory_bytes = std::min(limits.memory_bytes, *limit);
    limits.free_memory_bytes = std::min(limits.free_memory_bytes, *limit - std::min(*limit, used - cached));
  });
}

void AddCpus(const Hierarchy& hierarchy, CgroupLimits& limits) {
  VisitGroups(hierarchy, [&](const std::string& folder) {
    std::optional<uint64_t> quota, period;  // in microseconds
    if (hierarchy.is_v2) {
      std::ifstream file(folder + "cpu.max");  // "QUOTA PERIOD", or "max PERIOD"
      quota = ReadNumber(file);
      period = ReadNumber(file);
    } else {
      quota = ReadNumber(folder + "cpu.cfs_quota_us");  // "-1": none
      period = ReadNumber(folder + "cpu.cfs_period_us");
    }
    if (!quota.has_value() || period.value_or(0) == 0) return;
    limits.num_cpus = std::min(limits.num_cpus, static_cast<double>(*quota) / static_cast<double>(*period));
  });
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::string& root) {
  CgroupLimits limits;
  for (const Hierarchy& hierarchy : HierarchiesOf(root, "memory")) AddMemory(hierarchy, limits);
  for (const Hierarchy& hierarchy : HierarchiesOf(root, "cpu")) AddCpus(hierarchy, limits);
  return limits;
}

}  // namespace penstock
