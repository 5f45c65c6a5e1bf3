#include "penstock/ops/operations.h"

#include "penstock/base/check.h"

namespace penstock {

void RowBatch::Clear() {
  token_ids.clear();
  positions.clear();
  kv_positions.clear();
  kv_pages.clear();
  state_pages.clear();
  has_kv.clear();
  state_copies.clear();
  sequence_ids.clear();
  sequence_lengths.clear();
  logit_rows.clear();
  wants_best_only = false;
  draws_tokens = false;
  next_encodes = false;
  next_rows.clear();
  windows_.clear();
}

void RowBatch::AddRow(TokenId token_id, int64_t pos, std::span<std::byte* const> pages, uint32_t sequence_id,
                      const KvWindow& window, int64_t sequence_length, std::span<std::byte* const> of_state) {
  const bool goes_on = num_rows() > 0 && sequence_ids.back() == sequence_id;
  token_ids.push_back(token_id);
  positions.push_back(pos);
  sequence_ids.push_back(sequence_id);
  sequence_lengths.push_back(sequence_length);
  state_pages.push_back(of_state);
  has_kv.push_back(0);
  kv_positions.push_back(window.KvPosition(pos));
  if (!window.on() || pages.empty()) {
    kv_pages.push_back(pages);
    return;
  }
  const int64_t first_page = window.FirstPage(pos);
  if (!goes_on || first_page != last_first_page_) windows_.push_back(window.PagesFrom(pages, first_page));
  last_first_page_ = first_page;
  kv_pages.emplace_back(windows_.back());
}

IndexRange LayersOf(const ModelConfig& config, bool encodes) {
  const int64_t middle = config.encoder.num_layers;
  return encodes ? IndexRange{0, middle} : IndexRange{middle, config.num_layers};
}

bool Encodes(const ModelConfig& config, const RowBatch& batch) {
  return config.encoder.is_on() && batch.num_rows() > 0 && batch.positions[0] < batch.sequence_lengths[0];
}

void Operations::SetAngles(const RowBatch&, RowRange) { PENSTOCK_CHECK(false); }
void Operations::NormForAttention(RowRange, int64_t) { PENSTOCK_CHECK(false); }
void Operations::ProjectQkv(RowRange, int64_t) { PENSTOCK_CHECK(false); }
void Operations::PreCross(RowRange, int64_t) { PENSTOCK_CHECK(false); }
void Operations::AttendCross(const RowBatch&, RowRange, int64_t, const KvView&) { PENSTOCK_CHECK(false); }
void Operations::PostCross(RowRange, int64_t) { PENSTOCK_CHECK(false); }
void Operations::NormEncoded(RowRange) { PENSTOCK_CHECK(false); }
void Operations::ProjectCross(RowRange, int64_t) { PENSTOCK_CHECK(false); }
void Operations::RouteByTable(RowRange, int64_t, const ExpertTable&) { PENSTOCK_CHECK(false); }
void Operations::LimitExperts(const RowBatch&, RowRange) { PENSTOCK_CHECK(false); }
void Operations::GroupRanks(const RankAssignments&) { PENSTOCK_CHECK(false); }
void Operations::GatherInputs(std::span<const ExpertToRun>) { PENSTOCK_CHECK(false); }
void Operations::SumOutputs(int64_t, std::span<const int64_t>, std::span<const float>) { PENSTOCK_CHECK(false); }
void Operations::AddSums(RowRange, int64_t, std::span<const int64_t>, int) { PENSTOCK_CHECK(false); }
void Operations::RoundOutputs(IndexRange, CommFormat) { PENSTOCK_CHECK(false); }
void Operations::PlaceOutputs(RowRange, std::span<const int64_t>) { PENSTOCK_CHECK(false); }

}  // namespace penstock
