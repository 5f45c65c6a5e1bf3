#include "penstock/schedule/expert_split.h"

#include <algorithm>
#include <limits>
#include <string>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Experts by the place of their weights, each list heaviest first.
struct Queues {
  std::vector<int> on_device;  // those that are not in DRAM come before the others
  std::vector<int> in_dram;    // but not on the device
  std::vector<int> on_disk;    // neither in DRAM nor on the device
};

Queues Sort(std::span<const ExpertWork> experts) {
  Queues queues;
  for (int i = 0; i < std::ssize(experts); ++i) {
    const ExpertWork& expert = experts[i];
    (expert.on_device ? queues.on_device : expert.in_dram ? queues.in_dram : queues.on_disk).push_back(i);
  }
  for (std::vector<int>* queue : {&queues.on_device, &queues.in_dram, &queues.on_disk}) {
    std::stable_sort(queue->begin(), queue->end(), [&](int a, int b) { return experts[a].host_s > experts[b].host_s; });
  }
  std::stable_partition(queues.on_device.begin(), queues.on_device.end(), [&](int i) { return !experts[i].in_dram; });
  return queues;
}

// Returns for each expert the time at which it is in DRAM, if the disk reads `reads` in this order; 0 without a read.
std::vector<double> ReadyTimes(std::span<const int> reads, size_t num_experts, const LaneTimes& times) {
  std::vector<double> ready(num_experts);
  double disk_s = times.disk_free_s;
  for (const int i : reads) ready[i] = disk_s += times.read_s;
  return ready;
}

// Finds the best division that three numbers describe. Two of them say how many of the heaviest experts in DRAM and on
// disk go to the device. The third says how many of the lightest experts on the device are computed by the host. With
// precomputed sums of each lane's work, the time of any division takes a few operations.
class Balance {
 public:
  struct Split {  // numbers of experts of Queues' lists
    size_t host_of_device = 0;
    size_t device_of_dram = 0;
    size_t device_of_disk = 0;
    double price_s = kNever;  // the time plus the prices of transfers
  };

  Balance(std::span<const ExpertWork> experts, const LaneTimes& times, const Queues& queues)
      : experts_(experts),
        times_(times),
        queues_(queues),
        dram_(Sums(queues.in_dram, /*first_s=*/0, /*each_s=*/0)),
        disk_(Sums(queues.on_disk, times.disk_free_s, times.read_s)) {}

  Split Best() const {
    Split best;
    double host_s = 0, device_s = 0;  // work on experts of queues_.on_device, by processor
    for (const int i : queues_.on_device) device_s += Work(i).device_s;
    for (size_t of_device = 0;; ++of_device) {
      for (size_t of_disk = 0; of_disk <= (times_.has_device ? queues_.on_disk.size() : 0); ++of_disk) {
        Split split = {.host_of_device = of_device, .device_of_disk = of_disk};
        split.device_of_dram = BestOfDram(split, host_s, device_s);
        split.price_s = Price(split, host_s, device_s);
        if (split.price_s < best.price_s) best = split;
      }
      if (of_device == queues_.on_device.size()) return best;
      const ExpertWork& next = Work(queues_.on_device[queues_.on_device.size() - 1 - of_device]);
      if (!next.in_dram) return best;
      host_s += next.host_s;
      device_s -= next.device_s;
    }
  }

 private:
  // Element k is for a division in which the device takes the k heaviest experts of a list and the host the others.
  struct Sum {
    double host_s = 0;      // to compute all of the host's experts
    double host_end_s = 0;  // earliest end on the host that the disk permits
    double device_s = 0;
    double device_end_s = 0;         // earliest end on the device that the disk permits
    double device_after_link_s = 0;  // from the start of the list's first transfer to the end on the device
  };

  const ExpertWork& Work(int i) const { return experts_[i]; }

