// Attention of a pass by heads, on several ranks that share them: TP attention in EPS-MoE's words.
//
// Each rank has rows and sequences of its own, and attends with its heads to the rows of all ranks:
//
//   norm        each rank, its own rows
//   rows        go to all other ranks, as codes or floats for the projections of q, k and v
//   attention   each rank, its heads, for the rows of all ranks; their KV entries for these heads lie here
//   heads       what the heads attended to goes back to the rows' own rank
//   projection  each rank, its own rows, with the whole output projection
//
// An output of every projection is computed whole on one rank, so rows have the bits that they have on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"
#include "penstock/schedule/ranks/rank_transfers.h"

namespace penstock {

class PassHeads {
 public:
  // `args`, with ranks that share heads, and `tasks` must outlive the object and its tasks.
  PassHeads(const PassArgs& args, PassTasks& tasks);

  // Norms the rows of a micro-batch (its index in args.micro_batches), sends them, and begins to receive those of the
  // other ranks. Does nothing the second time for a layer.
  void Begin(size_t micro_batch_idx, int64_t layer_idx, Events after);
  // Computes attention. Returns the event after which the residual of this rank's rows is complete. REQUIRES: Begin().
  Event Finish(size_t micro_batch_idx, int64_t layer_idx);

 private:
  struct MicroBatch {
    int64_t layer_idx = -1;  // for which it has begun
    Event rows_sent, rows_here;
    Event attended;
    Event heads_sent, heads_here;
    Event finished;
  };

  const RankHeads& heads() const { return *args_.ranks->heads; }
  const RankRows& rows() const { return *args_.rank_rows; }
  // Returns the inputs of the projections, of rows of all ranks.
  std::span<std::byte> InputsAt(RowRange place) const;
  void Attend(size_t micro_batch_idx, int64_t layer_idx);
  absl::Status SendHeads(const RankRows::MicroBatch& places);
  absl::Status ReceiveHeads(RowRange own);
  // Copies what the heads of a rank attended to, [own.size(), its heads], to `attended` of this rank's rows.
  void PlaceHeads(int rank, RowRange own, std::span<const float> heads);
  HeadRange HeadsOfRank(int rank) const;
  int64_t AttendedDimOf(int rank) const { return HeadsOfRank(rank).NumOf(args_.config.attended_dim()); }

  const PassArgs& args_;
  PassTasks& tasks_;
  RankTransfers transfers_;
  std::vector<MicroBatch> micro_batches_;
};

}  // namespace penstock
