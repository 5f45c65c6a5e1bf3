// Schedules in which the host attends, because the KV cache lies in DRAM. A device computes everything else, and all
// experts of the next layer are copied to it.
//
// CGOPipe (MoE-Lightning, Algorithm 1): the host attends two micro-batches ahead of the device. The next layer's
// weights travel in pages between the hidden states, so that no hidden state waits behind a whole layer of weights:
//
//   device_compute  | post(i,1) pre(i,3) | post(i,2) pre(i,4) | post(i,3) pre(i+1,1) | ...
//   host_compute    |    attention(i,2)  |    attention(i,3)  |    attention(i,4)    | ...
//   dram_to_device  | hidden(i,2) pages of i+1 | hidden(i,3) pages of i+1 | ...
//
// FastDecode's schedule (S2 in the paper) is the same, but sends whole layers of weights, after the hidden states of
// the first micro-batch. In FlexGen's schedule with attention on the host (S3), the device also waits while the host
// attends. Both send a layer's weights at the best place for whole layers: weights before the first hidden states would
// delay the start of every layer.
//
// Prompts are attended to on the device if it has staging buffers for KV entries (the paper's prefill). A micro-batch
// may have both: rows of decoding sequences, which the host attends to, and rows of prompts after them.
//
// Beyond the paper: a share of the experts may be pinned on the device and is never copied. If there are slots for
// fewer than two layers, the rest of the next layer is issued after this layer has been computed.
#include <algorithm>
#include <vector>

#include "penstock/schedule/layer_prefetch.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

class HostAttentionSchedule : public Schedule {
 public:
  // `max_ahead`: how many micro-batches the host attends ahead of the device. `in_pages`: weights travel in pages
  // between hidden states, not as whole layers.
  HostAttentionSchedule(const ModelConfig& config, int64_t max_ahead, bool in_pages)
      : in_pages_(in_pages), max_ahead_(max_ahead), prefetch_(config) {}

  absl::Status Run(Pass& pass) override {
    const auto num_micro_batches = static_cast<int64_t>(pass.micro_batches().size());
    const int64_t num_steps = pass.layers().size() * num_micro_batches;
    // A micro-batch's next layer can be issued only after its present layer. So the host is ahead by at most all
    // micro-batches.
    const int64_t ahead = std::min(max_ahead_, num_micro_batches);
    attended_.assign(num_steps, {});
    SplitRows(pass);
    for (const std::vector<RowRange>* parts : {&on_host_, &on_device_}) {
      for (const RowRange& rows : *parts) pass.attention().Embed(rows);
    }
    prefetch_.Begin(pass);
    for (int64_t step = 0; step < ahead; ++step) Attend(pass, step);
    for (int64_t step = 0; step < num_steps; ++step) {
      const int64_t layer_idx = pass.layers().begin + step / num_micro_batches;
      const int64_t micro_batch_idx = step % num_micro_batches;
      const RowRange rows = pass.micro_batches()[micro_batch_idx], on_host = on_host_[micro_batch_idx];
      if (ahead == 0) Attend(pass, step);
      Event loaded;
      if (on_host.size() > 0) loaded = pass.attention().LoadAttended(on_host, layer_idx, attended_[step]);
      // KV entries go before the weights.
      const bool has_prompts = on_device_[micro_batch_idx].size() > 0;
      if (has_prompts) pass.attention().FetchKv(on_device_[micro_batch_idx], layer_idx);
      if (pass.has_experts(layer_idx)) {
        if (micro_batch_idx == 0) BeginLayer(pass, layer_idx);
        prefetch_.IssuePages(pass, in_pages_ ? micro_batch_idx + 1 : num_micro_batches, num_micro_batches);
      }
      if (has_prompts) pass.attention().Attend(prompts_, place_of_[micro_batch_idx], layer_idx);
      if (on_host.size() > 0) pass.attention().PostAttention(on_host, layer_idx, loaded);
      if (!pass.has_experts(layer_idx)) {
        pass.ffn().Dense(rows, layer_idx);
      } else {
        const Event done = pass.ffn().RouteAndCompute(rows, layer_idx, leases_);
        if (micro_batch_idx + 1 == num_micro_batches) EndLayer(pass, done);
      }
      if (ahead > 0 && step + ahead < num_steps) Attend(pass, step + ahead);
    }
    return absl::OkStatus();
  }

  void Reset() override { prefetch_.Reset(); }

 private:
  // Splits each micro-batch at its first sequence with several rows, if the device attends to prompts.
  void SplitRows(const Pass& pass) {
    on_host_.clear();
    on_device_.clear();
    prompts_.clear();
    place_of_.clear();
    for (const RowRange& rows : pass.micro_batches()) {
      const std::span<const uint32_t> ids = pass.sequence_ids(rows);
      const auto first = pass.attention().stages_kv() ? std::ranges::adjacent_find(ids) : ids.end();
      const int64_t split = rows.begin + (first - ids.begin());
      on_host_.push_back({rows.begin, split});
      on_device_.push_back({split, rows.end});
      place_of_.push_back(prompts_.size());
      if (split < rows.end) prompts_.push_back(on_device_.back());
    }
  }

  // Issues the host's part of a micro-batch's attention.
  void Attend(Pass& pass, int64_t step) {
    const auto num_micro_batches = static_cast<int64_t>(pass.micro_batches().size());
    const int64_t layer_idx = pass.layers().begin + step / num_micro_batches;
    const RowRange rows = on_host_[step % num_micro_batches];
    if (rows.size() == 0) return;
    const Event offloaded =
        pass.attention().OffloadQkv(rows, layer_idx, pass.attention().PreAttention(rows, layer_idx));
    attended_[step] = pass.attention().HostAttention(rows, layer_idx, offloaded);
  }

  void BeginLayer(Pass& pass, int64_t layer_idx) {
    leases_ = prefetch_.TakeLayer(pass, layer_idx);
    for (const ExpertLease& lease : leases_) pass.experts().CountWanted(lease.key());
    prefetch_.Want(pass);
  }

  void EndLayer(Pass& pass, const Event& done) {
    for (ExpertLease& lease : leases_) lease.Release(done);
    leases_.clear();
    prefetch_.Want(pass);  // the experts that had no slot before
    prefetch_.IssuePages(pass, 1, 1);
  }

  const bool in_pages_;
  const int64_t max_ahead_;  // micro-batches
  LayerPrefetch prefetch_;
  std::vector<RowRange> on_host_, on_device_;  // of each micro-batch: the rows that host or device attend to
  std::vector<RowRange> prompts_;              // of on_device_: those with rows
  std::vector<size_t> place_of_;               // of each micro-batch: its place in prompts_
  std::vector<Event> attended_;                // by layer and micro-batch
  std::vector<ExpertLease> leases_;            // on experts of the present layer
};

}  // namespace

std::unique_ptr<Schedule> MakeZigzagCpuAttention(const ScheduleOptions&, const ModelConfig& config) {
  return std::make_unique<HostAttentionSchedule>(config, /*max_ahead=*/0, /*in_pages=*/false);
}
std::unique_ptr<Schedule> MakeFastdecode(const ScheduleOptions&, const ModelConfig& config) {
  return std::make_unique<HostAttentionSchedule>(config, /*max_ahead=*/2, /*in_pages=*/false);
}
std::unique_ptr<Schedule> MakeCgopipe(const ScheduleOptions&, const ModelConfig& config) {
  return std::make_unique<HostAttentionSchedule>(config, /*max_ahead=*/2, /*in_pages=*/true);
}

}  // namespace penstock