  // Returns the sums of a list whose j-th expert (from 0) arrives in DRAM at first_s + (j + 1) each_s.
  std::vector<Sum> Sums(const std::vector<int>& list, double first_s, double each_s) const {
    std::vector<Sum> sums(list.size() + 1);
    for (size_t k = list.size(); k-- > 0;) {
      sums[k].host_s = sums[k + 1].host_s + Work(list[k]).host_s;
      const double read_s = first_s + static_cast<double>(k + 1) * each_s;
      sums[k].host_end_s = std::max(sums[k + 1].host_end_s, read_s + sums[k].host_s);
    }
    double arrived_s = 0;
    for (size_t k = 0; k < list.size(); ++k) {
      const double device_s = Work(list[k]).device_s, num_transfers = static_cast<double>(k + 1);
      arrived_s = std::max(arrived_s, first_s + num_transfers * each_s) + times_.transfer_s;
      sums[k + 1].device_s = sums[k].device_s + device_s;
      sums[k + 1].device_end_s = std::max(sums[k].device_end_s, arrived_s) + device_s;
      sums[k + 1].device_after_link_s =
          std::max(sums[k].device_after_link_s, num_transfers * times_.transfer_s) + device_s;
    }
    return sums;
  }

  double HostSeconds(const Split& split, double host_s) const {
    const Sum &dram = dram_[split.device_of_dram], &disk = disk_[split.device_of_disk];
    const double at_once_s = dram.host_s + host_s;
    if (at_once_s + disk.host_s == 0) return 0;
    return std::max(times_.host_free_s + times_.host_first_s + at_once_s + disk.host_s,
                    disk.host_end_s + (at_once_s > 0 ? 0 : times_.host_first_s));
  }
  double DeviceSeconds(const Split& split, double device_s) const {
    const Sum &dram = dram_[split.device_of_dram], &disk = disk_[split.device_of_disk];
    if (device_s + dram.device_s + disk.device_s == 0) return 0;
    const double link_s = times_.link_free_s;
    const double first_s = std::max(times_.device_free_s + device_s + dram.device_s,
                                    split.device_of_dram == 0 ? 0 : link_s + dram.device_after_link_s);
    if (split.device_of_disk == 0) return first_s;
    const double num_before = static_cast<double>(split.device_of_dram);
    return std::max({first_s + disk.device_s, link_s + num_before * times_.transfer_s + disk.device_after_link_s,
                     disk.device_end_s});
  }

  // Returns how many of the heaviest experts in DRAM the device should take. With more, the device ends later and the
  // host earlier. Without prices, the best division is where the two times cross.
  size_t BestOfDram(Split split, double host_s, double device_s) const {
    if (!times_.has_device) return 0;
    size_t begin = 0, end = queues_.in_dram.size();
    while (begin < end) {
      split.device_of_dram = (begin + end) / 2;
      if (DeviceSeconds(split, device_s) < HostSeconds(split, host_s)) {
        begin = split.device_of_dram + 1;
      } else {
        end = split.device_of_dram;
      }
    }
    const auto price = [&](size_t k) {
      split.device_of_dram = k;
      return Price(split, host_s, device_s);
    };
    // Up to the crossing, each further expert saves less of the host's time, at the same price.
    end = begin;
    begin = 0;
    while (begin < end) {
      const size_t middle = (begin + end) / 2;
      if (price(middle) <= price(middle + 1)) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }

  double Price(const Split& split, double host_s, double device_s) const {
    return std::max(HostSeconds(split, host_s), DeviceSeconds(split, device_s)) +
           static_cast<double>(split.device_of_dram + split.device_of_disk) * times_.transfer_price_s;
  }

  std::span<const ExpertWork> experts_;
  const LaneTimes& times_;
  const Queues& queues_;
  std::vector<Sum> dram_, disk_;
};

// Assigns each expert to a processor, and derives the order of each lane.
class Division {
 public:
  Division(std::span<const ExpertWork> experts, const LaneTimes& times, const Queues& queues)
      : experts_(experts), times_(times), queues_(queues), best_(experts.size()), reads_(queues.on_disk) {
    const Balance::Split split = Balance(experts, times, queues).Best();
    const auto give_host = [&](std::span<const int> list) {
      for (const int i : list) best_[i] = 1;
    };
    give_host(std::span(queues.in_dram).subspan(split.device_of_dram));
    give_host(std::span(queues.on_disk).subspan(split.device_of_disk));
    give_host(std::span(queues.on_device).last(split.host_of_device));
  }

  // Searches for a better division. If the device's time depends on the rows, sets other than the heaviest and the
  // lightest experts may fit better. Searches only if there are few experts, because among many, each one matters
  // little. Tries all divisions that could be better, or as many as there is time for. If experts are read, tries two
  // orders of the reads: the heaviest expert first, and the one that takes longest after its read first.
  ExpertSplit Improved() {
    if (!times_.has_device || experts_.size() > kMaxSearched) return Split();
    ExpertSplit best = Search();
    if (reads_.size() < 2) return best;
    SortReads();
    ExpertSplit other = Search();
    return Price(other) < Price(best) ? other : best;
  }

  double Price(const ExpertSplit& split) const {
    return SecondsOf(split, experts_, times_) + static_cast<double>(split.transfers.size()) * times_.transfer_price_s;
  }

 private:
  static constexpr size_t kMaxSearched = 16;
  static constexpr int kMaxTried = 500;  // takes some microseconds

  // An expert, in the order in which lanes take experts.
  struct Step {
    size_t place = 0;
    double host_s = 0;
    double device_s = 0;
    double transfer_s = 0;
    double ready_s = 0;     // when it is in DRAM
    double min_left_s = 0;  // minimum work on this expert and those after it, both processors together
  };
  struct LaneEnds {
    double host_s = 0, device_s = 0, link_s = 0;
    double price_s = 0;  // of its transfers
    bool host_works = false, device_works = false;
  };

  ExpertSplit Split() const {
    ExpertSplit split;
    split.reads = reads_;
    const auto divide = [&](const std::vector<int>& list, bool travels) {
      for (const int i : list) {
        const bool on_host = best_[i] != 0;
        (on_host ? split.host : split.device).push_back(i);
        if (!on_host && travels) split.transfers.push_back(i);
      }
    };
    divide(queues_.on_device, /*travels=*/false);
    divide(queues_.in_dram, /*travels=*/true);
    divide(reads_, /*travels=*/true);
    return split;
  }

  // Searches from the present division, with the present order of reads.
  ExpertSplit Search() {
    steps_.clear();
    const auto add = [&](const std::vector<int>& list, bool is_there) {
      for (const int i : list) {
        const ExpertWork& work = experts_[i];
        steps_.push_back({.place = static_cast<size_t>(i),
                          .host_s = work.on_device && !work.in_dram ? kNever : work.host_s,
                          .device_s = work.device_s,
                          .transfer_s = is_there ? 0 : times_.transfer_s});
      }
    };
    add(queues_.on_device, /*is_there=*/true);
    add(queues_.in_dram, /*is_there=*/false);
    const size_t first_read = steps_.size();
    add(reads_, /*is_there=*/false);
    double read_s = times_.disk_free_s;
    for (size_t k = first_read; k < steps_.size(); ++k) steps_[k].ready_s = read_s += times_.read_s;
    double left_s = 0;
    for (size_t k = steps_.size(); k-- > 0;) {
      steps_[k].min_left_s = left_s += std::min(steps_[k].host_s, steps_[k].device_s);
    }
    best_s_ = Price(Split());
    tried_ = best_;
    num_tried_ = 0;
    Descend(0, {.host_s = times_.host_free_s, .device_s = times_.device_free_s, .link_s = times_.link_free_s});
    return Split();
  }

  // Sorts the reads: first the expert that takes longest once it is in DRAM.
  void SortReads() {
    const auto left_s = [&](int i) {
      const ExpertWork& work = experts_[i];
      return best_[i] != 0 ? work.host_s : times_.transfer_s + work.device_s;
    };
    std::stable_sort(reads_.begin(), reads_.end(), [&](int a, int b) { return left_s(a) > left_s(b); });
  }

  // Searches depth first. Skips divisions that cannot be better than the best so far.
  void Descend(size_t depth, const LaneEnds& ends) {
    const double end_s =
        std::max(ends.host_works ? ends.host_s : 0, ends.device_works ? ends.device_s : 0) + ends.price_s;
    if (end_s >= best_s_ || ++num_tried_ > kMaxTried) return;
    if (depth == steps_.size()) {
      best_s_ = end_s;
      best_ = tried_;
      return;
    }
    const Step& step = steps_[depth];
    if (ends.host_s + ends.device_s + step.min_left_s >= 2 * (best_s_ - ends.price_s)) return;
    LaneEnds host = ends, device = ends;
    host.host_s = std::max(ends.host_s, step.ready_s) + (ends.host_works ? 0 : times_.host_first_s) + step.host_s;
    host.host_works = true;
    if (step.transfer_s > 0) {
      device.link_s = std::max(ends.link_s, step.ready_s) + step.transfer_s;
      device.price_s += times_.transfer_price_s;
      device.device_s = std::max(device.device_s, device.link_s);
    }
    device.device_s += step.device_s;
    device.device_works = true;
    // Tries the processor that ends sooner first.
    const bool host_first = host.host_s < device.device_s;
    for (const bool on_host : {host_first, !host_first}) {
      tried_[step.place] = on_host ? 1 : 0;
      Descend(depth + 1, on_host ? host : device);
    }
  }

  std::span<const ExpertWork> experts_;
  const LaneTimes& times_;
  const Queues& queues_;
  std::vector<char> best_;  // [num_experts]: whether the host computes it
  std::vector<int> reads_;
  std::vector<Step> steps_;
  std::vector<char> tried_;  // like best_
  double best_s_ = 0;
  int num_tried_ = 0;
};

ExpertSplit SplitBalanced(std::span<const ExpertWork> experts, const LaneTimes& times) {
  const Queues queues = Sort(experts);
  return Division(experts, times, queues).Improved();
}

ExpertSplit SplitByTimelines(std::span<const ExpertWork> experts, const LaneTimes& times) {
  Queues queues = Sort(experts);
  ExpertSplit split;
  split.reads = queues.on_disk;
  const std::vector<double> ready = ReadyTimes(split.reads, experts.size(), times);
  std::vector<double> at_device(experts.size());
  const auto work = [&](int i) -> const ExpertWork& { return experts[i]; };
  const auto heavier = [&](int a, int b) { return work(a).host_s > work(b).host_s; };
  std::vector<int> lacking;  // not on the device, heaviest first
  std::merge(queues.in_dram.begin(), queues.in_dram.end(), queues.on_disk.begin(), queues.on_disk.end(),
             std::back_inserter(lacking), heavier);
  std::vector<int>& present = queues.on_device;
  double host_s = times.host_free_s, device_s = times.device_free_s, link_s = times.link_free_s;
  while (!lacking.empty() || !present.empty()) {
    int for_host = -1;
    if (!lacking.empty()) {
      for_host = lacking.back();
    } else if (work(present.back()).in_dram) {
      for_host = present.back();
    }
    const double first_s = split.host.empty() ? times.host_first_s : 0;
    const double host_end_s =
        for_host < 0 ? kNever : std::max(host_s, ready[for_host]) + first_s + work(for_host).host_s;
    const double device_end_s =
        present.empty() ? kNever : std::max(device_s, at_device[present.front()]) + work(present.front()).device_s;
    const double link_end_s =
        lacking.empty() || !times.has_device ? kNever : std::max(link_s, ready[lacking.front()]) + times.transfer_s;
    if (device_end_s <= host_end_s && device_end_s <= link_end_s) {
      device_s = device_end_s;
      split.device.push_back(present.front());
      present.erase(present.begin());
    } else if (host_end_s <= link_end_s) {
      host_s = host_end_s;
      split.host.push_back(for_host);
      (lacking.empty() ? present : lacking).pop_back();
    } else {
      const int moved = lacking.front();
      link_s = at_device[moved] = link_end_s;
      split.transfers.push_back(moved);
      lacking.erase(lacking.begin());
      const auto begin = std::find_if(present.begin(), present.end(), [&](int i) { return work(i).in_dram; });
      present.insert(std::upper_bound(begin, present.end(), moved, heavier), moved);
    }
  }
  // Experts that the host computed although their transfer was planned need not travel.
  std::erase_if(split.transfers,
                [&](int i) { return std::find(split.device.begin(), split.device.end(), i) == split.device.end(); });
  return split;
}

ExpertSplit SplitTwoEnded(std::span<const ExpertWork> experts, const LaneTimes& times) {
  const Queues queues = Sort(experts);
  ExpertSplit split;
  split.reads = queues.on_disk;
  const std::vector<double> ready = ReadyTimes(split.reads, experts.size(), times);
  std::vector<int> list = queues.on_device;
  list.insert(list.end(), queues.in_dram.begin(), queues.in_dram.end());
  list.insert(list.end(), queues.on_disk.begin(), queues.on_disk.end());
  double host_s = times.host_free_s, device_s = times.device_free_s, link_s = times.link_free_s;
  for (size_t front = 0, end = list.size(); front < end;) {
    const int for_device = list[front], for_host = list[end - 1];
    const ExpertWork& heavy = experts[for_device];
    const ExpertWork& light = experts[for_host];
    const double arrived_s = heavy.on_device ? 0 : std::max(link_s, ready[for_device]) + times.transfer_s;
    const double device_end_s = times.has_device ? std::max(device_s, arrived_s) + heavy.device_s : kNever;
    const double host_end_s = light.on_device && !light.in_dram ? kNever
                                                                : std::max(host_s, ready[for_host]) + light.host_s +
                                                                      (split.host.empty() ? times.host_first_s : 0);
    if (device_end_s <= host_end_s) {
      device_s = device_end_s;
      split.device.push_back(for_device);
      if (!heavy.on_device) {
        link_s = arrived_s;
        split.transfers.push_back(for_device);
      }
      ++front;
    } else {
      host_s = host_end_s;
      split.host.push_back(for_host);
      --end;
    }
  }
  return split;
}

// Decides for each expert on its own: if the device lacks it and `travels` returns true, it is transferred.
template <typename Travels>
ExpertSplit SplitEach(std::span<const ExpertWork> experts, const LaneTimes& times, Travels travels) {
  const Queues queues = Sort(experts);
  ExpertSplit split;
  split.device = queues.on_device;
  split.reads = queues.on_disk;
  for (const std::vector<int>* queue : {&queues.in_dram, &queues.on_disk}) {
    for (const int i : *queue) {
      if (times.has_device && travels(experts[i])) {
        split.transfers.push_back(i);
        split.device.push_back(i);
      } else {
        split.host.push_back(i);
      }
    }
  }
  return split;
}

constexpr HybridRuleTraits kHybridRules[] = {
    {HybridRule::kBalanced, "balanced", "least time; the device takes the heaviest experts, the host the lightest"},
    {HybridRule::kTimelines, "timelines",
     "HybriMoE's paper: the next operation goes to the processor or link that would finish it first"},
    {HybridRule::kTwoEnded, "two-ended",
     "HybriMoE's public code: the device takes from the heavy end, the host from the light"},
    {HybridRule::kThreshold, "threshold",
     "Fiddler: each expert alone goes where it takes less time, transfer included"},
    {HybridRule::kFixed, "fixed", "KTransformers: the device computes the experts that it has, the host the rest"},
};

}  // namespace

std::span<const HybridRuleTraits> HybridRules() { return kHybridRules; }
const HybridRuleTraits& TraitsOf(HybridRule rule) { return kHybridRules[static_cast<size_t>(rule)]; }

ExpertSplit SplitExperts(HybridRule rule, std::span<const ExpertWork> experts, const LaneTimes& times) {
  ExpertSplit split;
  switch (rule) {
    case HybridRule::kBalanced: split = SplitBalanced(experts, times); break;
    case HybridRule::kTimelines: split = SplitByTimelines(experts, times); break;
    case HybridRule::kTwoEnded: split = SplitTwoEnded(experts, times); break;
    case HybridRule::kThreshold:
      split = SplitEach(experts, times,
                        [&](const ExpertWork& expert) { return times.transfer_s + expert.device_s < expert.host_s; });
      break;
    case HybridRule::kFixed: split = SplitEach(experts, times, [](const ExpertWork&) { return false; }); break;
  }
  split.seconds = SecondsOf(split, experts, times);
  return split;
}

double SecondsOf(const ExpertSplit& split, std::span<const ExpertWork> experts, const LaneTimes& times) {
  const std::vector<double> ready = ReadyTimes(split.reads, experts.size(), times);
  std::vector<double> arrived(experts.size());
  double link_s = times.link_free_s;
  for (const int i : split.transfers) {
    link_s = std::max(link_s, ready[i]) + times.transfer_s;
    arrived[i] = link_s;
  }
  double host_s = times.host_free_s, device_s = times.device_free_s, first_s = times.host_first_s;
  for (const int i : split.host) {
    host_s = std::max(host_s, ready[i]) + first_s + experts[i].host_s;
    first_s = 0;
  }
  for (const int i : split.device) {
    device_s = std::max(device_s, arrived[i]) + experts[i].device_s;
  }
  return std::max(split.host.empty() ? 0 : host_s, split.device.empty() ? 0 : device_s);
}

}  // namespace penstock
